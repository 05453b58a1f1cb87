"""How much memory and what share of the GPU's time a client may have, and which source says so. Pure.

Memory and share are looked up separately; the first source that has a value decides:
  set-limit    set by an operator for that client or its pod, for as long as the agent runs
  annotation   xpushare.com/ or else nvshare.com/, gpu-memory-limit and gpu-core-limit, on the pod
  config       the first rule of the config file whose patterns match the client's pod, namespace and uid
  env          requested by the client itself when it registered
  none         no limit
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from gpucommons.base.text import LARGEST_BYTES, parse_core, parse_memory
from gpucommons.model.workloads import CORE_LIMIT_ANNOTATIONS, MEMORY_LIMIT_ANNOTATIONS

NO_MEMORY_LIMIT: Final = 0
NO_CORE_LIMIT: Final = 100


@dataclass(frozen=True, slots=True)
class QuotaValues:
    """The values of one source; None where it has none."""

    memory_bytes: int | None = None
    core_percent: int | None = None


@dataclass(frozen=True, slots=True)
class QuotaRule:
    """One rule of the config file: shell patterns, all of which must match."""

    pod: str = "*"
    namespace: str = "*"
    uid: str = "*"
    quota: QuotaValues = QuotaValues()

    def matches(self, pod: str, namespace: str, uid: int) -> bool:
        return fnmatchcase(pod, self.pod) and fnmatchcase(namespace, self.namespace) and fnmatchcase(str(uid), self.uid)


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """The limits in force for a client, and the source of each."""

    memory_bytes: int = NO_MEMORY_LIMIT
    memory_source: str = "none"
    core_percent: int = NO_CORE_LIMIT
    core_source: str = "none"


NO_LIMITS: Final = ClientLimits()


def from_annotations(annotations: Mapping[str, str]) -> QuotaValues:
    """The limits in a pod's annotations; raises ValueError, naming the annotation, if one in force is malformed."""
    return QuotaValues(
        _annotated(annotations, MEMORY_LIMIT_ANNOTATIONS, parse_memory),
        _annotated(annotations, CORE_LIMIT_ANNOTATIONS, parse_core),
    )


def _annotated(annotations: Mapping[str, str], names: Iterable[str], parse: Callable[[str], int]) -> int | None:
    """The value of the first of these annotations that is set; None if none is."""
    name = next((name for name in names if name in annotations), None)
    if name is None:
        return None
    try:
        return parse(annotations[name])
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def from_client(memory_limit_bytes: int, core_limit_percent: int) -> QuotaValues:
    """The limits that a client requests in its REGISTER frame; values out of range are ignored."""
    return QuotaValues(
        memory_limit_bytes if 0 < memory_limit_bytes <= LARGEST_BYTES else None,
        core_limit_percent if 0 < core_limit_percent < NO_CORE_LIMIT else None,
    )


def from_rules(rules: Iterable[QuotaRule], pod: str, namespace: str, uid: int) -> QuotaValues:
    memory: int | None = None
    core: int | None = None
    for rule in rules:
        if rule.matches(pod, namespace, uid):
            memory = rule.quota.memory_bytes if memory is None else memory
            core = rule.quota.core_percent if core is None else core
    return QuotaValues(memory, core)


def decide(
    *,
    set_limit: QuotaValues | None = None,
    annotation: QuotaValues | None = None,
    config: QuotaValues | None = None,
    env: QuotaValues | None = None,
) -> ClientLimits:
    sources = (("set-limit", set_limit), ("annotation", annotation), ("config", config), ("env", env))
    memory = next(
        ((name, quota.memory_bytes) for name, quota in sources if quota and quota.memory_bytes is not None),
        ("none", NO_MEMORY_LIMIT),
    )
    core = next(
        ((name, quota.core_percent) for name, quota in sources if quota and quota.core_percent is not None),
        ("none", NO_CORE_LIMIT),
    )
    return ClientLimits(memory[1], memory[0], core[1], core[0])
