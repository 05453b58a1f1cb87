"""Judges the state of each slot, and how long a workload has held one without using it: the only rule for both.

Pure; what was judged before and the time are parameters.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from gpucommons.model.allocations import (
    Allocation,
    AllocationReading,
    Slot,
    SlotInfo,
    SlotsReading,
    SlotState,
    SlotStatus,
    WorkloadKind,
)
from gpucommons.model.gpu import Gpu
from gpucommons.model.idle import IdleKey, IdlePeriod, IdlePeriods
from gpucommons.model.names import slot_name
from gpucommons.model.ownership import Reason
from gpucommons.model.process_identity import ProcessKey
from gpucommons.model.snapshot import Readings
from gpucommons.rules.health import lost_sentence

# How long a workload has held a slot without using it: the only judgement of it. Pure; time is a parameter.
#
# A period is judged in a sliding window. Use that is short against the period, such as a notebook cell that checks the
# device, does not end it; work does, however long the period was. Time in which the use was not known is not counted.

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
    used = {
        allocation.slot.uuid
        for allocation in reading.allocations
        if allocation.active and allocation.kind is not WorkloadKind.LEASE
    }
    counted_s = elapsed_s if elapsed_s <= window.longest_gap_s else 0.0
    periods: dict[IdleKey, IdlePeriod] = dict(before) if keep_missing else {}
    rows = []
    for allocation in reading.allocations:
        if not allocation.share:
            rows.append(allocation)
            continue
        key = (allocation.workload_id, allocation.slot.uuid)
        active = allocation.active
        if allocation.kind is WorkloadKind.LEASE and allocation.slot.uuid in used:
            active = True
        elif not active and waiting_pids and any(process.pid in waiting_pids for process in allocation.processes):
            active = None
        period = after(_period_that_continues(allocation, before.get(key)), counted_s, active, window)
        if period is None:
            periods.pop(key, None)
            rows.append(allocation)
        else:
            periods[key] = period._replace(processes=_identity(allocation))
            rows.append(allocation._replace(idle_s=period.length_s))
    return reading._replace(allocations=tuple(rows)), periods


def _period_that_continues(allocation: Allocation, period: IdlePeriod | None) -> IdlePeriod | None:
    """A user's processes have no identity of their own: where all of them are new, so is the period."""
    if period is None or not period.processes:
        return period
    return period if period.processes & _identity(allocation) else None


def _identity(allocation: Allocation) -> frozenset[ProcessKey]:
    return frozenset(allocation.processes) if allocation.kind is WorkloadKind.PROCESS else frozenset()


def shortest_idle_s(holders: Iterable[Allocation]) -> float | None:
    """How long all of these have been idle; None if one of them is not."""
    idle = [holder.idle_s for holder in holders]
    return None if not idle or None in idle else min(seconds for seconds in idle if seconds is not None)


# Judges the state of each slot: the only rule for it. Pure; what was judged before and the time are parameters.

_SOURCE_DOWN = "a source of holders (Docker, Podman, the kubelet, DS01) does not answer"
_NO_PROCESS_LIST = "the driver did not list the processes on this GPU"
_NOT_VISIBLE = "processes outside the agent's pid namespace are hidden from it"


class Past(NamedTuple):
    """What is remembered of a slot: which workloads held it in which way, and since when."""

    holding: tuple[object, ...]
    since_wall_s: float | None


Pasts = Mapping[str, Past]


def judge(readings: Readings, pasts: Pasts | None, now_wall_s: float) -> tuple[SlotsReading | None, Pasts]:
    """The state of every slot, and what to remember for the next time. None where no GPU can be read: the past stands.

    `pasts` is None the first time: then it is not known when a state began.
    """
    if readings.gpus is None or readings.allocations is None:
        return None, {}
    slots = [
        _date(status, gpu, pasts, now_wall_s) for gpu, status in _judge(readings, readings.allocations, now_wall_s)
    ]
    remembered = {status.slot.uuid: past for status, past in slots}
    return SlotsReading(tuple(status for status, _ in slots)), remembered


def _judge(readings: Readings, allocations: AllocationReading, now_wall_s: float) -> Iterator[tuple[Gpu, SlotStatus]]:
    gpus = readings.gpus.gpus if readings.gpus else ()
    reservations = readings.leases.reservations if readings.leases else ()
    reserved = {uuid for allocation in reservations if allocation.is_active(now_wall_s) for uuid in allocation.slots}
    held: dict[str, list[Allocation]] = {}
    for allocation in allocations.allocations:
        if allocation.share:
            held.setdefault(allocation.slot.uuid, []).append(allocation)
    infos: dict[int, list[SlotInfo]] = {}
    for info in allocations.slots:
        if not info.is_rest:
            infos.setdefault(info.gpu_index, []).append(info)
    for gpu in sorted(gpus, key=lambda gpu: (gpu.identity.index, not gpu.up)):
        if not gpu.up:
            yield gpu, _judge_lost(gpu)
            continue
        for info in infos.get(gpu.identity.index, ()):
            holders = held.get(info.slot.uuid)
            if holders:
                yield gpu, _judge_held(info, holders)
            else:
                yield gpu, _unheld(info, _doubt(info, readings, allocations), info.slot.uuid in reserved)


def _judge_lost(gpu: Gpu) -> SlotStatus:
    index, uuid = gpu.identity.index, gpu.identity.uuid
    return SlotStatus(Slot(uuid, uuid, slot_name(index)), index, "", SlotState.LOST, lost_sentence(gpu))


def _judge_held(info: SlotInfo, holders: list[Allocation]) -> SlotStatus:
    idle = all(holder.active is False for holder in holders)
    state = SlotState.HELD_IDLE if idle else SlotState.BUSY
    return SlotStatus(info.slot, info.gpu_index, info.profile, state, holders=tuple(holders))


def _unheld(info: SlotInfo, doubt: str, is_reserved: bool) -> SlotStatus:
    state = SlotState.UNKNOWN if doubt else SlotState.RESERVED if is_reserved else SlotState.FREE
    return SlotStatus(info.slot, info.gpu_index, info.profile, state, doubt)


def _doubt(info: SlotInfo, readings: Readings, allocations: AllocationReading) -> str:
    """Why a slot without a known holder may be held; empty if it is free."""
    attribution = readings.attribution
    if attribution is None or not info.processes_known:
        return _NO_PROCESS_LIST
    if not allocations.complete:
        return _SOURCE_DOWN
    hidden = any(
        row.reason is Reason.NOT_VISIBLE and row.gpu_uuid == info.slot.gpu_uuid for row in attribution.unattributed
    )
    return _NOT_VISIBLE if hidden else ""


def _date(status: SlotStatus, gpu: Gpu, pasts: Pasts | None, now_wall_s: float) -> tuple[SlotStatus, Past]:
    past = None if pasts is None else pasts.get(status.slot.uuid)
    holding = _holding(status)
    changed = pasts is not None and (past is None or past.holding != holding)
    since_wall_s = now_wall_s if changed else past.since_wall_s if past else None
    if status.state is SlotState.LOST:
        since_wall_s = gpu.since_wall_s
    # A runtime knows when its container was started, also if that was before the agent.
    started = [holder.since_wall_s for holder in status.holders if holder.since_wall_s is not None]
    if started and (since_wall_s is None or min(started) < since_wall_s):
        since_wall_s = min(started)
    total, free = _memory(gpu, status.slot)
    dated = status._replace(
        since_wall_s=since_wall_s,
        idle_s=shortest_idle_s(status.holders) if status.state is SlotState.HELD_IDLE else None,
        memory_total_bytes=total,
        memory_free_bytes=free,
    )
    return dated, Past(holding, since_wall_s)


def _holding(status: SlotStatus) -> tuple[object, ...]:
    """What `since` dates: a slot that changes from busy to idle is still held."""
    kind = SlotState.BUSY if status.holders else status.state
    return kind, frozenset(holder.workload_id for holder in status.holders)


def _memory(gpu: Gpu, slot: Slot) -> tuple[int | None, int | None]:
    if slot.uuid == gpu.identity.uuid:
        return gpu.readings.memory_total_bytes, gpu.readings.memory_free_bytes
    for mig in gpu.mig:
        if mig.uuid == slot.uuid:
            memory = mig.memory
            return (mig.memory_bytes, None) if memory is None else (memory.total_bytes, memory.free_bytes)
    return None, None
