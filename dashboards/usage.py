"""DS01 My Usage: what one researcher holds, uses and is billed."""

from dashboards.board import Board, Section, Variable
from dashboards.panels import FULL, HALF, Query, lines, number, rows

MINE = '{node=~"$node",user="$user"}'
OWNED = '{node=~"$node",owner="$user"}'
MY_CONTAINERS = f"* on (node, container) group_left () max by (node, container) (ds01_gpu_allocated{MINE})"

BOARD = Board(
    uid="ds01-user",
    title="DS01 My Usage",
    about="Choose your name: your GPUs, how well they are used, and what they cost.",
    variables=(Variable("user", "label_values(ds01_user_containers_count, user)"),),
    sections=(
        Section(
            "My resources",
            (
                number(
                    "MIG-equivalents", f"sum(ds01_user_mig_allocated{MINE})", "short", "What I hold, in MIG devices."
                ),
                number("GPUs", f"sum(ds01_user_gpus_allocated{MINE})", "short", "Whole GPUs that I hold."),
                number(
                    "GPU-equivalents",
                    f"sum(ds01_user_gpu_equivalents{MINE})",
                    "short",
                    "A whole GPU is 1; a MIG device is its share of one.",
                    decimals=2,
                ),
                number("Containers", f"sum(ds01_user_containers_count{MINE})", "short", "My containers."),
                number(
                    "My GPU utilisation",
                    f"avg(ds01:user_utilization:avg{MINE})",
                    "percentunit",
                    "Mean over all that I hold, now.",
                ),
                number(
                    "My GPU memory",
                    f"avg(ds01:user_memory_used:ratio{MINE})",
                    "percentunit",
                    "Of the memory of what I hold.",
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
                        "Value #B": "Utilisation",
                    },
                    (
                        Query(f"max by (node, gpu_slot, container, interface) (ds01_gpu_allocated{MINE})"),
                        Query(
                            f"max by (node, gpu_slot, container, interface) (ds01:allocation_utilization:ratio{MINE})"
                        ),
                    ),
                    "Each GPU or MIG device that I hold.",
                    units={"Utilisation": "percentunit"},
                    width=FULL,
                ),
                lines(
                    "My GPU history",
                    (Query(f"ds01:allocation_utilization:ratio{MINE}", "{{node}} {{gpu_slot}} {{container}}"),),
                    "percentunit",
                    "Utilisation of what I held.",
                    most=1,
                    width=HALF,
                ),
                lines(
                    "Held and used",
                    (
                        Query(f"sum(ds01:user_equivalents:held{MINE})", "held"),
                        Query(f"sum(ds01:user_equivalents:weighted{MINE})", "used (held x utilisation)"),
                    ),
                    "short",
                    "GPU-equivalents: the gap between the two lines is waste.",
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
                    "Cores that each of my containers keeps busy.",
                ),
                lines(
                    "Memory per container",
                    (Query(f"gpucommons_container_memory_bytes {MY_CONTAINERS}", "{{container}}"),),
                    "bytes",
                    "Memory of the host, not of the GPU.",
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
                    "As the ledger has it.",
                ),
                lines(
                    "Energy per hour",
                    (Query(f"sum(gpucommons:owner_energy_joules:increase1h{OWNED}) / 3.6e6", "kWh"),),
                    "kwatth",
                    "Share of the GPUs' energy that is mine.",
                ),
            ),
        ),
    ),
)
