"""The account of one GPU: its divided parts, given to owners or to reasons, and checked to sum up. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpucommons.attribution.apportion import Apportionment, Division, Rest
from gpucommons.model.gpu import Gpu, GpuProcess
from gpucommons.model.ownership import (
    Basis,
    GpuAccount,
    Owner,
    OwnerShare,
    Part,
    Place,
    ProcessShare,
    Unattributed,
    Workload,
)
from gpucommons.model.processes import ProcessKey
from gpucommons.model.reasons import Reason


class Finding(NamedTuple):
    """What was found out about one process. Exactly one of `owner` and `reason` is set."""

    key: ProcessKey | None
    owner: Owner | None
    reason: Reason | None
    workload: Workload
    steps: tuple[str, ...]


class Entry(NamedTuple):
    """One process of the GPU. `departed_sample`: its utilisation may be of who had its pid before."""

    process: GpuProcess
    finding: Finding
    departed_sample: bool


class GpuFold(NamedTuple):
    processes: list[ProcessShare]
    owners: list[OwnerShare]
    unattributed: list[Unattributed]
    account: GpuAccount


def fold(gpu: Gpu, entries: Sequence[Entry], split: Apportionment) -> GpuFold:
    uuid, index = gpu.identity.uuid, gpu.identity.index
    rest = _Rests(dict(split.memory.rest), dict(split.sm.rest), dict(split.power.rest))
    processes: list[ProcessShare] = []
    sums: dict[tuple[str, str], _Sum] = {}
    parts = zip(entries, split.memory.parts, split.sm.parts, split.power.parts, strict=True)
    for (process, finding, departed_sample), memory, sm, power in parts:
        if departed_sample and process.sm_percent is not None:
            rest.leave(Reason.PROCESS_GONE, None, sm, power)
            sm = power = None
        processes.append(
            ProcessShare(
                Place(uuid, index, process.gpu_instance_id),
                process.pid,
                finding.key,
                memory,
                sm,
                power,
                finding.owner,
                finding.reason,
                finding.workload,
                finding.steps,
            )
        )
        if finding.owner is None:
            rest.leave(finding.reason or Reason.NO_OWNER, memory, sm, power)
        else:
            identity = (finding.owner.kind, finding.owner.id)
            sums.setdefault(identity, _Sum(finding.owner)).add(memory, sm, power)
    owners = [OwnerShare(uuid, index, s.owner, s.processes, s.memory, s.sm, s.power) for s in sums.values()]
    unattributed = list(rest.rows(uuid, index))
    return GpuFold(processes, owners, unattributed, _account(gpu, split, owners, unattributed))


@dataclass(slots=True)
class _Sum:
    owner: Owner
    processes: int = 0
    memory: Part | None = None
    sm: Part | None = None
    power: Part | None = None

    def add(self, memory: Part | None, sm: Part | None, power: Part | None) -> None:
        self.processes += 1
        self.memory = _plus(self.memory, memory)
        self.sm = _plus(self.sm, sm)
        self.power = _plus(self.power, power)


@dataclass(slots=True)
class _Rests:
    """What has no owner, by reason, of each quantity."""

    memory: Rest = field(default_factory=dict)
    sm: Rest = field(default_factory=dict)
    power: Rest = field(default_factory=dict)

    def leave(self, reason: Reason, memory: Part | None, sm: Part | None, power: Part | None) -> None:
        for rest, part in ((self.memory, memory), (self.sm, sm), (self.power, power)):
            if part is not None:
                rest[reason] = rest.get(reason, 0) + part.amount

    def rows(self, uuid: str, index: int) -> Iterator[Unattributed]:
        for reason in Reason:
            amounts = self.memory.get(reason), self.sm.get(reason), self.power.get(reason)
            if amounts != (None, None, None):
                yield Unattributed(uuid, index, reason, *amounts)


def _plus(one: Part | None, other: Part | None) -> Part | None:
    if one is None or other is None:
        return one or other
    both_measured = one.basis is other.basis is Basis.MEASURED
    return Part(one.amount + other.amount, Basis.MEASURED if both_measured else Basis.APPORTIONED)


def _account(
    gpu: Gpu, split: Apportionment, owners: Sequence[OwnerShare], unattributed: Sequence[Unattributed]
) -> GpuAccount:
    """Sums the rows as anybody outside would, and not by how they were made."""
    return GpuAccount(
        gpu.identity.uuid,
        gpu.identity.index,
        split.memory.total,
        split.sm.total,
        split.power.total,
        _error(split.memory, [o.memory for o in owners], [u.memory_bytes for u in unattributed]),
        _error(split.sm, [o.sm for o in owners], [u.sm_millionths for u in unattributed]),
        _error(split.power, [o.power for o in owners], [u.power_milliwatts for u in unattributed]),
    )


def _error(division: Division, parts: Sequence[Part | None], rest: Sequence[int | None]) -> int:
    if division.total is None:
        return 0
    return sum(part.amount for part in parts if part) + sum(r for r in rest if r) - division.total
