"""The usage that one snapshot bills. Pure."""

from collections.abc import Iterable

from gpucommons.model.allocations import Allocation, SlotInfo
from gpucommons.model.snapshot import Snapshot
from gpucommons.model.usage import Account, Holding, SlotUsage, UsageSample

_NS = 1_000_000_000


def usage_of(snapshot: Snapshot) -> UsageSample:
    """Has no slots if the GPUs could not be read: that is a gap, not a node without GPUs."""
    reading, gpus = snapshot.readings.allocations, snapshot.readings.gpus
    by_slot: dict[str, list[Allocation]] = {}
    for allocation in reading.allocations if reading else ():
        if allocation.share:
            by_slot.setdefault(allocation.slot.uuid, []).append(allocation)
    complete = reading is not None and reading.complete
    return UsageSample(
        round(snapshot.monotonic_s * _NS),
        snapshot.wall_s,
        tuple(_slot_usage(info, by_slot, complete) for info in (reading.slots if reading else ())),
        {gpu.identity.uuid: gpu.identity.name for gpu in (gpus.gpus if gpus else ()) if gpu.identity.name},
    )


def _slot_usage(info: SlotInfo, by_slot: dict[str, list[Allocation]], complete: bool) -> SlotUsage:
    if info.is_rest:
        # No MIG device covers it, so it cannot be held, whether all sources answered or not.
        return SlotUsage(info.slot)
    by_account: dict[Account, list[Allocation]] = {}
    for allocation in by_slot.get(info.slot.uuid, ()):
        by_account.setdefault(allocation.account, []).append(allocation)
    return SlotUsage(info.slot, tuple(_holding(account, rows) for account, rows in by_account.items()), complete)


def _holding(account: Account, rows: list[Allocation]) -> Holding:
    """One account on one slot. Active if any of its workloads is; idle only if all are known to be idle."""
    if len(rows) == 1:
        row = rows[0]
        return Holding(account, row.share, row.active, row.sm, row.memory_bytes, row.milliwatts)
    states = [row.active for row in rows]
    return Holding(
        account,
        sum(row.share for row in rows),
        True if True in states else None if None in states else False,
        _sum(row.sm for row in rows),
        _sum(row.memory_bytes for row in rows),
        _sum(row.milliwatts for row in rows),
    )


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
