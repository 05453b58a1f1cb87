"""Sharing: queues, turns and quotas of the GPUs that several clients take turns on, and whose memory is whose."""

from dashboards.board import Board, Section
from dashboards.panels import FULL, HALF, QUARTER, THIRD, Query, Steps, lines, number, rows

NODE = '{node=~"$node"}'
GPU = "{{node}} GPU {{gpu_index}}"
BY_POD = "by (node, namespace, pod, gpu_uuid)"
CLIENT = "{{namespace}}/{{pod}} {{client_id}}"


def quantile(share: float, metric: str, by: str = "node") -> str:
    return f"histogram_quantile({share}, sum by (le, {by}) (rate({metric}_bucket{NODE}[$__rate_interval])))"


BOARD = Board(
    uid="gpucommons-sharing",
    title="GPU Sharing",
    about="Who runs and who waits on each shared GPU, how long turns take, and who is at the limit of a quota.",
    sections=(
        Section(
            "Now",
            (
                number(
                    "Running",
                    f"sum(nvshare_scheduler_running_clients{NODE})",
                    "short",
                    "Clients whose turn it is.",
                    width=QUARTER,
                ),
                number(
                    "Waiting for a turn",
                    f"sum(nvshare_scheduler_request_queue_clients{NODE})",
                    "short",
                    "Clients that asked and do not run yet.",
                    width=QUARTER,
                ),
                number(
                    "Waiting for memory",
                    f"sum(nvshare_scheduler_wait_queue_clients{NODE})",
                    "short",
                    "Clients that do not fit beside those that run.",
                    width=QUARTER,
                ),
                number(
                    "Overloaded GPUs",
                    f"sum(nvshare_scheduler_memory_overloaded{NODE})",
                    "short",
                    "Where the running clients outgrew the memory: one at a time.",
                    steps=Steps(1, 2),
                    width=QUARTER,
                ),
            ),
        ),
        Section(
            "Queues",
            (
                lines(
                    "Running",
                    (Query(f"nvshare_scheduler_running_clients{NODE}", GPU),),
                    "short",
                    "Clients that run, per GPU.",
                    width=THIRD,
                ),
                lines(
                    "Waiting for a turn",
                    (Query(f"nvshare_scheduler_request_queue_clients{NODE}", GPU),),
                    "short",
                    "Clients that asked, per GPU.",
                    width=THIRD,
                ),
                lines(
                    "Waiting for memory",
                    (Query(f"nvshare_scheduler_wait_queue_clients{NODE}", GPU),),
                    "short",
                    "Clients that do not fit, per GPU.",
                    width=THIRD,
                ),
                lines(
                    "Memory of those that run",
                    (
                        Query(f"nvshare_scheduler_running_memory_bytes{NODE}", GPU),
                        Query(f"nvshare_scheduler_memory_safe_limit_bytes{NODE}", f"{GPU} safe limit"),
                    ),
                    "bytes",
                    "Against the limit up to which clients run together.",
                ),
                lines(
                    "Turns ended early",
                    (
                        Query(
                            f"sum by (node, reason) (rate(nvshare_scheduler_drop_lock_total{NODE}[$__rate_interval]))",
                            "{{node}} {{reason}}",
                        ),
                    ),
                    "ops",
                    "By reason: quantum, quota, memory, revoked.",
                ),
            ),
        ),
        Section(
            "Turns",
            (
                lines(
                    "Wait for a turn",
                    (
                        Query(quantile(0.5, "gpucommons_sharing_wait_seconds"), "{{node}} median"),
                        Query(quantile(0.95, "gpucommons_sharing_wait_seconds"), "{{node}} 95 %"),
                    ),
                    "s",
                    "From asking to running.",
                    width=THIRD,
                ),
                lines(
                    "Length of a turn",
                    (
                        Query(quantile(0.5, "gpucommons_sharing_turn_seconds"), "{{node}} median"),
                        Query(quantile(0.95, "gpucommons_sharing_turn_seconds"), "{{node}} 95 %"),
                    ),
                    "s",
                    "From running to released.",
                    width=THIRD,
                ),
                lines(
                    "Slowness to release",
                    (Query(quantile(0.95, "gpucommons_sharing_drop_to_release_seconds"), "{{node}} 95 %"),),
                    "s",
                    "From being asked to stop to having stopped.",
                    width=THIRD,
                ),
                lines(
                    "Waiting now",
                    (
                        Query(
                            f"max by (node, namespace, pod, why) (gpucommons_sharing_client_wait_seconds{NODE})",
                            "{{node}} {{namespace}}/{{pod}} for {{why}}",
                        ),
                    ),
                    "s",
                    "Who waits, for how long already, and for what.",
                    width=HALF,
                ),
                rows(
                    "How each GPU is shared",
                    {"node": "Node", "gpu": "GPU", "way": "Way", "reason": "Reason"},
                    (Query(f"gpucommons_sharing_way_info{NODE}"),),
                    "Alone, together or in turns, and why.",
                    width=HALF,
                ),
                lines(
                    "Messages",
                    (
                        Query(
                            f"sum by (node, type) (rate(nvshare_scheduler_messages_total{NODE}[$__rate_interval]))",
                            "{{node}} {{type}}",
                        ),
                    ),
                    "ops",
                    "Between the scheduler and its clients.",
                    width=FULL,
                ),
            ),
        ),
        Section(
            "Quotas",
            (
                lines(
                    "Compute used of the quota",
                    (
                        Query(
                            f"nvshare_client_core_window_usage_ms{NODE} / nvshare_client_core_window_limit_ms{NODE}",
                            CLIENT,
                        ),
                    ),
                    "percentunit",
                    "In the current window; above 1 the client waits for the next.",
                ),
                lines(
                    "Memory used of the quota",
                    (
                        Query(
                            f"nvshare_client_managed_allocated_bytes{NODE}"
                            f" / (nvshare_client_memory_quota_bytes{NODE} > 0)",
                            CLIENT,
                        ),
                    ),
                    "percentunit",
                    "Clients without a memory quota are not shown.",
                    steps=Steps(0.9, 1),
                ),
                lines(
                    "Held to the quota",
                    (Query(f"nvshare_client_throttled{NODE} == 1", CLIENT),),
                    "short",
                    "Clients that could use more than they may.",
                    bars=True,
                    width=HALF,
                ),
                lines(
                    "Debt",
                    (Query(f"nvshare_client_quota_debt_ms{NODE} / 1000", CLIENT),),
                    "s",
                    "Compute time that was used ahead of the quota.",
                    width=HALF,
                ),
                rows(
                    "Clients",
                    {
                        "node": "Node",
                        "namespace": "Namespace",
                        "pod": "Pod",
                        "gpu_uuid": "GPU",
                        "Value #A": "Compute quota",
                        "Value #B": "In force",
                        "Value #C": "Memory",
                        "Value #D": "Memory quota",
                    },
                    (
                        Query(f"max {BY_POD} (nvshare_client_core_quota_config_percent{NODE})"),
                        Query(f"max {BY_POD} (nvshare_client_core_quota_effective_percent{NODE})"),
                        Query(f"sum {BY_POD} (nvshare_client_managed_allocated_bytes{NODE})"),
                        Query(f"max {BY_POD} (nvshare_client_memory_quota_bytes{NODE})"),
                    ),
                    "Quotas as configured and as in force among those that want to run. A memory quota of 0 is none.",
                    units={
                        "Compute quota": "percent",
                        "In force": "percent",
                        "Memory": "bytes",
                        "Memory quota": "bytes",
                    },
                ),
            ),
        ),
        Section(
            "Whose",
            (
                lines(
                    "Memory by owner",
                    (
                        Query(f"sum by (node, owner) (gpucommons_owner_gpu_memory_bytes{NODE})", "{{node}} {{owner}}"),
                        Query(
                            f"sum by (node, reason) (gpucommons_gpu_unattributed_bytes{NODE})",
                            "{{node}} nobody: {{reason}}",
                        ),
                    ),
                    "bytes",
                    "All used memory: what has an owner, and what has none and why.",
                    stacked=True,
                ),
                lines(
                    "Compute by owner",
                    (Query(f"sum by (node, owner) (gpucommons_owner_gpu_sm_ratio{NODE})", "{{node}} {{owner}}"),),
                    "short",
                    "GPUs' worth of SM time.",
                    stacked=True,
                ),
            ),
        ),
    ),
)
