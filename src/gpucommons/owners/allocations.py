"""Combines claims and the processes on each GPU into allocations: which workload holds and uses which slot.

A slot with several holders is divided among them.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import groupby
from typing import NamedTuple

from gpucommons.model.allocations import (
    UNATTRIBUTED,
    WHOLE_SHARE,
    WHOLE_SM,
    Access,
    Account,
    Allocation,
    AllocationReading,
    AllocationState,
    SlotInfo,
    WorkloadKind,
)
from gpucommons.model.gpu import GpuReading
from gpucommons.model.names import job_of_lease
from gpucommons.model.ownership import Place, Portion, ProcessShare
from gpucommons.model.process_identity import ProcessKey
from gpucommons.owners.claims import Claim, Claims, account_of
from gpucommons.owners.slots import SlotTable

# Division of one slot among its holders: two owners of one slot are billed a half each. Pure.


def divide(claims: Sequence[Fraction]) -> list[int]:
    """The share of each claim, in billionths of the slot.

    Claims that fit are granted unchanged and leave the rest free. Claims that exceed the slot in sum are reduced in
    proportion and fill it completely.
    """
    if all(claim == 1 for claim in claims):
        # The usual case, without fractions: a slot may have hundreds of holders.
        return [(i + 1) * WHOLE_SHARE // len(claims) - i * WHOLE_SHARE // len(claims) for i in range(len(claims))]
    whole = max(sum(claims, Fraction(0)), Fraction(1))
    shares = []
    so_far, granted = Fraction(0), 0
    for claim in claims:
        so_far += claim
        up_to = int(so_far * WHOLE_SHARE / whole)
        shares.append(up_to - granted)
        granted = up_to
    return shares


# Combines claims and the processes on each GPU into allocations: which workload holds and uses which slot.
#
# Pure. The holders of a slot are the workloads that run on it, or that claimed it and run. If there are none, they are
# the stopped containers for which it is reserved. They share it evenly, or by the fractions that they claimed.

_GRAPHICS = "graphics"
_PLAIN = ("", None)
_WHOLE = Fraction(1)


@dataclass(slots=True)
class _Usage:
    """What the processes of one workload use of one slot; None is unknown."""

    sm: int | None = 0
    memory_bytes: int | None = 0
    milliwatts: int | None = 0
    processes: list[ProcessKey] = field(default_factory=list)


def _usage_of(shares: Sequence[ProcessShare], sm_scale: float) -> _Usage:
    _, _, keys, memory, sm, power, *_ = zip(*shares, strict=True)
    sm_amounts = _amounts(sm)
    if sm_amounts is not None and sm_scale != 1:
        sm_amounts = [round(amount * sm_scale) for amount in sm_amounts]
    return _Usage(
        None if sm_amounts is None else min(sum(sm_amounts), WHOLE_SM),
        _sum(_amounts(memory)),
        _sum(_amounts(power)),
        [key for key in keys if key is not None],
    )


def _amounts(portions: Sequence[Portion | None]) -> Sequence[int] | None:
    """None if one of them is not known."""
    amounts = [portion[0] for portion in portions if portion is not None]
    return amounts if len(amounts) == len(portions) else None


def _sum(amounts: Sequence[int] | None) -> int | None:
    return None if amounts is None else sum(amounts)


_UNKNOWN = _Usage(None, None, None)


@dataclass(slots=True)
class _Row:
    """One workload on one slot, before it becomes an Allocation."""

    claim: Claim
    fraction: Fraction
    usage: _Usage | None = None
    shares: list[ProcessShare] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return self.claim.running and (self.claim.by_itself or self.usage is not None)


@dataclass(slots=True)
class _SlotRows:
    rows: dict[str, _Row] = field(default_factory=dict)
    ownerless: _Usage | None = None
    ownerless_shares: list[ProcessShare] = field(default_factory=list)

    def shares_of(self, claim: Claim | None) -> list[ProcessShare]:
        """The list of the workload's processes on this slot."""
        if claim is None:
            return self.ownerless_shares
        row = self.rows.get(claim.id)
        if row is None:
            row = self.rows[claim.id] = _Row(claim, _WHOLE)
        return row.shares

    def sum_up(self, sm_scale: float) -> None:
        if self.ownerless_shares:
            self.ownerless = _usage_of(self.ownerless_shares, sm_scale)
        for row in self.rows.values():
            if row.shares:
                row.usage = _usage_of(row.shares, sm_scale)


class Block(NamedTuple):
    """The processes of one GPU that belong to each row, by position. `marks` is what decides that."""

    marks: tuple[Sequence[object], ...]
    rows: list[tuple[SlotInfo, Claim | None, "array[int]"]]


# By GPU, valid for as long as claims, slots and groups are the same objects.
Blocks = dict[str, Block]


def fold(
    table: SlotTable,
    claims: Claims,
    processes: Iterable[ProcessShare] | None,
    gpus: GpuReading | None,
    group_of: Mapping[str, str],
    active_ratio: float,
    complete: bool = True,
    lease_of: Mapping[ProcessKey, str] | None = None,
    blocks: Blocks | None = None,
) -> AllocationReading:
    """`processes` is None if the running processes are unknown: then no workload is judged active or idle.

    `lease_of` is the id of the lease of each process that is known to descend from the client of one. `blocks` is kept
    from one reading to the next.
    """
    slots: dict[SlotInfo, _SlotRows] = {info: _SlotRows() for info in table.all}
    for claim in claims.claims:
        for info, fraction in claim.slots:
            slots.setdefault(info, _SlotRows()).rows[claim.id] = _Row(claim, fraction)
    if processes is not None:
        claim_of = _ClaimOf(claims, group_of, lease_of or {})
        _place(processes, slots, claim_of, table, _compute_instances(gpus), {} if blocks is None else blocks)
    judged = processes is not None
    return AllocationReading(
        table.all,
        tuple(row for info, slot_rows in slots.items() for row in _allocations(info, slot_rows, judged, active_ratio)),
        claims.containers,
        claims.unmanaged,
        complete,
    )


def _place(
    processes: Iterable[ProcessShare],
    slots: dict[SlotInfo, _SlotRows],
    claim_of: "_ClaimOf",
    table: SlotTable,
    instances: Mapping[tuple[str, int], tuple[str, int | None]],
    blocks: Blocks,
) -> None:
    """Adds the processes to the rows of their workloads. There may be tens of thousands, a second, and what they belong
    to seldom changes: then it is taken from `blocks`."""
    for uuid, of_gpu in groupby(processes, _gpu_uuid):
        shares = list(of_gpu)
        # By the positions of their fields, which is faster than by their names.
        marks: list[Sequence[object]] = [[share[at] for share in shares] for at in _MARKS]
        if claim_of.lease_of:
            marks.append([share.key and claim_of.lease_of.get(share.key) for share in shares])
        if instances:
            marks.append([instances.get((uuid, share.pid)) for share in shares])
        block = blocks.get(uuid)
        if block is None or block.marks != tuple(marks):
            block = blocks[uuid] = Block(tuple(marks), _rows_of(shares, claim_of, table, instances))
        for info, claim, positions in block.rows:
            slots[info].shares_of(claim).extend([shares[position] for position in positions])
    for info, slot_rows in slots.items():
        slot_rows.sum_up(info.sm_scale)


_MARKS = [ProcessShare._fields.index(name) for name in ("place", "owner", "workload")]


def _gpu_uuid(share: ProcessShare) -> str:
    return share[0][0]


def _rows_of(
    shares: Iterable[ProcessShare],
    claim_of: "_ClaimOf",
    table: SlotTable,
    instances: Mapping[tuple[str, int], tuple[str, int | None]],
) -> list[tuple[SlotInfo, Claim | None, "array[int]"]]:
    rows: dict[tuple[SlotInfo, str | None], tuple[SlotInfo, Claim | None, array[int]]] = {}
    located: dict[tuple[Place, int | None], SlotInfo | None] = {}
    for position, share in enumerate(shares):
        kind, compute_instance = instances.get((share.place.gpu_uuid, share.pid), _PLAIN)
        at = share.place, compute_instance
        if at not in located:
            located[at] = table.at(share.place.gpu_uuid, share.place.gpu_instance_id, compute_instance)
        info = located[at]
        if info is None or kind == _GRAPHICS:
            continue
        claim = claim_of(share, info)
        row = rows.setdefault((info, None if claim is None else claim.id), (info, claim, array("I")))
        row[2].append(position)
    return list(rows.values())


class _ClaimOf:
    """The claim of a process's workload; None where it has neither a claim nor an owner.

    Found once for each workload: a node has far fewer of them than processes on GPUs.
    """

    def __init__(self, claims: Claims, group_of: Mapping[str, str], lease_of: Mapping[ProcessKey, str]) -> None:
        kinds = WorkloadKind
        self._by_id = {claim.id: claim for claim in claims.claims if claim.kind is kinds.CONTAINER}
        self._by_pod = {(c.account.namespace, c.name): c for c in claims.claims if c.kind is kinds.POD}
        self._by_job = {claim.name: claim for claim in claims.claims if claim.kind is kinds.JOB}
        self._leased = {
            (info, claim.account.id): claim
            for claim in reversed(claims.claims)
            if claim.kind is kinds.LEASE
            for info, _ in claim.slots
        }
        self._by_lease = {
            (info, claim.account.job): claim
            for claim in claims.claims
            if claim.kind is kinds.LEASE
            for info, _ in claim.slots
        }
        self._group_of = group_of
        self.lease_of = lease_of
        # By slot where leases make a difference; by the identities of the workload and its owner, which live as long as
        # the shares; and by the id of the lease.
        self._known: dict[tuple[SlotInfo | None, int, int, str], Claim | None] = {}

    def __call__(self, share: ProcessShare, info: SlotInfo) -> Claim | None:
        lease = "" if share.key is None else self.lease_of.get(share.key, "")
        key = (info if self._leased else None, id(share.workload), id(share.owner), lease)
        if key not in self._known:
            self._known[key] = self._find(share, info, lease)
        return self._known[key]

    def _find(self, share: ProcessShare, info: SlotInfo, lease: str) -> Claim | None:
        workload = share.workload
        claim = self._by_id.get(workload.container_id or "")
        if claim is None and workload.pod is not None:
            claim = self._by_pod.get((workload.pod.namespace, workload.pod.name))
        if claim is None and workload.job is not None:
            claim = self._by_job.get(workload.job)
        if claim is None and workload.container_id is None and workload.pod is None:
            # A program that was started elsewhere belongs to the lease of its user, to the oldest of several.
            claim = self._by_lease.get((info, job_of_lease(lease))) or self._leased.get((info, str(workload.uid)))
        if claim is None and share.owner is not None:
            claim = _of_process(share, self._group_of)
        return claim


def _of_process(share: ProcessShare, group_of: Mapping[str, str]) -> Claim:
    """A workload that runs on a GPU without an allocation holds it for as long as it runs."""
    workload, pod = share.workload, share.workload.pod
    user = workload.user or ("" if workload.uid is None else str(workload.uid))
    job = workload.job or ""
    if pod is not None:
        # As for a pod that the kubelet reports: it has no user.
        account = account_of(share.owner, namespace=pod.namespace, pod=pod.name, job=job)
    else:
        account = account_of(share.owner, user=user, group=group_of.get(user, ""), job=job)
    kind, name, id = WorkloadKind.PROCESS, workload.unit or workload.process_name, "/".join(account)
    if workload.container_id:
        kind, name, id = WorkloadKind.CONTAINER, workload.container_name or "", workload.container_id
    elif workload.job:
        name = workload.job
    interface = "slurm" if workload.job else "docker" if workload.container_id else "process"
    return Claim(kind, name, id, account, (), Access.SPECIFIC, True, True, interface, bool(workload.job))


def _allocations(info: SlotInfo, slot_rows: _SlotRows, judged: bool, active_ratio: float) -> Iterable[Allocation]:
    rows = list(slot_rows.rows.values())
    holders = [row for row in rows if row.holds] or [row for row in rows if row.claim.by_itself]
    _settle_ownerless(slot_rows, holders, rows)
    shares = _shares(holders)
    is_known = judged and info.processes_known
    for row in rows:
        share = shares.get(row.claim.id, 0)
        usage = row.usage or (_Usage() if is_known else _UNKNOWN)
        active = _is_active(usage, share, active_ratio) if row.claim.running else False if is_known else None
        yield _allocation(info, row.claim, share, usage, active)


def _settle_ownerless(slot_rows: _SlotRows, holders: list[_Row], rows: list[_Row]) -> None:
    """Usage without an owner belongs to the only running holder of the slot; without one, it is unattributed."""
    if slot_rows.ownerless is None:
        return
    running = [row for row in holders if row.claim.running]
    accounts = {row.claim.account for row in running}
    if len(accounts) == 1:
        row = running[0]
        row.usage = _merge(row.usage, slot_rows.ownerless)
    elif accounts:
        for row in running:
            row.usage = row.usage or _UNKNOWN
    else:
        id = "/".join(UNATTRIBUTED)
        claim = Claim(WorkloadKind.PROCESS, "", id, UNATTRIBUTED, (), Access.SPECIFIC, True, True, "process", False)
        row = _Row(claim, Fraction(1), slot_rows.ownerless)
        holders[:] = [row]
        rows.append(row)


def _shares(holders: list[_Row]) -> dict[str, int]:
    """By workload. An account claims a slot once; its workloads divide its part."""
    by_account: dict[Account, list[_Row]] = {}
    for row in holders:
        by_account.setdefault(row.claim.account, []).append(row)
    claims = [min(sum((row.fraction for row in rows), Fraction(0)), Fraction(1)) for rows in by_account.values()]
    shares: dict[str, int] = {}
    for rows, share in zip(by_account.values(), divide(claims), strict=True):
        for number, row in enumerate(rows):
            shares[row.claim.id] = share * (number + 1) // len(rows) - share * number // len(rows)
    return shares


def _is_active(usage: _Usage, share: int, active_ratio: float) -> bool | None:
    """Whether it uses at least `active_ratio` of its part of the slot, or of the slot if it holds no part."""
    if usage.sm is None:
        return None
    held = share / WHOLE_SHARE if share else 1.0
    return usage.sm > 0 and usage.sm >= active_ratio * held * WHOLE_SM


def _allocation(info: SlotInfo, claim: Claim, share: int, usage: _Usage, active: bool | None) -> Allocation:
    running = AllocationState.ACTIVE if active else AllocationState.RUNNING
    return Allocation(
        claim.account,
        claim.kind,
        claim.name,
        claim.id,
        info.slot,
        info.profile,
        share,
        running if claim.running else AllocationState.HELD,
        claim.interface,
        claim.managed,
        claim.access,
        claim.since_wall_s,
        active,
        usage.sm,
        usage.memory_bytes,
        usage.milliwatts,
        tuple(usage.processes),
    )


def _compute_instances(gpus: GpuReading | None) -> dict[tuple[str, int], tuple[str, int | None]]:
    """The kind and the compute instance, which attribution does not have, of each process that is not a plain one."""
    if gpus is None:
        return {}
    return {
        (gpu.identity.uuid, process.pid): (process.kind, process.compute_instance_id)
        for gpu in gpus.present_gpus()
        for process in gpu.processes or ()
        if process.compute_instance_id is not None or process.kind == _GRAPHICS
    }


def _plus(first: int | None, other: int | None) -> int | None:
    return None if first is None or other is None else first + other


def _merge(first: _Usage | None, other: _Usage) -> _Usage:
    if first is None:
        return other
    sm = _plus(first.sm, other.sm)
    return _Usage(
        None if sm is None else min(sm, WHOLE_SM),
        _plus(first.memory_bytes, other.memory_bytes),
        _plus(first.milliwatts, other.milliwatts),
        first.processes + other.processes,
    )
