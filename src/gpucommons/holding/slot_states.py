"""Judges the state of each slot: the only rule for it. Pure; what was judged before and the time are parameters."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from gpucommons.holding.idle_periods import shortest_idle_s
from gpucommons.model.allocations import Allocation, AllocationReading, SlotInfo
from gpucommons.model.gpu import Gpu
from gpucommons.model.ownership import Reason
from gpucommons.model.slots import SlotsReading, SlotState, SlotStatus
from gpucommons.model.snapshot import Readings
from gpucommons.model.usage import Slot
from gpucommons.rules.gpu_health import lost_sentence
from gpucommons.rules.identities import slot_name

_SOURCE_DOWN = "a source of holders (Docker, Podman, the kubelet, DS01) does not answer"
_NO_PROCESS_LIST = "the driver did not list the processes on this GPU"
_NOT_VISIBLE = "processes outside the agent's pid namespace are hidden from it"


class Past(NamedTuple):
    """What is remembered of a slot: which workloads held it in which way, and since when."""

    holding: tuple[object, ...]
    since_wall_s: float | None


Pasts = Mapping[str, Past]


def judge(readings: Readings, pasts: Pasts | None, now_wall_s: float) -> tuple[SlotsReading | None, Pasts]:
    """The state of every slot, and what to remember for the next time. None where no GPU can be read.

    `pasts` is None the first time: then it is not known when a state began.
    """
    if readings.gpus is None or readings.allocations is None:
        return None, pasts or {}
    slots = [
        _dated(status, gpu, pasts, now_wall_s) for gpu, status in _judged(readings, readings.allocations, now_wall_s)
    ]
    remembered = {status.slot.uuid: past for status, past in slots}
    return SlotsReading(tuple(status for status, _ in slots)), remembered


def _judged(readings: Readings, allocations: AllocationReading, now_wall_s: float) -> Iterator[tuple[Gpu, SlotStatus]]:
    gpus = readings.gpus.gpus if readings.gpus else ()
    reservations = readings.leases.reservations if readings.leases else ()
    reserved = {uuid for each in reservations if each.is_active(now_wall_s) for uuid in each.slots}
    held: dict[str, list[Allocation]] = {}
    for each in allocations.allocations:
        if each.share:
            held.setdefault(each.slot.uuid, []).append(each)
    infos: dict[int, list[SlotInfo]] = {}
    for info in allocations.slots:
        if not info.is_rest:
            infos.setdefault(info.gpu_index, []).append(info)
    for gpu in sorted(gpus, key=lambda gpu: (gpu.identity.index, not gpu.up)):
        if not gpu.up:
            yield gpu, _lost(gpu)
            continue
        for info in infos.get(gpu.identity.index, ()):
            holders = held.get(info.slot.uuid)
            if holders:
                yield gpu, _held(info, holders)
            else:
                yield gpu, _unheld(info, _doubt(info, readings, allocations), info.slot.uuid in reserved)


def _lost(gpu: Gpu) -> SlotStatus:
    index, uuid = gpu.identity.index, gpu.identity.uuid
    return SlotStatus(Slot(uuid, uuid, slot_name(index)), index, "", SlotState.LOST, lost_sentence(gpu))


def _held(info: SlotInfo, holders: list[Allocation]) -> SlotStatus:
    idle = all(each.active is False for each in holders)
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


def _dated(status: SlotStatus, gpu: Gpu, pasts: Pasts | None, now_wall_s: float) -> tuple[SlotStatus, Past]:
    past = None if pasts is None else pasts.get(status.slot.uuid)
    holding = _holding(status)
    changed = pasts is not None and (past is None or past.holding != holding)
    since_wall_s = now_wall_s if changed else past.since_wall_s if past else None
    if status.state is SlotState.LOST:
        since_wall_s = gpu.since_wall_s
    # A runtime knows when its container was started, also if that was before the agent.
    started = [each.since_wall_s for each in status.holders if each.since_wall_s is not None]
    if started and (since_wall_s is None or min(started) < since_wall_s):
        since_wall_s = min(started)
    total, free = _memory(gpu, status.slot)
    dated = replace(
        status,
        since_wall_s=since_wall_s,
        idle_s=shortest_idle_s(status.holders) if status.state is SlotState.HELD_IDLE else None,
        memory_total_bytes=total,
        memory_free_bytes=free,
    )
    return dated, Past(holding, since_wall_s)


def _holding(status: SlotStatus) -> tuple[object, ...]:
    """What `since` dates: a slot that changes from busy to idle is still held."""
    kind = SlotState.BUSY if status.holders else status.state
    return kind, frozenset(each.workload_id for each in status.holders)


def _memory(gpu: Gpu, slot: Slot) -> tuple[int | None, int | None]:
    if slot.uuid == gpu.identity.uuid:
        return gpu.readings.memory_total_bytes, gpu.readings.memory_free_bytes
    for mig in gpu.mig:
        if mig.uuid == slot.uuid:
            memory = mig.memory
            return (mig.memory_bytes, None) if memory is None else (memory.total_bytes, memory.free_bytes)
    return None, None
