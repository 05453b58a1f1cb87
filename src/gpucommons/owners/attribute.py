"""Attributes one GPU reading to owners: its parts, assigned to owners or reasons, and a check that they sum up.

Pure: what is known of the processes comes in as values.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress, count
from operator import ne
from typing import NamedTuple

from gpucommons.model.gpu import Gpu, GpuProcess, GpuReading
from gpucommons.model.ownership import (
    SENTENCES,
    Attribution,
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
from gpucommons.model.process_identity import PidScope, PidView, ProcessIdentity, ProcessKey
from gpucommons.owners.apportion import Apportionment, Resident, Rest, apportion, device_of, resident_of
from gpucommons.owners.owner import OwnerRules, owner_of
from gpucommons.owners.process_identity import IdentityTable
from gpucommons.owners.workload import Surroundings, resolve
from gpucommons.rules.placement import PodLabels

# Attribution of one GPU: its parts, assigned to owners or reasons, and a check that they sum up. Pure.


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


# A process of the GPU, the same for apportioning, its place, what is known of it, and whether its utilisation may be
# that of an earlier process with its pid.
ProcessEntry = tuple[GpuProcess, Resident, Place, Finding, bool]


class Grouping(NamedTuple):
    """Positions in a list of entries: of each owner, of those without one, and of those with departed samples."""

    owners: tuple[tuple[Owner, Sequence[int]], ...] = ()
    ownerless: Sequence[int] = ()
    departed: Sequence[int] = ()


@dataclass(slots=True)
class Kept:
    """Of the last reading of a GPU: its entries, their grouping, and what was made from them. Updated in place: of
    hundreds of processes few change, and each that is touched costs time."""

    entries: list[ProcessEntry] = field(default_factory=list)
    residents: list[Resident] = field(default_factory=list)
    grouping: Grouping = field(default_factory=Grouping)
    split: Apportionment | None = None
    shares: list[ProcessShare] = field(default_factory=list)
    # Empty where the grouping is another one since.
    owners: Sequence[OwnerShare] = ()


def group(entries: Sequence[ProcessEntry]) -> Grouping:
    by_holder: dict[str, tuple[Owner, list[int]]] = {}
    ownerless, departed = [], []
    for position, (_, _, _, finding, departed_sample) in enumerate(entries):
        if finding.owner is None:
            ownerless.append(position)
        else:
            by_holder.setdefault(finding.holder, (finding.owner, []))[1].append(position)
        if departed_sample:
            departed.append(position)
    return Grouping(tuple(by_holder.values()), ownerless, departed)


class GpuFold(NamedTuple):
    owners: Sequence[OwnerShare]
    unattributed: list[Unattributed]
    account: GpuAccount


def fold(gpu: Gpu, kept: Kept, changed: Iterable[int] | None, split: Apportionment) -> GpuFold:
    """`changed` are the positions of entries that are not as in the last reading; None: all. A share that has not
    changed is the same object: two readings of many idle processes then take little more memory than one."""
    uuid, index, grouping = gpu.identity.uuid, gpu.identity.index, kept.grouping
    memory, sm, power = split.memory.parts, split.sm.parts, split.power.parts
    rest = _Rests(dict(split.memory.rest), dict(split.sm.rest), dict(split.power.rest))
    for position in grouping.departed:
        if kept.entries[position][0].sm_percent is not None:
            rest.leave(Reason.PROCESS_GONE, None, sm[position], power[position])
            sm[position] = power[position] = None
    for position in grouping.ownerless:
        reason = kept.entries[position][3].reason or Reason.NO_OWNER
        rest.leave(reason, memory[position], sm[position], power[position])
    _update_shares(kept, changed, split)
    # Memory seldom changes.
    if kept.owners and kept.split is not None and kept.split.memory is split.memory:
        memory_sums = [owner.memory for owner in kept.owners]
    else:
        memory_sums = [_sum_at(places, memory) for _, places in grouping.owners]
    owners = [
        OwnerShare(uuid, index, owner, len(places), in_memory, _sum_at(places, sm), _sum_at(places, power))
        for (owner, places), in_memory in zip(grouping.owners, memory_sums, strict=True)
    ]
    kept.split, kept.owners = split, owners
    unattributed = list(rest.rows(uuid, index))
    return GpuFold(owners, unattributed, _account(gpu, split, owners, unattributed))


def _update_shares(kept: Kept, changed: Iterable[int] | None, split: Apportionment) -> None:
    """Compares whole columns, without a call for each share that is as before: there may be tens of thousands."""
    memory, sm, power = split.memory.parts, split.sm.parts, split.power.parts
    if changed is None or kept.split is None:
        kept.shares = list(map(_share, kept.entries, memory, sm, power))
        return
    positions = set(changed)
    before = kept.split
    for parts, earlier in ((memory, before.memory.parts), (sm, before.sm.parts), (power, before.power.parts)):
        if parts is not earlier:
            positions.update(compress(count(), map(ne, parts, earlier)))
    for position in positions:
        kept.shares[position] = _share(kept.entries[position], memory[position], sm[position], power[position])


def _share(entry: ProcessEntry, memory: Portion | None, sm: Portion | None, power: Portion | None) -> ProcessShare:
    process, _, place, (key, _, owner, reason, workload, steps), _ = entry
    return ProcessShare(place, process.pid, key, memory, sm, power, owner, reason, workload, steps)


def _sum_at(places: Sequence[int], parts: Sequence[Portion | None]) -> Portion | None:
    return sum_portions(map(parts.__getitem__, places))


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


# Attributes one GPU reading to owners, with what is known of its processes. Reads nothing.
#
# Keeps the findings on live processes, each GPU's idle power, and which process had which pid, so that a new process
# is not billed for the samples of the previous one.


class IdlePower:
    """The lowest power of each GPU while it was not busy; None until it was measured."""

    def __init__(self) -> None:
        self._lowest_milliwatts: dict[str, int] = {}

    def see(self, gpu_uuid: str, sm_millionths: int | None, power_milliwatts: int | None) -> int | None:
        if sm_millionths == 0 and power_milliwatts is not None:
            lowest = self._lowest_milliwatts.get(gpu_uuid, power_milliwatts)
            self._lowest_milliwatts[gpu_uuid] = min(lowest, power_milliwatts)
        return self._lowest_milliwatts.get(gpu_uuid)


_UNKNOWN = Workload()


# Of the processes in the same surroundings.
_Findings = dict[ProcessKey, Finding]


class Attributor:
    """A finding does not name the GPU: a process has one finding on all GPUs that are allocated to the same pods.

    While processes and surroundings stay the same, the entry of a row that the driver has not changed is kept.
    """

    def __init__(self, rules: OwnerRules | None = None) -> None:
        self._rules = rules or OwnerRules()
        self._idle_power = IdlePower()
        self._identities: IdentityTable | None = None
        self._around = Surroundings()
        self._findings: dict[tuple[PodLabels, ...], _Findings] = {}
        # The process that had each pid in the last reading, and those of this reading so far.
        self._keys_before: dict[int, ProcessKey] = {}
        self._keys: dict[int, ProcessKey] = {}
        # Within one reading, for processes on several GPUs: the key that the driver's row has, and what is known of it.
        self._looked_up: dict[int, tuple[ProcessKey | None, ProcessIdentity | Reason]] = {}
        self._places: dict[Place, tuple[Place, _Findings]] = {}
        # By GPU and index.
        self._kept: dict[tuple[str, int], Kept] = {}

    def attribute(self, reading: GpuReading, identities: IdentityTable, around: Surroundings) -> Attribution:
        """`around` must be the same object for as long as nothing in it has changed."""
        self._forget(identities, around)
        self._looked_up = {}
        folds: list[GpuFold] = []
        # After an error nothing is kept.
        before, self._kept = self._kept, {}
        now: dict[tuple[str, int], Kept] = {}
        for gpu in reading.present_gpus():
            at = gpu.identity.uuid, gpu.identity.index
            kept = now[at] = before.get(at) or Kept()
            changed = self._update_entries(kept, gpu, identities)
            split = self._split(gpu, identities.view, kept.residents, kept.split)
            folds.append(fold(gpu, kept, changed, split))
        self._kept = now
        return Attribution(
            processes=tuple(chain.from_iterable(kept.shares for kept in now.values())),
            owners=tuple(row for fold in folds for row in fold.owners),
            unattributed=tuple(row for fold in folds for row in fold.unattributed),
            accounts=tuple(fold.account for fold in folds),
            view=identities.view,
        )

    def _forget(self, identities: IdentityTable, around: Surroundings) -> None:
        """Forget the findings on processes that have ended, and all findings in other surroundings."""
        self._keys_before = self._keys
        if around is self._around and identities is self._identities:
            return
        self._keys, self._kept, self._places = {}, {}, {}
        if around is not self._around:
            self._findings = {}
        else:
            for pods, findings in self._findings.items():
                self._findings[pods] = {key: finding for key, finding in findings.items() if key in identities.by_key}
        self._around, self._identities = around, identities

    def _update_entries(self, kept: Kept, gpu: Gpu, identities: IdentityTable) -> Sequence[int] | None:
        """The finding on each process; earlier findings on the same process are still valid. Returns the positions of
        the entries that are not as before; None: all."""
        processes = gpu.processes or ()
        if len(processes) != len(kept.entries):
            kept.entries = [self._entry(gpu, process, identities) for process in processes]
            kept.residents = [entry[1] for entry in kept.entries]
            kept.grouping, kept.owners = group(kept.entries), ()
            return None
        changed, regrouped = [], False
        for position, (process, last) in enumerate(zip(processes, kept.entries, strict=True)):
            if last[0] is process and not last[4]:
                continue
            entry = self._entry(gpu, process, identities)
            kept.entries[position], kept.residents[position] = entry, entry[1]
            changed.append(position)
            regrouped = regrouped or entry[3] is not last[3] or entry[4] != last[4]
        if regrouped:
            kept.grouping, kept.owners = group(kept.entries), ()
        return changed

    def _entry(self, gpu: Gpu, process: GpuProcess, identities: IdentityTable) -> ProcessEntry:
        resident = resident_of(process)
        place, findings = self._place(gpu, process.gpu_instance_id)
        identity = self._identity(process, identities)
        if isinstance(identity, Reason):
            return process, resident, place, _unseen_finding(identity, identities.view), False
        key = identity.key
        finding = findings.get(key)
        if finding is None:
            finding = findings[key] = self._judge(identity, place)
        self._keys[process.pid] = key
        # Another process had this pid in the last reading: the driver's samples may still belong to it.
        is_new_process = self._keys_before.get(process.pid, key) != key
        return process, resident, place, finding, is_new_process

    def _place(self, gpu: Gpu, instance_id: int | None) -> tuple[Place, _Findings]:
        place = Place(gpu.identity.uuid, gpu.identity.index, instance_id)
        if place not in self._places:
            findings = self._findings.setdefault(self._around.pods_by_place.get(place, ()), {})
            self._places[place] = place, findings
        return self._places[place]

    def _identity(self, process: GpuProcess, identities: IdentityTable) -> ProcessIdentity | Reason:
        previous = self._looked_up.get(process.pid)
        if previous is not None and previous[0] is process.key:
            return previous[1]
        identity = identities.find(process.pid, process.key)
        self._looked_up[process.pid] = (process.key, identity)
        return identity

    def _split(
        self, gpu: Gpu, view: PidView, residents: Sequence[Resident], before: Apportionment | None
    ) -> Apportionment:
        device = device_of(gpu, view)
        idle_milliwatts = self._idle_power.see(gpu.identity.uuid, device.busy, device.power_milliwatts)
        return apportion(device, residents, idle_milliwatts, before)

    def _judge(self, identity: ProcessIdentity, place: Place) -> Finding:
        candidate, steps = resolve(identity, place, self._around)
        owner, owner_steps = owner_of(candidate, self._rules)
        reason = Reason.NO_OWNER if owner is None else None
        holder = f"{owner.kind} {owner.id}" if owner else ""
        return Finding(identity.key, holder, owner, reason, candidate.workload, (*steps, *owner_steps))


def _unseen_finding(reason: Reason, view: PidView) -> Finding:
    why = () if view.scope is PidScope.HOST else (view.sentence,)
    return Finding(None, "", None, reason, _UNKNOWN, (SENTENCES[reason], *why))
