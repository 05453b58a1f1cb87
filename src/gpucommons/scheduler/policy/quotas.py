"""How much memory and what share of the GPU's time a client may have, its class, and which source says so. Pure.

Memory, share and class are looked up separately; the first source that has a value decides:
  set-limit    set by an operator for that client or its pod, for as long as the agent runs (class: set-class)
  annotation   gpucommons.io/memory, core and class, else xpushare.com/ or nvshare.com/gpu-memory-limit and
               gpu-core-limit, on the pod; one that is above what the config file sets does not count
  config       the first rule of the config file whose patterns match the client's pod, namespace and uid
  label        the label gpucommons.class of the program's container
  lease        requested for what `gpucommons run --class` has started
  env          requested by the client itself when it registered
  none         no limit
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, NamedTuple, TypeVar

from gpucommons.base.text import LARGEST_BYTES, parse_core, parse_memory
from gpucommons.model.words import SharingClass
from gpucommons.model.workloads import CLASS_ANNOTATION, CORE_LIMIT_ANNOTATIONS, MEMORY_LIMIT_ANNOTATIONS
from gpucommons.scheduler.policy.state import Client, client_name

NO_MEMORY_LIMIT: Final = 0
NO_CORE_LIMIT: Final = 100
# A class of higher rank gets the GPU from those of lower rank.
_RANK: Final = {SharingClass.BACKGROUND: 0, SharingClass.BATCH: 1, SharingClass.LATENCY: 2}

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class QuotaValues:
    """The values of one source; None where it has none."""

    memory_bytes: int | None = None
    core_percent: int | None = None
    sharing_class: SharingClass | None = None


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
    sharing_class: SharingClass = SharingClass.BATCH
    class_source: str = "none"


NO_LIMITS: Final = ClientLimits()


def from_annotations(annotations: Mapping[str, str]) -> QuotaValues:
    """The limits in a pod's annotations; raises ValueError, naming the annotation, if one in force is malformed."""
    return QuotaValues(
        _read_annotation(annotations, MEMORY_LIMIT_ANNOTATIONS, parse_memory),
        _read_annotation(annotations, CORE_LIMIT_ANNOTATIONS, parse_core),
        _read_annotation(annotations, (CLASS_ANNOTATION,), parse_class),
    )


def parse_class(text: str) -> SharingClass:
    """Raises ValueError."""
    try:
        return SharingClass(text.strip().lower())
    except ValueError:
        raise ValueError(f"unknown class {text!r}: use {', '.join(SharingClass)}") from None


def _read_annotation(
    annotations: Mapping[str, str], names: Iterable[str], parse: Callable[[str], Value]
) -> Value | None:
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
    return _first(rule.quota for rule in rules if rule.matches(pod, namespace, uid))


def _first(quotas: Iterable[QuotaValues]) -> QuotaValues:
    """Of each value, the first one that is given."""
    quotas = list(quotas)
    memory = next((quota.memory_bytes for quota in quotas if quota.memory_bytes is not None), None)
    core = next((quota.core_percent for quota in quotas if quota.core_percent is not None), None)
    chosen = next((quota.sharing_class for quota in quotas if quota.sharing_class is not None), None)
    return QuotaValues(memory, core, chosen)


def decide(
    *,
    set_limit: QuotaValues | None = None,
    annotation: QuotaValues | None = None,
    config: QuotaValues | None = None,
    label: QuotaValues | None = None,
    lease: QuotaValues | None = None,
    env: QuotaValues | None = None,
) -> ClientLimits:
    annotation = _within(annotation, config)
    sources = (
        ("set-limit", set_limit),
        ("annotation", annotation),
        ("config", config),
        ("label", label),
        ("lease", lease),
        ("env", env),
    )
    memory = next(
        ((name, quota.memory_bytes) for name, quota in sources if quota and quota.memory_bytes is not None),
        ("none", NO_MEMORY_LIMIT),
    )
    core = next(
        ((name, quota.core_percent) for name, quota in sources if quota and quota.core_percent is not None),
        ("none", NO_CORE_LIMIT),
    )
    chosen = next(
        ((name, quota.sharing_class) for name, quota in sources if quota and quota.sharing_class is not None),
        ("none", SharingClass.BATCH),
    )
    source = "set-class" if chosen[0] == "set-limit" else chosen[0]
    return ClientLimits(memory[1], memory[0], core[1], core[0], chosen[1], source)


def _within(annotation: QuotaValues | None, config: QuotaValues | None) -> QuotaValues | None:
    """What a pod may say of itself: its annotations can lower the limits of the config file, and not raise them."""
    if annotation is None or config is None:
        return annotation
    memory, core, chosen = annotation.memory_bytes, annotation.core_percent, annotation.sharing_class
    if memory is not None and config.memory_bytes is not None and memory > config.memory_bytes:
        memory = None
    if core is not None and config.core_percent is not None and core > config.core_percent:
        core = None
    if chosen is not None and config.sharing_class is not None and _RANK[chosen] > _RANK[config.sharing_class]:
        chosen = None
    return QuotaValues(memory, core, chosen)


# Which limits are in force for each client: the sources of quotas, looked up by client. Pure.


class PodName(NamedTuple):
    namespace: str
    pod: str


# As nvshare's library sends it from outside of a pod.
NO_POD: Final = PodName("none", "none")


class LimitLookup:
    def __init__(self, rules: Sequence[QuotaRule] = ()) -> None:
        self.rules = tuple(rules)
        self.annotations: Mapping[tuple[str, str], QuotaValues] = {}
        self._set: dict[str, QuotaValues] = {}
        self._requested: dict[int, QuotaValues] = {}
        # The pods of clients whose processes were identified: these count, whatever the clients claim.
        self._pods: dict[int, PodName] = {}
        # Clients whose processes are in no pod: what they claim counts only where no pods are known, as a mere name.
        self._outside: set[int] = set()
        self.knows_pods = False
        self._limits: dict[int, ClientLimits] = {}

    def enter(
        self, client: Client, memory_limit_bytes: int, core_limit_percent: int, *, in_pod: bool = True
    ) -> ClientLimits:
        """A new client, with the limits that it requested itself. `in_pod` is False where it is known to be in none."""
        if not in_pod:
            self._outside.add(client.id)
        if memory_limit_bytes or core_limit_percent:
            self._requested[client.id] = from_client(memory_limit_bytes, core_limit_percent)
        return self.decide(client)

    def leave(self, client: Client) -> None:
        del self._limits[client.id]
        self._requested.pop(client.id, None)
        self._set.pop(client_name(client.id), None)
        self._pods.pop(client.id, None)
        self._outside.discard(client.id)

    def identify(self, client: Client, pod: PodName) -> bool:
        """The kernel and attribution know the pod of this client. Returns whether its limits may have changed."""
        before = self._pod_of(client)
        self._outside.discard(client.id)
        self._pods[client.id] = pod
        return before != pod

    def names(self, client: Client) -> tuple[str, str, str]:
        """The names that mean this client, the most specific first: its id, namespace/pod, pod."""
        namespace, pod = self._pod_of(client)
        return client_name(client.id), f"{namespace}/{pod}", pod

    def _pod_of(self, client: Client) -> PodName:
        if self.knows_pods and client.id in self._outside:
            return NO_POD
        return self._pods.get(client.id) or PodName(client.namespace, client.pod)

    def set_limit(self, target: str, quota: QuotaValues) -> None:
        """`target` is a client id, `namespace/pod` or a pod. A value that the quota omits stays as it was set."""
        old = self._set.get(target, QuotaValues())
        self._set[target] = QuotaValues(
            old.memory_bytes if quota.memory_bytes is None else quota.memory_bytes,
            old.core_percent if quota.core_percent is None else quota.core_percent,
            old.sharing_class if quota.sharing_class is None else quota.sharing_class,
        )

    @property
    def targets(self) -> AbstractSet[str]:
        """For which a limit is set."""
        return self._set.keys()

    def clear_limit(self, target: str) -> bool:
        """Whether a limit or class was set for this target."""
        return self._set.pop(target, None) is not None

    def set_for(self, names: Iterable[str]) -> QuotaValues:
        """What an operator set for the first of these names that has a value."""
        return _first(self._set[name] for name in names if name in self._set)

    def put(self, client: Client, limits: ClientLimits) -> None:
        """The limits of a program, which are looked up elsewhere."""
        self._limits[client.id] = limits

    def of(self, client: Client) -> ClientLimits:
        return self._limits.get(client.id, NO_LIMITS)

    def decide(self, client: Client) -> ClientLimits:
        """Looks up the limits in force for this client now."""
        limits = self._limits[client.id] = self._look_up(client)
        return limits

    def _look_up(self, client: Client) -> ClientLimits:
        requested = self._requested.get(client.id)
        if not (self._set or self.annotations or self.rules or requested):
            return NO_LIMITS
        namespace, pod = self._pod_of(client)
        return decide(
            set_limit=self.set_for(self.names(client)),
            annotation=self.annotations.get((namespace, pod)),
            config=from_rules(self.rules, pod, namespace, client.uid),
            env=requested,
        )
