"""GPU Sharing: queues, turns and quotas of shared GPUs, and memory by owner."""

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
    about="Running and waiting clients of each shared GPU, durations of turns, and use of quotas.",
    sections=(
        Section(
            "Now",
            (
                number(
                    "Running",
                    f"sum(nvshare_scheduler_running_clients{NODE})",
                    "short",
                    "Clients that have a turn.",
                    width=QUARTER,
                ),
                number(
                    "Waiting for a turn",
                    f"sum(nvshare_scheduler_request_queue_clients{NODE})",
                    "short",
                    "Clients that requested a turn and do not run yet.",
                    width=QUARTER,
                ),
                number(
                    "Waiting for memory",
                    f"sum(nvshare_scheduler_wait_queue_clients{NODE})",
                    "short",
                    "Clients that do not fit into memory with the running clients.",
                    width=QUARTER,
                ),
                number(
                    "Overloaded GPUs",
                    f"sum(nvshare_scheduler_memory_overloaded{NODE})",
                    "short",
                    "GPUs on which the running clients exceed the memory, so that one runs at a time.",
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
                    "Running clients per GPU.",
                    width=THIRD,
                ),
                lines(
                    "Waiting for a turn",
                    (Query(f"nvshare_scheduler_request_queue_clients{NODE}", GPU),),
                    "short",
                    "Clients that wait for a turn, per GPU.",
                    width=THIRD,
                ),
                lines(
                    "Waiting for memory",
                    (Query(f"nvshare_scheduler_wait_queue_clients{NODE}", GPU),),
                    "short",
                    "Clients that wait for memory, per GPU.",
                    width=THIRD,
                ),
                lines(
                    "Memory of running clients",
                    (
                        Query(f"nvshare_scheduler_running_memory_bytes{NODE}", GPU),
                        Query(f"nvshare_scheduler_memory_safe_limit_bytes{NODE}", f"{GPU} safe limit"),
                    ),
                    "bytes",
                    "Memory need of the running clients, and the limit up to which clients run together.",
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
                    "DROP_LOCK messages by reason: quantum, quota, memory or revoked.",
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
                    "Time from a request to its turn.",
                    width=THIRD,
                ),
                lines(
                    "Duration of a turn",
                    (
                        Query(quantile(0.5, "gpucommons_sharing_turn_seconds"), "{{node}} median"),
                        Query(quantile(0.95, "gpucommons_sharing_turn_seconds"), "{{node}} 95 %"),
                    ),
                    "s",
                    "Time from the start of a turn to its release.",
                    width=THIRD,
                ),
                lines(
                    "Time to release",
                    (Query(quantile(0.95, "gpucommons_sharing_drop_to_release_seconds"), "{{node}} 95 %"),),
                    "s",
                    "Time from DROP_LOCK to the release.",
                    width=THIRD,
                ),
                lines(
                    "Waiting now",
                    (
                        Query(
                            f"max by (node, name, why) (gpucommons_sharing_client_wait_seconds{NODE})",
                            "{{node}} {{name}} for {{why}}",
                        ),
                    ),
                    "s",
                    "Waiting clients with the time and the reason.",
                    width=HALF,
                ),
                rows(
                    "Way of sharing",
                    {"node": "Node", "gpu": "GPU", "way": "Way", "reason": "Reason"},
                    (Query(f"gpucommons_sharing_way_info{NODE}"),),
                    "How each GPU is shared: alone, together or in turns, and the reason.",
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
                    "Messages between the scheduler and its clients.",
                    width=FULL,
                ),
            ),
        ),
        Section(
            "Quotas",
            (
                lines(
                    "Compute quota used",
                    (
                        Query(
                            f"nvshare_client_core_window_usage_ms{NODE} / nvshare_client_core_window_limit_ms{NODE}",
                            CLIENT,
                        ),
                    ),
                    "percentunit",
                    "Usage in the current window; above 1 the client waits for the next window.",
                ),
                lines(
                    "Memory quota used",
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
                    "Throttled by quota",
                    (Query(f"nvshare_client_throttled{NODE} == 1", CLIENT),),
                    "short",
                    "Clients that have used up their compute quota.",
                    bars=True,
                    width=HALF,
                ),
                lines(
                    "Debt",
                    (Query(f"nvshare_client_quota_debt_ms{NODE} / 1000", CLIENT),),
                    "s",
                    "GPU time used beyond the quota and not yet repaid.",
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
                    "Quotas as configured, and in force among the requesting clients. Memory quota 0 means unlimited.",
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
                            "{{node}} no owner: {{reason}}",
                        ),
                    ),
                    "bytes",
                    "Used memory by owner, and memory without an owner by reason.",
                    stacked=True,
                ),
                lines(
                    "Compute by owner",
                    (Query(f"sum by (node, owner) (gpucommons_owner_gpu_sm_ratio{NODE})", "{{node}} {{owner}}"),),
                    "short",
                    "SM time in units of one GPU.",
                    stacked=True,
                ),
            ),
        ),
    ),
)
