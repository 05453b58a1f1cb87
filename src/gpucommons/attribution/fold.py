"""Attribution of one GPU: its parts, assigned to owners or reasons, and a check that they sum up. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import NamedTuple

from gpucommons.attribution.apportion import Apportionment, Rest
from gpucommons.model.gpu import Gpu, GpuProcess
from gpucommons.model.ownership import (
    GpuAccount,
    Owner,
    OwnerShare,
    Place,
    Portion,
    ProcessShare,
    Reason,
    Unattributed,
    Workload,
    sum_portions,
)
from gpucommons.model.process_identity import ProcessKey


class Finding(NamedTuple):
    """What is known of one process. Exactly one of `owner` and `reason` is set.

    `holder` is the owner's identity as one string, which is fast to group by.
    """

    key: ProcessKey | None
    holder: str
    owner: Owner | None
    reason: Reason | None
    workload: Workload
    steps: tuple[str, ...]


# A process of the GPU, its place, what is known of it, and whether its utilisation may be that of an earlier process
# with its pid.
ProcessEntry = tuple[GpuProcess, Place, Finding, bool]


class GpuFold(NamedTuple):
    processes: list[ProcessShare]
    owners: list[OwnerShare]
    unattributed: list[Unattributed]
    account: GpuAccount


def fold(
    gpu: Gpu, entries: Sequence[ProcessEntry], split: Apportionment, before: Sequence[ProcessShare] = ()
) -> GpuFold:
    """A share that equals the one at its position in `before`, the last reading, is that object: two readings of many
    idle processes then take little more memory than one."""
    uuid, index = gpu.identity.uuid, gpu.identity.index
    rest = _Rests(dict(split.memory.rest), dict(split.sm.rest), dict(split.power.rest))
    processes: list[ProcessShare] = []
    owned: dict[str, list[ProcessShare]] = {}
    parts = zip(entries, split.memory.parts, split.sm.parts, split.power.parts, strict=True)
    same_position = chain(before, repeat(None))
    for ((process, place, finding, departed_sample), memory, sm, power), last in zip(
        parts, same_position, strict=False
    ):
        if departed_sample and process.sm_percent is not None:
            rest.leave(Reason.PROCESS_GONE, None, sm, power)
            sm = power = None
        key, holder, owner, reason, workload, steps = finding
        share = ProcessShare(place, process.pid, key, memory, sm, power, owner, reason, workload, steps)
        if share == last:
            share = last
        processes.append(share)
        if owner is None:
            rest.leave(reason or Reason.NO_OWNER, memory, sm, power)
        else:
            owned.setdefault(holder, []).append(share)
    owners = [_owner_share(uuid, index, shares) for shares in owned.values()]
    unattributed = list(rest.rows(uuid, index))
    return GpuFold(processes, owners, unattributed, _account(gpu, split, owners, unattributed))


def _owner_share(uuid: str, index: int, shares: Sequence[ProcessShare]) -> OwnerShare:
    owner = shares[0].owner
    assert owner is not None
    return OwnerShare(
        uuid,
        index,
        owner,
        len(shares),
        sum_portions([share.memory for share in shares]),
        sum_portions([share.sm for share in shares]),
        sum_portions([share.power for share in shares]),
    )


@dataclass(slots=True)
class _Rests:
    """What has no owner, by reason, of each quantity."""

    memory: Rest
    sm: Rest
    power: Rest

    def leave(self, reason: Reason, memory: Portion | None, sm: Portion | None, power: Portion | None) -> None:
        for rest, part in ((self.memory, memory), (self.sm, sm), (self.power, power)):
            if part is not None:
                rest[reason] = rest.get(reason, 0) + part.amount

    def rows(self, uuid: str, index: int) -> Iterator[Unattributed]:
        for reason in sorted({*self.memory, *self.sm, *self.power}):
            amounts = self.memory.get(reason), self.sm.get(reason), self.power.get(reason)
            yield Unattributed(uuid, index, reason, *amounts)


def _account(
    gpu: Gpu, split: Apportionment, owners: Sequence[OwnerShare], unattributed: Sequence[Unattributed]
) -> GpuAccount:
    """Sums the published rows, independently of how they were computed."""
    memory = sm = power = 0
    for owner in owners:
        memory += owner.memory.amount if owner.memory else 0
        sm += owner.sm.amount if owner.sm else 0
        power += owner.power.amount if owner.power else 0
    for rest in unattributed:
        memory += rest.memory_bytes or 0
        sm += rest.sm_millionths or 0
        power += rest.power_milliwatts or 0
    totals = split.memory.total, split.sm.total, split.power.total
    sums = zip((memory, sm, power), totals, strict=True)
    errors = [0 if total is None else amount - total for amount, total in sums]
    return GpuAccount(gpu.identity.uuid, gpu.identity.index, *totals, *errors)
