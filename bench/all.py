"""Prints the names of the benchmarks in the order in which `make bench` runs them."""

NAMES = (
    "scrape",
    "pass_cost",
    "growth",
    "idle",
    "nvml_pass",
    "nvml_peers",
    "nvml_day",
    "ledger",
    "events",
    "allocations",
    "stack_load",
)

if __name__ == "__main__":
    print(*NAMES)
