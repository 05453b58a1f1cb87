"""The texts: one paragraph each, with what is idle, what to do, and how to be left alone. Pure."""

import shlex
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpucommons.base.periods import spoken_duration
from gpucommons.base.text import printable
from gpucommons.model.allocations import WorkloadKind
from gpucommons.model.idle import IdleStep
from gpucommons.model.workloads import IDLE_LABEL

_LONGEST_NAME: Final = 64
_MOST_PIDS: Final = 3


class IdleAction(StrEnum):
    """The setting `idle.act`."""

    NONE = "none"
    PARK = "park"
    END_LEASE = "end_lease"


@dataclass(frozen=True, slots=True)
class HeldIdle:
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
    shown = ", ".join(map(str, pids[:_MOST_PIDS]))
    more = f" and {len(pids) - _MOST_PIDS} more" if len(pids) > _MOST_PIDS else ""
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
        return _acted(held, action, hostname)
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
    one = len(held.slots) == 1
    since = f" since {clock_text(held.since_wall_s)}" if held.since_wall_s is not None else ""
    by = f"your {held.subject}" if held.user else held.subject
    return (
        f"{gpus(held.slots)} of {hostname} {'has' if one else 'have'} been held by {by}{since}, and not used by it for "
        f"{held.idle_text}"
    )


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


def _acted(held: HeldIdle, action: IdleAction, hostname: str) -> str:
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
