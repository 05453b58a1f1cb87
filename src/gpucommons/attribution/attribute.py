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
from gpucommons.model.ownership import SENTENCES, Attribution, Place, ProcessShare, Reason, Workload
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


# Of the processes in the same surroundings.
_Findings = dict[ProcessKey, Finding]


class Attributor:
    """A finding does not name the GPU: a process has one finding on all GPUs that are allocated to the same pods."""

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
        # By GPU, of the last reading.
        self._shares: dict[str, list[ProcessShare]] = {}

    def attribute(self, reading: GpuReading, identities: IdentityTable, around: Surroundings) -> Attribution:
        """`around` must be the same object for as long as nothing in it has changed."""
        self._forget(identities, around)
        self._keys_before, self._keys, self._looked_up = self._keys, {}, {}
        folds = []
        for gpu in reading.present_gpus():
            entries = self._entries(gpu, identities)
            folds.append(fold(gpu, entries, self._split(gpu, identities.view), self._shares.get(gpu.identity.uuid, ())))
        self._shares = {each.account.gpu_uuid: each.processes for each in folds}
        return Attribution(
            processes=tuple(row for each in folds for row in each.processes),
            owners=tuple(row for each in folds for row in each.owners),
            unattributed=tuple(row for each in folds for row in each.unattributed),
            accounts=tuple(each.account for each in folds),
            view=identities.view,
        )

    def _forget(self, identities: IdentityTable, around: Surroundings) -> None:
        """Forget the findings on processes that have ended, and all findings in other surroundings."""
        if around is not self._around:
            self._findings = {}
        elif identities is not self._identities:
            for pods, findings in self._findings.items():
                self._findings[pods] = {key: one for key, one in findings.items() if key in identities.by_key}
        self._around, self._identities = around, identities

    def _entries(self, gpu: Gpu, identities: IdentityTable) -> list[ProcessEntry]:
        """The finding on each process; earlier findings on the same process are still valid."""
        entries: list[ProcessEntry] = []
        places: dict[int | None, tuple[Place, _Findings]] = {}
        for process in gpu.processes or ():
            here = places.get(process.gpu_instance_id)
            if here is None:
                here = places[process.gpu_instance_id] = self._place(gpu, process.gpu_instance_id)
            place, findings = here
            identity = self._identity(process, identities)
            if isinstance(identity, Reason):
                entries.append((process, place, _unseen(identity, identities.view), False))
                continue
            key = identity.key
            finding = findings.get(key)
            if finding is None:
                finding = findings[key] = self._judge(identity, place)
            self._keys[process.pid] = key
            # Another process had this pid in the last reading: the driver's samples may still belong to it.
            is_new_process = self._keys_before.get(process.pid, key) != key
            entries.append((process, place, finding, is_new_process))
        return entries

    def _place(self, gpu: Gpu, instance_id: int | None) -> tuple[Place, _Findings]:
        place = Place(gpu.identity.uuid, gpu.identity.index, instance_id)
        return place, self._findings.setdefault(self._around.pods_by_place.get(place, ()), {})

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
        candidate, steps = resolve(identity, place, self._around)
        owner, owner_steps = owner_of(candidate, self._rules)
        reason = Reason.NO_OWNER if owner is None else None
        holder = f"{owner.kind} {owner.id}" if owner else ""
        return Finding(identity.key, holder, owner, reason, candidate.workload, (*steps, *owner_steps))


def _unseen(reason: Reason, view: PidView) -> Finding:
    why = () if view.scope is PidScope.HOST else (view.sentence,)
    return Finding(None, "", None, reason, _UNKNOWN, (SENTENCES[reason], *why))
