"""DS01 Historical: a week of utilization and GPU-hours, held and used."""

from dashboards.board import Board, Section
from dashboards.panels import HALF, Query, heat, lines, number

NODE = '{node=~"$node"}'
IN_VIEW = "[$__range]"

BOARD = Board(
    uid="ds01-historical",
    title="DS01 Historical",
    about="The last week. Prometheus keeps 7 days by default; docs/monitoring.md explains how to keep more.",
    since="now-7d",
    refresh="5m",
    sections=(
        Section(
            "Selected time range",
            (
                number(
                    "GPU-hours held",
                    f"sum(increase(gpucommons_owner_gpu_equivalent_seconds_total{NODE}{IN_VIEW})) / 3600",
                    "short",
                    "GPU-hours held by all owners in the selected time range.",
                    decimals=1,
                ),
                number(
                    "GPU-hours active",
                    f"sum(increase(gpucommons_owner_active_gpu_seconds_total{NODE}{IN_VIEW})) / 3600",
                    "short",
                    "Held GPU-hours in which the GPU was used.",
                    decimals=1,
                ),
                number(
                    "Energy",
                    f"sum(increase(gpucommons_owner_energy_joules_total{NODE}{IN_VIEW})) / 3.6e6",
                    "kwatth",
                    "GPU energy with a known owner.",
                    decimals=2,
                ),
                number(
                    "Mean utilization",
                    f"avg(avg_over_time(gpucommons:gpu_utilization:ratio{NODE}{IN_VIEW}))",
                    "percentunit",
                    "Mean of all GPUs over the time range.",
                ),
                number(
                    "Mean waste",
                    f"avg(avg_over_time(ds01:waste:ratio{NODE}{IN_VIEW}))",
                    "percentunit",
                    "Share of allocations below 5 % utilization.",
                ),
                number(
                    "Peak users",
                    f"max_over_time(sum(ds01:active_users:count{NODE})[$__range:$__interval])",
                    "short",
                    "Highest number of concurrent users.",
                ),
            ),
        ),
        Section(
            "Utilization",
            (
                heat(
                    "Distribution of GPU utilization",
                    Query(f"gpucommons:gpu_utilization:avg1h{NODE}", "{{node}} GPU {{gpu}}"),
                    "percentunit",
                    "Number of GPUs at each utilization, from hourly means; darker means more.",
                ),
                lines(
                    "Utilization per GPU",
                    (Query(f"gpucommons:gpu_utilization:avg1h{NODE}", "{{node}} GPU {{gpu}}"),),
                    "percentunit",
                    "Hourly means.",
                    maximum=1,
                ),
                lines(
                    "Utilization per user",
                    (Query(f"ds01:user_utilization:avg1h{NODE}", "{{user}}"),),
                    "percentunit",
                    "Hourly means of each user's allocations.",
                    maximum=1,
                ),
            ),
        ),
        Section(
            "GPU-hours",
            (
                lines(
                    "GPU-hours by owner",
                    (Query(f"sum by (owner) (gpucommons:owner_gpu_seconds:increase1h{NODE}) / 3600", "{{owner}}"),),
                    "short",
                    "GPU-hours held in each hour.",
                    stacked=True,
                ),
                lines(
                    "Held and used per hour",
                    (
                        Query(f"sum(gpucommons:owner_gpu_seconds:increase1h{NODE}) / 3600", "held"),
                        Query(f"sum(gpucommons:owner_active_gpu_seconds:increase1h{NODE}) / 3600", "active"),
                        Query(f"sum(gpucommons:owner_used_gpu_seconds:increase1h{NODE}) / 3600", "weighted by use"),
                    ),
                    "short",
                    "GPU-hours of each hour, from the ledger.",
                ),
                lines(
                    "Held and used GPU-equivalents",
                    (
                        Query(f"sum(ds01:user_equivalents:held{NODE})", "held"),
                        Query(f"sum(ds01:user_equivalents:weighted{NODE})", "used (held x utilization)"),
                    ),
                    "short",
                    "GPU-equivalents.",
                ),
                lines(
                    "Waste",
                    (Query(f"ds01:waste:avg1h{NODE}", "{{node}}"),),
                    "percentunit",
                    "Share of allocations below 5 % utilization, hourly means.",
                    maximum=1,
                    width=HALF,
                ),
                lines(
                    "Power",
                    (Query(f"sum by (node) (gpucommons:gpu_power:avg1h{NODE})", "{{node}}"),),
                    "watt",
                    "Hourly means.",
                    width=HALF,
                ),
            ),
        ),
    ),
)
