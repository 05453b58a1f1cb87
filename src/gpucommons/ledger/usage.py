"""The usage that one snapshot bills. Pure."""

from collections.abc import Iterable

from gpucommons.model.allocations import (
    Account,
    Allocation,
    Holding,
    IdleCause,
    JobRequest,
    SlotInfo,
    SlotUsage,
    UsageSample,
)
from gpucommons.model.leases import Lease
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.rules.identities import job_of_lease

_NS = 1_000_000_000


def usage_of(snapshot: Snapshot) -> UsageSample:
    """Has no slots if the GPUs could not be read: that is a gap, not a node without GPUs."""
    reading, gpus = snapshot.readings.allocations, snapshot.readings.gpus
    causes = _IdleCauses(snapshot.readings)
    by_slot: dict[str, list[Allocation]] = {}
    for allocation in reading.allocations if reading else ():
        if allocation.share:
            by_slot.setdefault(allocation.slot.uuid, []).append(allocation)
    complete = reading is not None and reading.complete
    return UsageSample(
        round(snapshot.monotonic_s * _NS),
        snapshot.wall_s,
        tuple(_slot_usage(info, by_slot, complete, causes) for info in (reading.slots if reading else ())),
        {gpu.identity.uuid: gpu.identity.name for gpu in (gpus.gpus if gpus else ()) if gpu.identity.name},
        causes.requests,
    )


class _IdleCauses:
    """What the programs of each job do while they do not use the GPU, by what their processes do."""

    def __init__(self, readings: Readings) -> None:
        leases, processes = readings.leases, readings.processes
        self._trees = None if processes is None else processes.trees
        self._clients = {} if leases is None else {job_of_lease(id): key.pid for id, key in leases.clients.items()}
        self.requests = (
            {} if leases is None else {job_of_lease(each.request.id): _request(each) for each in leases.leases}
        )

    def of(self, row: Allocation) -> IdleCause | None:
        """None for a holding that is not idle or not of a job, and where none of its processes is known."""
        trees, account = self._trees, row.account
        if trees is None or row.active is not False or not (account.job or account.pod):
            return None
        client = self._clients.get(account.job)
        pids = tuple(process.pid for process in row.processes)
        roots = pids if client is None else (*pids, client)
        if not roots:
            return None
        if not trees.on_core.isdisjoint(roots):
            return IdleCause.CPU
        return IdleCause.NEITHER if trees.on_disk.isdisjoint(roots) else IdleCause.DISK


def _request(lease: Lease) -> JobRequest:
    request = lease.request
    waited_s = max(0.0, lease.since_s - request.arrived_s)
    return JobRequest(round(waited_s * 1000), request.memory_bytes and request.memory_bytes // 1024)


def _slot_usage(info: SlotInfo, by_slot: dict[str, list[Allocation]], complete: bool, causes: _IdleCauses) -> SlotUsage:
    if info.is_rest:
        # No MIG device covers it, so it cannot be held, whether all sources answered or not.
        return SlotUsage(info.slot)
    by_account: dict[Account, list[Allocation]] = {}
    for allocation in by_slot.get(info.slot.uuid, ()):
        by_account.setdefault(allocation.account, []).append(allocation)
    return SlotUsage(
        info.slot, tuple(_holding(account, rows, causes) for account, rows in by_account.items()), complete
    )


def _holding(account: Account, rows: list[Allocation], causes: _IdleCauses) -> Holding:
    """One account on one slot. Active if any of its workloads is; idle only if all are known to be idle."""
    if len(rows) == 1:
        row = rows[0]
        return Holding(account, row.share, row.active, row.sm, row.memory_bytes, row.milliwatts, causes.of(row))
    states = [row.active for row in rows]
    return Holding(
        account,
        sum(row.share for row in rows),
        True if True in states else None if None in states else False,
        _sum(row.sm for row in rows),
        _sum(row.memory_bytes for row in rows),
        _sum(row.milliwatts for row in rows),
        min((cause for row in rows if (cause := causes.of(row))), key=list(IdleCause).index, default=None),
    )


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
