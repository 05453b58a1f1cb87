"""Which limits are in force for each client: the sources of quotas, looked up by client. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from gpucommons.scheduler.policy import quotas
from gpucommons.scheduler.policy.quotas import ClientLimits, QuotaRule, QuotaValues
from gpucommons.scheduler.policy.state import Client, client_name


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
            self._requested[client.id] = quotas.from_client(memory_limit_bytes, core_limit_percent)
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
        )

    @property
    def targets(self) -> AbstractSet[str]:
        """For which a limit is set."""
        return self._set.keys()

    def clear_limit(self, target: str) -> bool:
        """Whether a limit was set for this target."""
        return self._set.pop(target, None) is not None

    def set_for(self, names: Iterable[str]) -> QuotaValues:
        """What an operator set for the first of these names that has a value."""
        found = [self._set[name] for name in names if name in self._set]
        memory = next((quota.memory_bytes for quota in found if quota.memory_bytes is not None), None)
        core = next((quota.core_percent for quota in found if quota.core_percent is not None), None)
        return QuotaValues(memory, core)

    def put(self, client: Client, limits: ClientLimits) -> None:
        """The limits of a program, which are looked up elsewhere."""
        self._limits[client.id] = limits

    def of(self, client: Client) -> ClientLimits:
        return self._limits.get(client.id, quotas.NO_LIMITS)

    def decide(self, client: Client) -> ClientLimits:
        """Looks up the limits in force for this client now."""
        limits = self._limits[client.id] = self._look_up(client)
        return limits

    def _look_up(self, client: Client) -> ClientLimits:
        requested = self._requested.get(client.id)
        if not (self._set or self.annotations or self.rules or requested):
            return quotas.NO_LIMITS
        namespace, pod = self._pod_of(client)
        return quotas.decide(
            set_limit=self.set_for(self.names(client)),
            annotation=self.annotations.get((namespace, pod)),
            config=quotas.from_rules(self.rules, pod, namespace, client.uid),
            env=requested,
        )
