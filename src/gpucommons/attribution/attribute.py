"""Folds one GPU reading and what is known of its processes into who uses what. Reads nothing.

Keeps only what makes the next fold cheap or fair: verdicts on processes that live, each GPU's idle draw,
and who had which pid, so that nobody is billed for what the pid's last holder did.
"""

from gpucommons.attribution.apportion import Apportionment, apportion
from gpucommons.attribution.device import device_of, residents_of
from gpucommons.attribution.fold import Entry, Finding, GpuFold, fold
from gpucommons.attribution.idle_draw import IdleDraw
from gpucommons.attribution.owner import OwnerRules, owner_of
from gpucommons.attribution.process_identity import IdentityTable, SeenProcess
from gpucommons.attribution.workload import Surroundings, resolve
from gpucommons.model.gpu import Gpu, GpuProcess, GpuReading
from gpucommons.model.ownership import Attribution, Place, Workload
from gpucommons.model.process_identity import PidScope, PidView, ProcessIdentity
from gpucommons.model.processes import ProcessKey
from gpucommons.model.reasons import SENTENCES, Reason

_UNKNOWN = Workload()


class Attributor:
    def __init__(self, rules: OwnerRules | None = None) -> None:
        self._rules = rules or OwnerRules()
        self._idle_draw = IdleDraw()
        self._around: Surroundings | None = None
        self._findings: dict[tuple[ProcessKey, Place], Finding] = {}
        self._findings_before = self._findings
        self._holders: dict[tuple[str, int], ProcessKey] = {}
        self._holders_before = self._holders

    def attribute(self, reading: GpuReading, identities: IdentityTable, around: Surroundings) -> Attribution:
        """One fold. `around` must be the same object for as long as nothing in it has changed."""
        self._findings_before = self._findings if around is self._around else {}
        self._holders_before = self._holders
        self._around, self._findings, self._holders = around, {}, {}
        folds = [self._fold(gpu, identities, around) for gpu in reading.present_gpus()]
        return Attribution(
            processes=tuple(row for each in folds for row in each.processes),
            owners=tuple(row for each in folds for row in each.owners),
            unattributed=tuple(row for each in folds for row in each.unattributed),
            accounts=tuple(each.account for each in folds),
            view=identities.view,
        )

    def _fold(self, gpu: Gpu, identities: IdentityTable, around: Surroundings) -> GpuFold:
        entries = []
        for process in gpu.processes or ():
            finding = self._finding(gpu, process, identities, around)
            entries.append(Entry(process, finding, self._is_newcomer(gpu, process, finding)))
        return fold(gpu, entries, self._split(gpu, identities.view))

    def _split(self, gpu: Gpu, view: PidView) -> Apportionment:
        device = device_of(gpu, view)
        idle_milliwatts = self._idle_draw.see(gpu.identity.uuid, device.busy, device.power_milliwatts)
        return apportion(device._replace(idle_milliwatts=idle_milliwatts), residents_of(gpu.processes or ()))

    def _finding(self, gpu: Gpu, process: GpuProcess, identities: IdentityTable, around: Surroundings) -> Finding:
        identity = identities.find(SeenProcess(process.pid, process.key))
        if isinstance(identity, Reason):
            return _unseen(identity, identities.view)
        place = Place(gpu.identity.uuid, gpu.identity.index, process.gpu_instance_id)
        memo = (identity.key, place)
        finding = self._findings_before.get(memo) or self._judge(identity, place, around)
        self._findings[memo] = finding
        return finding

    def _judge(self, identity: ProcessIdentity, place: Place, around: Surroundings) -> Finding:
        candidate, steps = resolve(identity, place, around)
        owner, owner_steps = owner_of(candidate, self._rules)
        reason = Reason.NO_OWNER if owner is None else None
        return Finding(identity.key, owner, reason, candidate.workload, (*steps, *owner_steps))

    def _is_newcomer(self, gpu: Gpu, process: GpuProcess, finding: Finding) -> bool:
        """Whether another process had this pid on this GPU in the last reading."""
        if finding.key is None:
            return False
        holding = (gpu.identity.uuid, process.pid)
        self._holders[holding] = finding.key
        return self._holders_before.get(holding, finding.key) != finding.key


def _unseen(reason: Reason, view: PidView) -> Finding:
    why = () if view.scope is PidScope.HOST else (view.sentence,)
    return Finding(None, None, reason, _UNKNOWN, (SENTENCES[reason], *why))
