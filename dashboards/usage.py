"""DS01 My Usage: allocations, use and costs of one user."""

from dashboards.board import Board, Section, Variable
from dashboards.panels import FULL, HALF, Query, lines, number, rows

MINE = '{node=~"$node",user="$user"}'
OWNED = '{node=~"$node",owner="$user"}'
MY_CONTAINERS = f"* on (node, container) group_left () max by (node, container) (ds01_gpu_allocated{MINE})"

BOARD = Board(
    uid="ds01-user",
    title="DS01 My Usage",
    about="Allocations, utilization, GPU-hours and energy of the selected user.",
    variables=(Variable("user", "label_values(ds01_user_containers_count, user)"),),
    sections=(
        Section(
            "My resources",
            (
                number(
                    "MIG-equivalents",
                    f"sum(ds01_user_mig_allocated{MINE})",
                    "short",
                    "Held slots, counted in MIG devices.",
                ),
                number(
                    "GPUs", f"sum(ds01_user_gpus_allocated{MINE})", "short", "Slots of which I hold at least a part."
                ),
                number(
                    "GPU-equivalents",
                    f"sum(ds01_user_gpu_equivalents{MINE})",
                    "short",
                    "A whole GPU counts as 1, a MIG device as its share of a GPU.",
                    decimals=2,
                ),
                number(
                    "Containers", f"sum(ds01_user_containers_count{MINE})", "short", "Containers with access to a GPU."
                ),
                number(
                    "My GPU utilization",
                    f"avg(ds01:user_utilization:avg{MINE})",
                    "percentunit",
                    "Current mean of my allocations.",
                ),
                number(
                    "My GPU memory",
                    f"avg(ds01:user_memory_used:ratio{MINE})",
                    "percentunit",
                    "Used share of the memory of my allocations.",
                ),
            ),
        ),
        Section(
            "My GPUs",
            (
                rows(
                    "My allocations",
                    {
                        "node": "Node",
                        "gpu_slot": "GPU",
                        "container": "Container",
                        "interface": "Interface",
                        "Value #B": "Utilization",
                    },
                    (
                        Query(f"max by (node, gpu_slot, container, interface) (ds01_gpu_allocated{MINE})"),
                        Query(
                            f"max by (node, gpu_slot, container, interface) (ds01:allocation_utilization:ratio{MINE})"
                        ),
                    ),
                    "Each GPU or MIG device that I hold.",
                    units={"Utilization": "percentunit"},
                    width=FULL,
                ),
                lines(
                    "My GPU history",
                    (Query(f"ds01:allocation_utilization:ratio{MINE}", "{{node}} {{gpu_slot}} {{container}}"),),
                    "percentunit",
                    "Utilization of my allocations.",
                    maximum=1,
                    width=HALF,
                ),
                lines(
                    "Held and used",
                    (
                        Query(f"sum(ds01:user_equivalents:held{MINE})", "held"),
                        Query(f"sum(ds01:user_equivalents:weighted{MINE})", "used (held x utilization)"),
                    ),
                    "short",
                    "GPU-equivalents; the difference between the two lines is waste.",
                    width=HALF,
                ),
            ),
        ),
        Section(
            "My containers",
            (
                lines(
                    "CPU per container",
                    (
                        Query(
                            f"rate(gpucommons_container_cpu_seconds_total[$__rate_interval]) {MY_CONTAINERS}",
                            "{{container}}",
                        ),
                    ),
                    "short",
                    "Cores used by each of my containers.",
                ),
                lines(
                    "Memory per container",
                    (Query(f"gpucommons_container_memory_bytes {MY_CONTAINERS}", "{{container}}"),),
                    "bytes",
                    "Host memory, not GPU memory.",
                ),
            ),
        ),
        Section(
            "My account",
            (
                lines(
                    "GPU-hours per hour",
                    (
                        Query(f"sum(gpucommons:owner_gpu_seconds:increase1h{OWNED}) / 3600", "held"),
                        Query(f"sum(gpucommons:owner_active_gpu_seconds:increase1h{OWNED}) / 3600", "active"),
                    ),
                    "short",
                    "From the ledger.",
                ),
                lines(
                    "Energy per hour",
                    (Query(f"sum(gpucommons:owner_energy_joules:increase1h{OWNED}) / 3.6e6", "kWh"),),
                    "kwatth",
                    "GPU energy due to my processes.",
                ),
            ),
        ),
    ),
)
