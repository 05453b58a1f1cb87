"""The weekly digest for the administrator: when it is due, and its text. Pure."""

from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Final, NamedTuple

from gpucommons.base.text import printable
from gpucommons.model.accounts import Amounts, PeriodAccounts

DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_SHOWN: Final = 5
_HOUR_NS: Final = 3600 * 10**9


class DigestSchedule(NamedTuple):
    """The weekday, 0 for Monday, and the hour of local time."""

    weekday: int
    hour: int


class LostGpu(NamedTuple):
    gpu: str
    wall_s: float


def digest_due(last: str, now: datetime, schedule: DigestSchedule) -> tuple[str, bool]:
    """The week of the newest digest, to be remembered, and whether it has to be sent now.

    `last` is the week of the last digest; empty at the first start, when no whole week has been seen. A clock that was
    set into the future and back does not stop the digest.
    """
    newest = _newest(now, schedule)
    if not last:
        return newest, False
    ahead = date.fromisoformat(last) - date.fromisoformat(newest)
    if ahead > timedelta(days=7):
        return newest, False
    return (newest, True) if last < newest else (last, False)


def _newest(now: datetime, schedule: DigestSchedule) -> str:
    """The day on which the newest digest was or is due."""
    day = now - timedelta(days=(now.weekday() - schedule.weekday) % 7)
    due = day.replace(hour=schedule.hour, minute=0, second=0, microsecond=0)
    return (due if due <= now else due - timedelta(days=7)).date().isoformat()


def digest_text(
    hostname: str, by_user: PeriodAccounts, by_gpu: PeriodAccounts, lost: Sequence[LostGpu], steps: Counter[str]
) -> str:
    """`steps` are the events of the ladder in the week, by type."""
    since, until = (datetime.fromtimestamp(at).strftime("%d %b %Y") for at in (by_user.since_s, by_user.until_s))
    total = by_user.total
    lines = [
        f"GPUs of {hostname} from {since} to {until}, in GPU-hours (a MIG device counts as one):",
        f"held {_hours(total.held_ns)}, active {_hours(total.active_ns)}, wasted (held and idle) "
        f"{_hours(total.idle_ns)}{_of(total.idle_ns, total.held_ns)}"
        + (f", not judged {_hours(total.unjudged_ns)}" if total.unjudged_ns else ""),
    ]
    if by_gpu.total_time is not None:
        time = by_gpu.total_time
        lines.append(f"free {_hours(time.free_ns)}, not known {_hours(time.unknown_ns)}")
    wasters = _wasters(by_user)
    lines.append("Most wasted:" if wasters else "Nothing was wasted.")
    lines += wasters
    lines.append(_lost_line(lost))
    lines.append(
        f"Idle holders: {steps['idle.notified']} messages, {steps['idle.reminded']} reminders, "
        f"{steps['idle.acted']} actions, {steps['idle.failed']} failures."
    )
    return "\n".join(lines)


def _wasters(accounts: PeriodAccounts) -> list[str]:
    def order(row: tuple[str, Amounts]) -> tuple[int, str]:
        return -row[1].idle_ns, row[0]

    # Below a tenth of an hour it would be shown as 0.
    wasted = [row for row in sorted(accounts.rows.items(), key=order) if row[1].idle_ns >= _HOUR_NS // 20]
    return [
        f"  {printable(name, 64)}: {_hours(amounts.idle_ns)} of {_hours(amounts.held_ns)} held"
        f"{_of(amounts.idle_ns, amounts.held_ns)}"
        for name, amounts in wasted[:_SHOWN]
    ]


def _lost_line(lost: Sequence[LostGpu]) -> str:
    if not lost:
        return "No GPU was lost."
    times = Counter(each.gpu for each in lost)
    last = {each.gpu: each.wall_s for each in sorted(lost, key=lambda each: each.wall_s)}
    parts = (
        f"GPU {gpu} ({f'{count} times, last ' if count > 1 else ''}{datetime.fromtimestamp(last[gpu]):%d %b %H:%M})"
        for gpu, count in sorted(times.items())
    )
    return f"GPUs lost: {', '.join(parts)}."


def _hours(ns: int) -> str:
    return f"{ns / _HOUR_NS:.1f} h"


def _of(part_ns: int, whole_ns: int) -> str:
    return f" ({part_ns / whole_ns:.0%})" if whole_ns else ""
