"""DS01 Overview: health and allocation of the nodes."""

from dashboards.board import Board, Section
from dashboards.panels import FULL, HALF, QUARTER, THIRD, Query, Steps, lines, number, pie, rows

NODE = '{node=~"$node"}'

BOARD = Board(
    uid="ds01-overview",
    title="DS01 Overview",
    about="GPUs and their allocation, utilization, temperature and health.",
    sections=(
        Section(
            "GPUs",
            (
                number("Total GPUs", f"sum(gpucommons_gpus_present{NODE})", "short", "GPUs that answer now."),
                number(
                    "Lost GPUs",
                    f"sum(gpucommons_gpus_expected{NODE} - gpucommons_gpus_present{NODE})",
                    "short",
                    "GPUs that answered before and do not answer now.",
                    steps=Steps(1, 1),
                ),
                number(
                    "Average utilization",
                    f"avg(gpucommons:gpu_utilization:ratio{NODE})",
                    "percentunit",
                    "Mean of all GPUs without MIG.",
                ),
                number(
                    "Memory in use",
                    f"sum(gpucommons:gpu_memory_used:bytes{NODE}) / sum(gpucommons:gpu_memory_usable:bytes{NODE})",
                    "percentunit",
                    "Share of the memory that programs can use.",
                    steps=Steps(0.85, 0.95),
                ),
                number(
                    "Hottest GPU",
                    f"max(gpucommons:gpu_temperature:celsius{NODE})",
                    "celsius",
                    "Highest temperature of all GPUs.",
                    steps=Steps(85, 90),
                ),
                number("Power", f"sum(gpucommons:gpu_power:watts{NODE})", "watt", "Total power draw of all GPUs."),
            ),
        ),
        Section(
            "Allocation",
            (
                number("MIG instances", f"count(ds01_mig_slot_info{NODE})", "short", "MIG devices, allocated or not."),
                number(
                    "MIG allocated",
                    'count(count by (node, gpu_slot) (ds01_gpu_allocated{node=~"$node",gpu_slot=~".+[.].+"}))'
                    " or vector(0)",
                    "short",
                    "MIG devices that are held.",
                ),
                number(
                    "MIG free",
                    f"count(ds01_mig_slot_info{NODE}) - ("
                    'count(count by (node, gpu_slot) (ds01_gpu_allocated{node=~"$node",gpu_slot=~".+[.].+"}))'
                    " or vector(0))",
                    "short",
                    "MIG devices that are not held.",
                ),
                number(
                    "GPU-equivalents free",
                    f"sum(ds01:equivalents:free{NODE})",
                    "short",
                    "A whole GPU counts as 1, a MIG device as its share of a GPU.",
                    decimals=1,
                ),
                number("Active users", f"sum(ds01:active_users:count{NODE})", "short", "Users who hold a GPU."),
                number(
                    "Wasted allocations",
                    f"sum(ds01:waste:count{NODE})",
                    "short",
                    "Allocations with a current utilization below 5 %.",
                    steps=Steps(1, 4),
                ),
            ),
        ),
        Section(
            "Over time",
            (
                lines(
                    "GPU utilization",
                    (
                        Query(f"gpucommons:gpu_utilization:ratio{NODE}", "{{node}} GPU {{gpu}}"),
                        Query(f"gpucommons:mig_utilization:ratio{NODE}", "{{node}} GPU {{gpu}} MIG {{GPU_I_ID}}"),
                    ),
                    "percentunit",
                    "Share of time in which a kernel ran; for MIG devices, activity of the graphics engine.",
                    maximum=1,
                ),
                lines(
                    "GPU memory",
                    (Query(f"gpucommons:gpu_memory_used:ratio{NODE}", "{{node}} GPU {{gpu}}"),),
                    "percentunit",
                    "Share of the memory that programs can use.",
                    maximum=1,
                    steps=Steps(0.85, 0.95),
                ),
                lines(
                    "Temperature",
                    (Query(f"gpucommons:gpu_temperature:celsius{NODE}", "{{node}} GPU {{gpu}}"),),
                    "celsius",
                    "A warning fires above 85 C, a critical alert above 90 C.",
                    steps=Steps(85, 90),
                ),
                lines(
                    "GPU-equivalents",
                    (
                        Query(f"sum(ds01:equivalents:allocated{NODE})", "allocated"),
                        Query(f"sum(ds01:equivalents:total{NODE})", "total"),
                    ),
                    "short",
                    "Held GPU-equivalents and their total.",
                ),
            ),
        ),
        Section(
            "Allocations",
            (
                rows(
                    "Allocations",
                    {
                        "node": "Node",
                        "gpu_slot": "GPU",
                        "user": "User",
                        "container": "Container",
                        "interface": "Interface",
                        "Value #B": "Utilization",
                    },
                    (
                        Query(f"max by (node, gpu_slot, user, container, interface) (ds01_gpu_allocated{NODE})"),
                        Query(
                            "max by (node, gpu_slot, user, container, interface)"
                            f" (ds01:allocation_utilization:ratio{NODE})"
                        ),
                    ),
                    "Each held GPU or MIG device with its user, container and utilization.",
                    units={"Utilization": "percentunit"},
                    width=16,
                ),
                pie(
                    "Containers by interface",
                    Query(f"sum by (interface) (ds01_containers_total{NODE})", "{{interface}}"),
                    "short",
                    "How the containers were created: orchestration, atomic, api, docker or other.",
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
                    "Running containers with access to GPUs that were not allocated to them.",
                    steps=Steps(1, 3),
                    width=QUARTER,
                ),
                number(
                    "Access to all GPUs",
                    f"sum(ds01_unmanaged_gpu_all_access{NODE})",
                    "short",
                    "Containers with access to every GPU without an allocation, running or not.",
                    steps=Steps(1, 3),
                    width=QUARTER,
                ),
                number(
                    "Enforcement events",
                    f"sum(ds01_lifecycle_events_total{NODE})",
                    "short",
                    "Kills and warnings in the last 24 hours.",
                    width=QUARTER,
                ),
                number(
                    "Kills",
                    'sum(ds01_lifecycle_events_total{node=~"$node",action=~".+_kill"})',
                    "short",
                    "Containers killed in the last 24 hours for idleness, run time or memory.",
                    width=QUARTER,
                ),
                lines(
                    "Enforcement events by action",
                    (Query(f"sum by (action) (ds01_lifecycle_events_total{NODE})", "{{action}}"),),
                    "short",
                    "Each point is the number of events in the preceding 24 hours.",
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
                    maximum=10,
                    width=HALF,
                ),
                rows(
                    "Firing alerts",
                    {"node": "Node", "severity": "Severity", "alertname": "Alert", "gpu_uuid": "GPU", "user": "User"},
                    (Query('ALERTS{alertstate="firing",node=~"$node"}'),),
                    "Alerts that fire in Prometheus.",
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
                        "running": "Running",
                    },
                    (Query(f"ds01_unmanaged_gpu_container{NODE}"),),
                    "Containers with access to GPUs that were not allocated to them.",
                    width=FULL,
                ),
            ),
        ),
    ),
)
