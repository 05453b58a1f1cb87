"""Historical: a week of utilisation and GPU-hours, raw against used."""

from dashboards.board import Board, Section
from dashboards.panels import HALF, Query, heat, lines, number

NODE = '{node=~"$node"}'
IN_VIEW = "[$__range]"

BOARD = Board(
    uid="ds01-historical",
    title="DS01 Historical",
    about="The last week. Prometheus keeps 7 days unless told otherwise; for more see the page on monitoring.",
    since="now-7d",
    refresh="5m",
    sections=(
        Section(
            "In view",
            (
                number(
                    "GPU-hours held",
                    f"sum(increase(gpucommons_owner_gpu_equivalent_seconds_total{NODE}{IN_VIEW})) / 3600",
                    "short",
                    "By anybody, in the time range that is shown.",
                    decimals=1,
                ),
                number(
                    "GPU-hours active",
                    f"sum(increase(gpucommons_owner_active_gpu_seconds_total{NODE}{IN_VIEW})) / 3600",
                    "short",
                    "Held while work was done.",
                    decimals=1,
                ),
                number(
                    "Energy",
                    f"sum(increase(gpucommons_owner_energy_joules_total{NODE}{IN_VIEW})) / 3.6e6",
                    "kwatth",
                    "Of the GPUs, as far as it has an owner.",
                    decimals=2,
                ),
                number(
                    "Mean utilisation",
                    f"avg(avg_over_time(gpucommons:gpu_utilization:ratio{NODE}{IN_VIEW}))",
                    "percentunit",
                    "Over all GPUs and the time range.",
                ),
                number(
                    "Mean waste",
                    f"avg(avg_over_time(ds01:waste:ratio{NODE}{IN_VIEW}))",
                    "percentunit",
                    "Share of the allocations that were below 5 %.",
                ),
                number(
                    "Peak of users",
                    f"max_over_time(sum(ds01:active_users:count{NODE})[$__range:$__interval])",
                    "short",
                    "The most people at once.",
                ),
            ),
        ),
        Section(
            "Utilisation",
            (
                heat(
                    "How busy the GPUs were",
                    Query(f"gpucommons:gpu_utilization:avg1h{NODE}", "{{node}} GPU {{gpu}}"),
                    "percentunit",
                    "Darker: more GPUs at that utilisation (hourly means).",
                ),
                lines(
                    "Utilisation per GPU",
                    (Query(f"gpucommons:gpu_utilization:avg1h{NODE}", "{{node}} GPU {{gpu}}"),),
                    "percentunit",
                    "Hourly means.",
                    most=1,
                ),
                lines(
                    "Utilisation per user",
                    (Query(f"ds01:user_utilization:avg1h{NODE}", "{{user}}"),),
                    "percentunit",
                    "Hourly means over what each held.",
                    most=1,
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
                    "Held in each hour.",
                    stacked=True,
                ),
                lines(
                    "Held and used by the hour",
                    (
                        Query(f"sum(gpucommons:owner_gpu_seconds:increase1h{NODE}) / 3600", "held"),
                        Query(f"sum(gpucommons:owner_active_gpu_seconds:increase1h{NODE}) / 3600", "active"),
                        Query(f"sum(gpucommons:owner_used_gpu_seconds:increase1h{NODE}) / 3600", "weighted by use"),
                    ),
                    "short",
                    "GPU-hours of each hour, as the ledger has them.",
                ),
                lines(
                    "Held against used",
                    (
                        Query(f"sum(ds01:user_equivalents:held{NODE})", "held"),
                        Query(f"sum(ds01:user_equivalents:weighted{NODE})", "used (held x utilisation)"),
                    ),
                    "short",
                    "GPU-equivalents.",
                ),
                lines(
                    "Waste",
                    (Query(f"ds01:waste:avg1h{NODE}", "{{node}}"),),
                    "percentunit",
                    "Share of the allocations below 5 %, hourly means.",
                    most=1,
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
