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
from gpucommons.model.process_identity import PidScope, PidView, ProcessIdentity


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

    def attribute(self, reading: GpuReading, identities: IdentityTable, around: Surroundings) -> Attribution:
        """`around` must be the same object for as long as nothing in it has changed."""
        unchanged = around is self._around
        before, self._around, self._findings = self._findings, around, {}
        folds = []
        for gpu in reading.present_gpus():
            entries = self._entries(gpu, identities, before.get(gpu.identity.uuid, {}), unchanged)
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
        entries = []
        for process in gpu.processes or ():
            holder = (process.pid, process.gpu_instance_id)
            last = before.get(holder)
            identity = identities.find(process.pid, process.key)
            if isinstance(identity, Reason):
                finding = _unseen(identity, identities.view, _place(gpu, process))
            elif unchanged and last is not None and last.key == identity.key:
                finding = last
            else:
                finding = self._judge(identity, _place(gpu, process))
            now[holder] = finding
            # Another process had this pid in the last reading: the driver's samples may still belong to it.
            is_new_process = last is not None and last.key != finding.key and None not in (last.key, finding.key)
            entries.append(ProcessEntry(process, finding, is_new_process))
        return entries

    def _split(self, gpu: Gpu, view: PidView) -> Apportionment:
        device = device_of(gpu, view)
        idle_milliwatts = self._idle_power.see(gpu.identity.uuid, device.busy, device.power_milliwatts)
        return apportion(device, residents_of(gpu.processes or ()), idle_milliwatts)

    def _judge(self, identity: ProcessIdentity, place: Place) -> Finding:
        assert self._around is not None
        candidate, steps = resolve(identity, place, self._around)
        owner, owner_steps = owner_of(candidate, self._rules)
        reason = Reason.NO_OWNER if owner is None else None
        holder = f"{owner.kind} {owner.id}" if owner else ""
        return Finding(identity.key, holder, place, owner, reason, candidate.workload, (*steps, *owner_steps))


def _place(gpu: Gpu, process: GpuProcess) -> Place:
    return Place(gpu.identity.uuid, gpu.identity.index, process.gpu_instance_id)


def _unseen(reason: Reason, view: PidView, place: Place) -> Finding:
    why = () if view.scope is PidScope.HOST else (view.sentence,)
    return Finding(None, "", place, None, reason, _UNKNOWN, (SENTENCES[reason], *why))
