"""DS01 Overview: health and allocation of the nodes at a glance."""

from dashboards.board import Board, Section
from dashboards.panels import FULL, HALF, QUARTER, THIRD, Query, Steps, lines, number, pie, rows

NODE = '{node=~"$node"}'

BOARD = Board(
    uid="ds01-overview",
    title="DS01 Overview",
    about="Which GPUs there are, who holds them, and how busy, hot and free they are.",
    sections=(
        Section(
            "GPUs",
            (
                number("Total GPUs", f"sum(gpucommons_gpus_present{NODE})", "short", "GPUs that answer now."),
                number(
                    "Lost GPUs",
                    f"sum(gpucommons_gpus_expected{NODE} - gpucommons_gpus_present{NODE})",
                    "short",
                    "GPUs that were seen and no longer answer.",
                    steps=Steps(1, 1),
                ),
                number(
                    "Average utilisation",
                    f"avg(gpucommons:gpu_utilization:ratio{NODE})",
                    "percentunit",
                    "Mean over all GPUs that are not split by MIG.",
                ),
                number(
                    "Memory in use",
                    f"sum(gpucommons:gpu_memory_used:bytes{NODE}) / sum(gpucommons:gpu_memory_usable:bytes{NODE})",
                    "percentunit",
                    "Of all memory that programs can have.",
                    steps=Steps(0.85, 0.95),
                ),
                number(
                    "Hottest GPU",
                    f"max(gpucommons:gpu_temperature:celsius{NODE})",
                    "celsius",
                    "The highest temperature of any GPU.",
                    steps=Steps(85, 90),
                ),
                number("Power", f"sum(gpucommons:gpu_power:watts{NODE})", "watt", "Draw of all GPUs together."),
            ),
        ),
        Section(
            "Allocation",
            (
                number("MIG instances", f"count(ds01_mig_slot_info{NODE})", "short", "MIG devices there are."),
                number(
                    "MIG allocated",
                    'count(count by (node, gpu_slot) (ds01_gpu_allocated{node=~"$node",gpu_slot=~".+[.].+"}))'
                    " or vector(0)",
                    "short",
                    "MIG devices that somebody holds.",
                ),
                number(
                    "MIG free",
                    f"count(ds01_mig_slot_info{NODE}) - ("
                    'count(count by (node, gpu_slot) (ds01_gpu_allocated{node=~"$node",gpu_slot=~".+[.].+"}))'
                    " or vector(0))",
                    "short",
                    "MIG devices that nobody holds.",
                ),
                number(
                    "GPU-equivalents free",
                    f"sum(ds01:equivalents:free{NODE})",
                    "short",
                    "A whole GPU is 1; a MIG device is its share of one.",
                    decimals=1,
                ),
                number("Active users", f"sum(ds01:active_users:count{NODE})", "short", "People who hold a GPU."),
                number(
                    "Wasted",
                    f"sum(ds01:waste:count{NODE})",
                    "short",
                    "Allocations whose utilisation is below 5 % now.",
                    steps=Steps(1, 4),
                ),
            ),
        ),
        Section(
            "Over time",
            (
                lines(
                    "GPU utilisation",
                    (
                        Query(f"gpucommons:gpu_utilization:ratio{NODE}", "{{node}} GPU {{gpu}}"),
                        Query(f"gpucommons:mig_utilization:ratio{NODE}", "{{node}} GPU {{gpu}} MIG {{GPU_I_ID}}"),
                    ),
                    "percentunit",
                    "Share of time in which a kernel ran; for MIG devices the activity of the graphics engine.",
                    most=1,
                ),
                lines(
                    "GPU memory",
                    (Query(f"gpucommons:gpu_memory_used:ratio{NODE}", "{{node}} GPU {{gpu}}"),),
                    "percentunit",
                    "Of the memory that programs can have.",
                    most=1,
                    steps=Steps(0.85, 0.95),
                ),
                lines(
                    "Temperature",
                    (Query(f"gpucommons:gpu_temperature:celsius{NODE}", "{{node}} GPU {{gpu}}"),),
                    "celsius",
                    "85 C is an alert, 90 C a critical one.",
                    steps=Steps(85, 90),
                ),
                lines(
                    "GPU-equivalents",
                    (
                        Query(f"sum(ds01:equivalents:allocated{NODE})", "allocated"),
                        Query(f"sum(ds01:equivalents:total{NODE})", "total"),
                    ),
                    "short",
                    "How much is held of what there is.",
                ),
            ),
        ),
        Section(
            "Who holds what",
            (
                rows(
                    "Allocations",
                    {
                        "node": "Node",
                        "gpu_slot": "GPU",
                        "user": "User",
                        "container": "Container",
                        "interface": "Interface",
                        "Value #B": "Utilisation",
                    },
                    (
                        Query(f"max by (node, gpu_slot, user, container, interface) (ds01_gpu_allocated{NODE})"),
                        Query(
                            "max by (node, gpu_slot, user, container, interface)"
                            f" (ds01:allocation_utilization:ratio{NODE})"
                        ),
                    ),
                    "Each GPU or MIG device, who holds it, in which container, and how busy it is.",
                    units={"Utilisation": "percentunit"},
                    width=16,
                ),
                pie(
                    "Containers by interface",
                    Query(f"sum by (interface) (ds01_containers_total{NODE})", "{{interface}}"),
                    "short",
                    "How the containers were made: orchestration, atomic, api, docker, other.",
                    width=THIRD,
                ),
            ),
        ),
        Section(
            "Rules",
            (
                number(
                    "Unmanaged containers",
                    f"sum(ds01_unmanaged_gpu_running{NODE})",
                    "short",
                    "Running containers that may use GPUs which were not allocated to them.",
                    steps=Steps(1, 3),
                    width=QUARTER,
                ),
                number(
                    "With all GPUs",
                    f"sum(ds01_unmanaged_gpu_all_access{NODE})",
                    "short",
                    "Containers that may use every GPU without an allocation, running or not.",
                    steps=Steps(1, 3),
                    width=QUARTER,
                ),
                number(
                    "Enforcement events",
                    f"sum(ds01_lifecycle_events_total{NODE})",
                    "short",
                    "Kills and warnings of the last 24 hours.",
                    width=QUARTER,
                ),
                number(
                    "Kills",
                    'sum(ds01_lifecycle_events_total{node=~"$node",action=~".+_kill"})',
                    "short",
                    "Containers that were ended in the last 24 hours: idle, over time or out of memory.",
                    width=QUARTER,
                ),
                lines(
                    "Enforcement events by action",
                    (Query(f"sum by (action) (ds01_lifecycle_events_total{NODE})", "{{action}}"),),
                    "short",
                    "Each point is the sum of the 24 hours before it.",
                    width=FULL,
                ),
            ),
        ),
        Section(
            "Health",
            (
                lines(
                    "Node health",
                    (Query(f"node_health_score{NODE}", "{{node}}"),),
                    "short",
                    "Headroom of CPU and memory, 0 (none) to 10 (idle).",
                    most=10,
                    width=HALF,
                ),
                rows(
                    "Firing alerts",
                    {"node": "Node", "severity": "Severity", "alertname": "Alert", "gpu_uuid": "GPU", "user": "User"},
                    (Query('ALERTS{alertstate="firing",node=~"$node"}'),),
                    "What Prometheus has found; Alertmanager tells people.",
                    width=HALF,
                ),
                rows(
                    "Unmanaged containers with GPUs",
                    {
                        "node": "Node",
                        "container": "Container",
                        "user": "User",
                        "gpu_count": "GPUs",
                        "access_type": "Access",
                        "running": "Runs",
                    },
                    (Query(f"ds01_unmanaged_gpu_container{NODE}"),),
                    "Containers that reach GPUs past the allocation.",
                    width=FULL,
                ),
            ),
        ),
    ),
)
