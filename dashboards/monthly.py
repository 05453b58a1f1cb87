"""DS01 Monthly: thirty days of users, groups, GPU-hours, efficiency and waste."""

from dashboards.board import Board, Section
from dashboards.panels import FULL, HALF, QUARTER, Query, lines, number, ranking, rows

NODE = '{node=~"$node"}'
HELD = f"sum by (owner) (increase(gpucommons_owner_gpu_equivalent_seconds_total{NODE}[$__range]))"
SLOTS = f"sum by (owner) (increase(gpucommons_owner_held_gpu_seconds_total{NODE}[$__range]))"
ACTIVE = f"sum by (owner) (increase(gpucommons_owner_active_gpu_seconds_total{NODE}[$__range]))"
IDLE = f"sum by (owner) (increase(gpucommons_owner_idle_gpu_seconds_total{NODE}[$__range]))"
ENERGY = f"sum by (owner) (increase(gpucommons_owner_energy_joules_total{NODE}[$__range]))"

BOARD = Board(
    uid="ds01-monthly",
    title="DS01 Monthly",
    about="The last 30 days, as far as Prometheus keeps them: 7 days by default. The ledger keeps everything:"
    " gpucommons report --since 30d.",
    since="now-30d",
    refresh="15m",
    sections=(
        Section(
            "Totals",
            (
                number(
                    "Users",
                    f"count(sum by (user) (count_over_time(ds01:user_equivalents:held{NODE}[$__range])))",
                    "short",
                    "Users who held a GPU.",
                    width=QUARTER,
                ),
                number(
                    "GPU-hours",
                    f"sum({HELD}) / 3600",
                    "short",
                    "Held GPU-hours in GPU-equivalents.",
                    decimals=1,
                    width=QUARTER,
                ),
                number(
                    "Efficiency",
                    f"sum({ACTIVE}) / sum({SLOTS})",
                    "percentunit",
                    "Active share of the held time.",
                    width=QUARTER,
                ),
                number(
                    "Energy",
                    f"sum({ENERGY}) / 3.6e6",
                    "kwatth",
                    "GPU energy with a known owner.",
                    decimals=2,
                    width=QUARTER,
                ),
            ),
        ),
        Section(
            "Owners",
            (
                ranking(
                    "Top 15 by GPU-hours",
                    Query(f"topk(15, {HELD}) / 3600", "{{owner}}"),
                    "short",
                    "Held GPU-hours in GPU-equivalents.",
                ),
                ranking(
                    "Efficiency",
                    Query(f"{ACTIVE} / ({SLOTS} > 0)", "{{owner}}"),
                    "percentunit",
                    "Active share of the held time.",
                ),
                rows(
                    "Owners",
                    {
                        "owner": "Owner",
                        "Value #A": "GPU-hours",
                        "Value #B": "Active hours",
                        "Value #C": "Idle hours",
                        "Value #D": "Energy",
                    },
                    (
                        Query(f"{HELD} / 3600"),
                        Query(f"{ACTIVE} / 3600"),
                        Query(f"{IDLE} / 3600"),
                        Query(f"{ENERGY} / 3.6e6"),
                    ),
                    "GPU-hours in GPU-equivalents; active and idle hours per GPU or MIG device.",
                    units={"GPU-hours": "short", "Energy": "kwatth"},
                    width=FULL,
                ),
            ),
        ),
        Section(
            "Groups",
            (
                ranking(
                    "GPU-equivalents held by group",
                    Query(
                        f"sum by (group) (ds01:user_equivalents:held{NODE} * on (node, user) group_left (group)"
                        f" max by (node, user, group) (ds01_user_group_info{NODE}))",
                        "{{group}}",
                    ),
                    "short",
                    "Current GPU-equivalents of each group.",
                ),
                ranking(
                    "Members per group",
                    Query(f"max by (group) (ds01_group_members_total{NODE})", "{{group}}"),
                    "short",
                    "Users in each group.",
                ),
            ),
        ),
        Section(
            "Day by day",
            (
                lines(
                    "GPU-hours per day",
                    (Query(f"sum by (owner) (gpucommons:owner_gpu_seconds:increase1d{NODE}) / 3600", "{{owner}}"),),
                    "short",
                    "GPU-hours held in the preceding 24 hours.",
                    stacked=True,
                ),
                lines(
                    "Active GPU-hours per day",
                    (
                        Query(
                            f"sum by (owner) (gpucommons:owner_active_gpu_seconds:increase1d{NODE}) / 3600", "{{owner}}"
                        ),
                    ),
                    "short",
                    "Active GPU-hours in the preceding 24 hours.",
                    stacked=True,
                ),
                lines(
                    "Utilization",
                    (Query(f"avg by (node) (gpucommons:gpu_utilization:avg1d{NODE})", "{{node}}"),),
                    "percentunit",
                    "Daily means of all GPUs.",
                    maximum=1,
                ),
                lines(
                    "Waste",
                    (Query(f"ds01:waste:avg1d{NODE}", "{{node}}"),),
                    "percentunit",
                    "Share of allocations below 5 % utilization, daily means.",
                    maximum=1,
                ),
                lines(
                    "Utilization per user",
                    (Query(f"ds01:user_utilization:avg1d{NODE}", "{{user}}"),),
                    "percentunit",
                    "Daily means of each user's allocations.",
                    maximum=1,
                    width=HALF,
                ),
                lines(
                    "Energy per day",
                    (
                        Query(f"sum by (owner) (gpucommons:owner_energy_joules:increase1d{NODE}) / 3.6e6", "{{owner}}"),
                        Query(f"sum(gpucommons:gpu_power:avg1d{NODE}) * 24 / 1000", "all GPUs"),
                    ),
                    "kwatth",
                    "Energy per owner, and of all GPUs.",
                    width=HALF,
                ),
            ),
        ),
    ),
)
