"""The texts: one paragraph for each message, and the weekly digest for the administrator. Pure.

A message says what is idle, what to do, and how to be left alone.
"""

import shlex
import time
from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from gpucommons.base.periods import spoken_duration
from gpucommons.base.text import printable
from gpucommons.model.accounts import Amounts, PeriodAccounts
from gpucommons.model.allocations import WorkloadKind
from gpucommons.model.idle import IdleStep
from gpucommons.model.workloads import IDLE_LABEL

# The texts: one paragraph each, with what is idle, what to do, and how to be left alone. Pure.

_LONGEST_NAME: Final = 64
_MAX_PIDS: Final = 3


class IdleAction(StrEnum):
    """The setting `idle.act`."""

    NONE = "none"
    PARK = "park"
    END_LEASE = "end_lease"


class HeldIdle(NamedTuple):
    """A holder whose slots are all idle. `name` is that of the container, pod, job or command.

    `user` is empty for a pod. `account` is the name that is billed. `since_wall_s` is when it got its first slot; None
    if that is not known. `can_park`: programs are parked on this node.
    """

    key: str
    kind: WorkloadKind
    name: str
    workload_id: str
    user: str
    account: str
    slots: tuple[str, ...]
    idle_s: float
    since_wall_s: float | None = None
    pids: tuple[int, ...] = ()
    namespace: str = ""
    runs: bool = True
    can_park: bool = False

    @property
    def lease(self) -> str:
        return self.workload_id.removeprefix("lease/") if self.kind is WorkloadKind.LEASE else ""

    @property
    def idle_text(self) -> str:
        return spoken_duration(self.idle_s)

    @property
    def subject(self) -> str:
        """`container lab`, `train.py (pid 4711)`."""
        name = printable(self.name, _LONGEST_NAME)
        match self.kind:
            case WorkloadKind.PROCESS:
                return f"{name or 'program'} ({_pids(self.pids)})" if self.pids else name or "programs"
            case WorkloadKind.LEASE:
                return f"lease {self.lease} ({name})"
            case WorkloadKind.JOB:
                return f"batch job {name}"
            case _:
                return f"{self.kind.value} {name}"


def _pids(pids: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, pids[:_MAX_PIDS]))
    more = f" and {len(pids) - _MAX_PIDS} more" if len(pids) > _MAX_PIDS else ""
    return f"pid {shown}" if len(pids) == 1 else f"pids {shown}{more}"


def gpus(slots: tuple[str, ...]) -> str:
    return f"GPU {slots[0]}" if len(slots) == 1 else f"GPUs {', '.join(slots)}"


def subject_of(held: HeldIdle, step: IdleStep, action: IdleAction, hostname: str) -> str:
    """The subject of an email."""
    what = gpus(held.slots)
    if step is IdleStep.ACT:
        done = "your program was parked" if action is IdleAction.PARK else f"lease {held.lease} was ended"
        return f"{hostname}: {done} after {held.idle_text} without use of {what}"
    again = "Reminder: " if step is IdleStep.REMIND else ""
    return f"{again}{hostname}: {what} held idle for {held.idle_text}"


def text_of(held: HeldIdle, step: IdleStep, action: IdleAction, act_in_s: float, hostname: str) -> str:
    """`act_in_s` is the idle time until the agent acts; 0 if it will not."""
    if step is IdleStep.ACT:
        return _describe_action(held, action, hostname)
    return " ".join(
        part
        for part in (
            "Reminder:" if step is IdleStep.REMIND else "",
            f"{_state(held, hostname)}.",
            f"To release {'it' if len(held.slots) == 1 else 'them'}: {_release(held)}.",
            _next(held, action, act_in_s),
            f"To be left alone: {_opt_out(held)}.",
        )
        if part
    )


def _state(held: HeldIdle, hostname: str) -> str:
    have = "has" if len(held.slots) == 1 else "have"
    since = f" since {clock_text(held.since_wall_s)}" if held.since_wall_s is not None else ""
    by = f"your {held.subject}" if held.user else held.subject
    return f"{gpus(held.slots)} of {hostname} {have} been held by {by}{since}, and not used by it for {held.idle_text}"


def event_sentence(held: HeldIdle) -> str:
    return f"{held.subject} has not used {gpus(held.slots)} for {held.idle_text}"


def _release(held: HeldIdle) -> str:
    name = shlex.quote(printable(held.name, _LONGEST_NAME))
    match held.kind:
        case WorkloadKind.LEASE:
            return f"end the command, or run `gpucommons cancel {held.lease}`"
        case WorkloadKind.CONTAINER if not held.runs:
            return f"remove the container, such as with `docker rm {name}`"
        case WorkloadKind.CONTAINER:
            return f"stop the container, such as with `docker stop {name}`"
        case WorkloadKind.POD:
            namespace = shlex.quote(printable(held.namespace, _LONGEST_NAME))
            return f"delete the pod, such as with `kubectl -n {namespace} delete pod {name}`"
        case WorkloadKind.JOB:
            return f"end the job with `scancel {name}`"
    kill = f"end the program, such as with `kill {held.pids[0]}`" if held.pids else "end the program"
    if held.can_park and held.pids:
        return f"{kill}; `gpucommons park {held.pids[0]}` keeps it and moves its GPU memory to host memory"
    return kill


def _next(held: HeldIdle, action: IdleAction, act_in_s: float) -> str:
    if not act_in_s:
        return ""
    what = "its GPU memory is moved to host memory" if action is IdleAction.PARK else f"lease {held.lease} is ended"
    return f"If this does not change, {what} after {spoken_duration(act_in_s)} more."


def _opt_out(held: HeldIdle) -> str:
    ask = "ask the administrator for an exemption"
    match held.kind:
        case WorkloadKind.CONTAINER:
            return f"start the container with the label {IDLE_LABEL}=no, or {ask}"
        case WorkloadKind.POD:
            return f"give the pod the annotation {IDLE_LABEL}=no, or {ask}"
    return ask


def _describe_action(held: HeldIdle, action: IdleAction, hostname: str) -> str:
    idle = f"it had not used {gpus(held.slots)} of {hostname} for {held.idle_text}"
    if action is IdleAction.PARK:
        pid = f" {held.pids[0]}" if held.pids else " PID"
        return (
            f"The GPU memory of your {held.subject} is moved to host memory, because {idle}. Nothing is lost: the "
            f"program goes on when it uses the CPU again, or with `gpucommons wake{pid}`."
        )
    return f"Your {held.subject} was ended, because {idle}. Its command got SIGTERM."


def clock_text(wall_s: float) -> str:
    """Local time, such as `16 Nov 06:12`."""
    return time.strftime("%d %b %H:%M", time.localtime(wall_s))


# The weekly digest for the administrator: when it is due, and its text. Pure.

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
    """`steps` are the events of the escalation in the week, by type."""
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
    times = Counter(loss.gpu for loss in lost)
    last = {loss.gpu: loss.wall_s for loss in sorted(lost, key=lambda loss: loss.wall_s)}
    parts = (
        f"GPU {gpu} ({f'{count} times, last ' if count > 1 else ''}{datetime.fromtimestamp(last[gpu]):%d %b %H:%M})"
        for gpu, count in sorted(times.items())
    )
    return f"GPUs lost: {', '.join(parts)}."


def _hours(ns: int) -> str:
    return f"{ns / _HOUR_NS:.1f} h"


def _of(part_ns: int, whole_ns: int) -> str:
    return f" ({part_ns / whole_ns:.0%})" if whole_ns else ""
