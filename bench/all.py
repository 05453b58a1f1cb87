"""Prints the names of the benchmarks in the order in which `make bench` runs them."""

NAMES = (
    "scrape",
    "pass_cost",
    "growth",
    "idle",
    "scale",
    "nvml_pass",
    "nvml_peers",
    "nvml_day",
    "stack_load",
    "ledger",
    "events",
    "allocations",
    "attribution",
    "containers",
    "handoff",
    "agent_handoff",
    "sharing_scrape",
    "malformed",
    "crowd",
    "viewers",
    "page",
    "fleet",
    "sharing",
    "pauser",
    "parking",
)

if __name__ == "__main__":
    print(*NAMES)
