"""Which rules of [sharing_quotas] apply to a program, and which programs an operator's target means. Pure.

A limit for a pid is for one process: it ends when another process has the pid.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from gpucommons.model.process_identity import ProcessKey
from gpucommons.model.words import SharingClass
from gpucommons.scheduler.policy.quotas import QuotaValues
from gpucommons.scheduler.programs.jobs import GpuUser, Program

_NO_QUOTA: Final = QuotaValues()
_SHORT_ID: Final = 12
CLASS_LABEL: Final = "gpucommons.class"


@dataclass(frozen=True, slots=True)
class ProgramRule:
    """One rule of the config file: shell patterns, all of which must match. `*` also matches what is not known."""

    name: str
    user: str = "*"
    group: str = "*"
    container: str = "*"
    pod: str = "*"
    namespace: str = "*"
    job: str = "*"
    unit: str = "*"
    command: str = "*"
    uid: str = "*"
    quota: QuotaValues = _NO_QUOTA
    share: bool = True
    sleep_url: str = ""
    wake_url: str = ""

    @property
    def names_owner(self) -> bool:
        """Whether users cannot choose to match it: the command is theirs, and a group has several users."""
        return any(pattern != "*" for pattern in (self.user, self.uid, self.container, self.pod, self.job, self.unit))

    def matches(self, program: Program) -> bool:
        """The command may be that of any of its processes; all else must match for every one of them."""
        commands = {text for process in program.processes for text in _commands(process)}
        return _any_matches(commands, self.command) and all(map(self._matches_process, program.processes))

    def _matches_process(self, process: GpuUser) -> bool:
        workload, pod = process.workload, process.workload.pod
        uid = "" if workload.uid is None else str(workload.uid)
        return (
            fnmatchcase(process.user, self.user)
            and _any_matches(process.groups, self.group)
            and _any_matches(_containers(process), self.container)
            and fnmatchcase(pod.name if pod else "", self.pod)
            and fnmatchcase(pod.namespace if pod else "", self.namespace)
            and fnmatchcase(_job(process), self.job)
            and fnmatchcase(_unit(process), self.unit)
            and fnmatchcase(uid, self.uid)
        )


def quota_of(rules: Iterable[ProgramRule], program: Program) -> QuotaValues:
    """Memory, share and class are looked up separately: the first matching rule that sets one gives it."""
    matching = [rule.quota for rule in rules if rule.matches(program)]
    return QuotaValues(
        next((quota.memory_bytes for quota in matching if quota.memory_bytes is not None), None),
        next((quota.core_percent for quota in matching if quota.core_percent is not None), None),
        next((quota.sharing_class for quota in matching if quota.sharing_class is not None), None),
    )


def class_of_label(program: Program) -> QuotaValues:
    """By the label of its container; a value that does not name a class counts for nothing."""
    labels = {process.labels.get(CLASS_LABEL, "").strip().lower() for process in program.processes}
    return _of_class(labels.pop() if len(labels) == 1 else "")


def class_of_lease(program: Program) -> QuotaValues:
    """As it was requested with the lease that has started it."""
    classes = {process.lease_class for process in program.processes}
    return _of_class(classes.pop() if len(classes) == 1 else "")


def _of_class(text: str) -> QuotaValues:
    is_class = text in SharingClass.__members__.values()
    return QuotaValues(sharing_class=SharingClass(text)) if is_class else _NO_QUOTA


def exempting_rule(rules: Iterable[ProgramRule], program: Program) -> ProgramRule | None:
    """The first matching rule with `share = false`. A rule without it says nothing about sharing."""
    return next((rule for rule in rules if not rule.share and rule.matches(program)), None)


def pod_of(program: Program) -> tuple[str, str] | None:
    """Namespace and name of its pod, by which the pod's annotations are found; None where it is in no single pod."""
    pods = {process.workload.pod for process in program.processes}
    pod = pods.pop() if len(pods) == 1 else None
    return (pod.namespace, pod.name) if pod is not None and pod.name else None


def names(program: Program) -> frozenset[str]:
    """Every name by which an operator may address it in `set-limit`; one that several share addresses all of them.

    The program's key, `pid:4711`, `user:alice`, `uid:1000`, `group:vision`, `container:train`, `job:88`,
    `unit:ollama.service`, `command:train.py`, `namespace:ml`, and as for nvshare's clients `train-0` and `ml/train-0`
    for a pod.
    """
    addresses = {program.key}
    for process in program.processes:
        pod, uid = process.workload.pod, process.workload.uid
        prefixed = (
            ("pid", (str(process.pid),)),
            ("user", (process.user,)),
            ("uid", ("" if uid is None else str(uid),)),
            ("group", process.groups),
            ("container", _containers(process)),
            ("job", (_job(process),)),
            ("unit", (_unit(process),)),
            ("command", (process.command,)),
            ("namespace", (pod.namespace if pod else "",)),
        )
        addresses.update(f"{kind}:{name}" for kind, several in prefixed for name in several if name)
        if pod is not None and pod.name:
            addresses.update((pod.name, f"{pod.namespace}/{pod.name}"))
    return frozenset(addresses)


def _any_matches(texts: Iterable[str], pattern: str) -> bool:
    return pattern == "*" or any(fnmatchcase(text, pattern) for text in texts)


def _commands(process: GpuUser) -> tuple[str, ...]:
    """Its short command, its name, and its whole command line."""
    return process.command, process.workload.process_name, " ".join(process.context.command_line)


def _containers(process: GpuUser) -> tuple[str, ...]:
    """Its container's name, id and short id."""
    workload = process.workload
    if workload.delegated or workload.container_id is None:
        return ()
    id, pod = workload.container_id, workload.pod
    given = (workload.container_name, pod.container if pod else None, id, id[:_SHORT_ID])
    return tuple(name for name in given if name)


def _job(process: GpuUser) -> str:
    return "" if process.workload.delegated else process.workload.job or ""


def _unit(process: GpuUser) -> str:
    return "" if process.workload.delegated else process.workload.unit or ""


class PidTargets:
    def __init__(self) -> None:
        # The process that each target means: that of the last reading, and for a target with a limit the last one seen.
        self._processes: dict[str, ProcessKey] = {}

    def see(self, targets: AbstractSet[str], processes: Iterable[GpuUser]) -> list[str]:
        """One reading, and the targets that have a limit. Returns the targets whose process has ended."""
        seen = {f"pid:{process.pid}": process.key for process in processes if process.key is not None}
        ended = [
            target for target in targets if target in seen and self._processes.get(target, seen[target]) != seen[target]
        ]
        self._processes = {target: key for target, key in self._processes.items() if target in targets} | seen
        return ended
