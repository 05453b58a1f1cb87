"""Attributes one GPU reading to owners, with what is known of its processes. Reads nothing.

Keeps the findings on live processes, each GPU's idle power, and which process had which pid, so that a new process
is not billed for the samples of the previous one.
"""

from gpucommons.attribution.apportion import Apportionment, apportion
from gpucommons.attribution.device import device_of, residents_of
from gpucommons.attribution.fold import Finding, ProcessEntry, fold
from gpucommons.attribution.owner import OwnerRules, owner_of
from gpucommons.attribution.process_identity import IdentityTable
from gpucommons.attribution.workload import Surroundings, resolve
from gpucommons.model.gpu import Gpu, GpuProcess, GpuReading
from gpucommons.model.ownership import SENTENCES, Attribution, Place, Reason, Workload
from gpucommons.model.process_identity import PidScope, PidView, ProcessIdentity, ProcessKey
from gpucommons.rules.pod_placement import PodLabels


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


# By pid and MIG instance, on one GPU.
_Findings = dict[tuple[int, int | None], Finding]


class Attributor:
    def __init__(self, rules: OwnerRules | None = None) -> None:
        self._rules = rules or OwnerRules()
        self._idle_power = IdlePower()
        self._around: Surroundings | None = None
        self._findings: dict[str, _Findings] = {}
        # Within one reading, for processes on several GPUs: the key that the driver's row has, and what is known of it.
        self._looked_up: dict[int, tuple[ProcessKey | None, ProcessIdentity | Reason]] = {}
        self._judged: dict[tuple[ProcessKey, tuple[PodLabels, ...]], Finding] = {}

    def attribute(self, reading: GpuReading, identities: IdentityTable, around: Surroundings) -> Attribution:
        """`around` must be the same object for as long as nothing in it has changed."""
        unchanged = around is self._around
        before, self._around, self._findings = self._findings, around, {}
        self._looked_up, self._judged = {}, {}
        folds = []
        for gpu in reading.present_gpus():
            entries = self._entries(gpu, identities, before.pop(gpu.identity.uuid, {}), unchanged)
            folds.append(fold(gpu, entries, self._split(gpu, identities.view)))
        return Attribution(
            processes=tuple(row for each in folds for row in each.processes),
            owners=tuple(row for each in folds for row in each.owners),
            unattributed=tuple(row for each in folds for row in each.unattributed),
            accounts=tuple(each.account for each in folds),
            view=identities.view,
        )

    def _entries(self, gpu: Gpu, identities: IdentityTable, before: _Findings, unchanged: bool) -> list[ProcessEntry]:
        """The finding on each process. With `unchanged`, earlier findings on the same process are still valid."""
        now = self._findings[gpu.identity.uuid] = {}
        entries: list[ProcessEntry] = []
        places: dict[int | None, Place] = {}
        for process in gpu.processes or ():
            instance_id = process.gpu_instance_id
            holder = (process.pid, instance_id)
            last = before.get(holder)
            identity = self._identity(process, identities)
            if unchanged and last is not None and not isinstance(identity, Reason) and last.key == identity.key:
                now[holder] = last
                entries.append((process, last, False))
                continue
            place = places.get(instance_id)
            if place is None:
                place = places[instance_id] = Place(gpu.identity.uuid, gpu.identity.index, instance_id)
            if isinstance(identity, Reason):
                finding = _unseen(identity, identities.view, place)
            else:
                finding = self._judge(identity, place)
            now[holder] = finding
            # Another process had this pid in the last reading: the driver's samples may still belong to it.
            is_new_process = last is not None and last.key != finding.key and None not in (last.key, finding.key)
            entries.append((process, finding, is_new_process))
        return entries

    def _identity(self, process: GpuProcess, identities: IdentityTable) -> ProcessIdentity | Reason:
        known = self._looked_up.get(process.pid)
        if known is not None and known[0] is process.key:
            return known[1]
        found = identities.find(process.pid, process.key)
        self._looked_up[process.pid] = (process.key, found)
        return found

    def _split(self, gpu: Gpu, view: PidView) -> Apportionment:
        device = device_of(gpu, view)
        idle_milliwatts = self._idle_power.see(gpu.identity.uuid, device.busy, device.power_milliwatts)
        return apportion(device, residents_of(gpu.processes or ()), idle_milliwatts)

    def _judge(self, identity: ProcessIdentity, place: Place) -> Finding:
        assert self._around is not None
        key = (identity.key, self._around.pods_by_place.get(place, ()))
        known = self._judged.get(key)
        if known is not None:
            return known._replace(place=place)
        candidate, steps = resolve(identity, place, self._around)
        owner, owner_steps = owner_of(candidate, self._rules)
        reason = Reason.NO_OWNER if owner is None else None
        holder = f"{owner.kind} {owner.id}" if owner else ""
        finding = Finding(identity.key, holder, place, owner, reason, candidate.workload, (*steps, *owner_steps))
        self._judged[key] = finding
        return finding


def _unseen(reason: Reason, view: PidView, place: Place) -> Finding:
    why = () if view.scope is PidScope.HOST else (view.sentence,)
    return Finding(None, "", place, None, reason, _UNKNOWN, (SENTENCES[reason], *why))
