"""How long a workload has held a slot without using it: the only judgement of it. Pure; time is a parameter.

A period is judged in a sliding window. Use that is short against the period, such as a notebook cell that checks the
device, does not end it; work does, however long the period was. Time in which the use was not known is not counted.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final, NamedTuple

from gpucommons.model.allocations import Allocation, AllocationReading, WorkloadKind
from gpucommons.model.idle import IdleKey, IdlePeriod, IdlePeriods
from gpucommons.model.process_identity import ProcessKey

# The window is divided into this many parts: use is remembered for each.
_PARTS: Final = 60


class IdleWindow(NamedTuple):
    """A period ends when more than `active_ratio` of it, or of its last `length_s` if it is longer, was used.

    A pause of more than `longest_gap_s` between two readings is not counted.
    """

    length_s: float = 7200.0
    active_ratio: float = 0.01
    longest_gap_s: float = 120.0


def after(period: IdlePeriod | None, elapsed_s: float, active: bool | None, window: IdleWindow) -> IdlePeriod | None:
    """The period after `elapsed_s` more; None while the slot is used. `active` is None where that is not known."""
    if active is None:
        return period
    if period is None:
        return None if active else IdlePeriod()
    length_s = period.length_s + elapsed_s
    part_s = window.length_s / _PARTS
    oldest = (length_s - window.length_s) / part_s
    uses = tuple(use for use in period.uses if use[0] >= oldest)
    if active:
        uses = _with(uses, int(length_s / part_s), elapsed_s)
        if sum(seconds for _, seconds in uses) > window.active_ratio * min(length_s, window.length_s):
            return None
    return period._replace(length_s=length_s, uses=uses)


def _with(uses: tuple[tuple[int, float], ...], part: int, seconds: float) -> tuple[tuple[int, float], ...]:
    if uses and uses[-1][0] == part:
        return (*uses[:-1], (part, uses[-1][1] + seconds))
    return (*uses, (part, seconds))


def judge_idle(
    reading: AllocationReading,
    before: IdlePeriods,
    elapsed_s: float,
    window: IdleWindow,
    waiting_pids: AbstractSet[int] = frozenset(),
    keep_missing: bool = False,
) -> tuple[AllocationReading, IdlePeriods]:
    """The reading with the idle time of each holder, and the periods to remember.

    Time in which one of its processes is kept waiting does not count. With `keep_missing`, while not every holder can
    be known, the periods of those that are missing are kept.
    """
    # The command of a lease may be a container, of any user: what it uses is used for the lease.
    used = {each.slot.uuid for each in reading.allocations if each.active and each.kind is not WorkloadKind.LEASE}
    counted_s = elapsed_s if elapsed_s <= window.longest_gap_s else 0.0
    periods: dict[IdleKey, IdlePeriod] = dict(before) if keep_missing else {}
    rows = []
    for each in reading.allocations:
        if not each.share:
            rows.append(each)
            continue
        key = (each.workload_id, each.slot.uuid)
        active = each.active
        if each.kind is WorkloadKind.LEASE and each.slot.uuid in used:
            active = True
        elif not active and waiting_pids and any(process.pid in waiting_pids for process in each.processes):
            active = None
        period = after(_continued(each, before.get(key)), counted_s, active, window)
        if period is None:
            periods.pop(key, None)
            rows.append(each)
        else:
            periods[key] = period._replace(processes=_identity(each))
            rows.append(replace(each, idle_s=period.length_s))
    return replace(reading, allocations=tuple(rows)), periods


def _continued(allocation: Allocation, period: IdlePeriod | None) -> IdlePeriod | None:
    """A user's processes have no identity of their own: where all of them are new, so is the period."""
    if period is None or not period.processes or allocation.kind is not WorkloadKind.PROCESS:
        return period
    return period if period.processes & _identity(allocation) else None


def _identity(allocation: Allocation) -> frozenset[ProcessKey]:
    return frozenset(allocation.processes) if allocation.kind is WorkloadKind.PROCESS else frozenset()


def shortest_idle_s(holders: Iterable[Allocation]) -> float | None:
    """How long all of these have been idle; None if one of them is not."""
    idle = [each.idle_s for each in holders]
    return None if not idle or None in idle else min(seconds for seconds in idle if seconds is not None)
