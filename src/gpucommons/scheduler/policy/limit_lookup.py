"""Which limits hold for which client now: what the sources of quotas say, looked up and remembered. Pure."""

from collections.abc import Mapping, Sequence

from gpucommons.scheduler.policy import quotas
from gpucommons.scheduler.policy.quotas import ClientLimits, QuotaRule, QuotaValues
from gpucommons.scheduler.policy.state import Client
from gpucommons.scheduler.service.reading import client_name


def names(client: Client) -> tuple[str, str, str]:
    """What a client can be called, the most telling first: its id, namespace/pod, pod."""
    return client_name(client.id), f"{client.namespace}/{client.pod}", client.pod


class LimitTable:
    def __init__(self, rules: Sequence[QuotaRule] = ()) -> None:
        self.rules = tuple(rules)
        self.annotations: Mapping[tuple[str, str], QuotaValues] = {}
        self._set: dict[str, QuotaValues] = {}
        self._asked: dict[int, QuotaValues] = {}
        self._limits: dict[int, ClientLimits] = {}

    def enter(self, client: Client, memory_limit_bytes: int, core_limit_percent: int) -> ClientLimits:
        """A new client, and what it asked for itself."""
        if memory_limit_bytes or core_limit_percent:
            self._asked[client.id] = quotas.from_client(memory_limit_bytes, core_limit_percent)
        return self.decide(client)

    def leave(self, client: Client) -> None:
        del self._limits[client.id]
        self._asked.pop(client.id, None)
        self._set.pop(client_name(client.id), None)

    def set_limit(self, target: str, quota: QuotaValues) -> None:
        """`target` is a client id, `namespace/pod` or a pod. What the quota does not name stays as it was set."""
        old = self._set.get(target, QuotaValues())
        self._set[target] = QuotaValues(
            old.memory_bytes if quota.memory_bytes is None else quota.memory_bytes,
            old.core_percent if quota.core_percent is None else quota.core_percent,
        )

    def of(self, client: Client) -> ClientLimits:
        return self._limits.get(client.id, quotas.NO_LIMITS)

    def decide(self, client: Client) -> ClientLimits:
        """What holds for this client now."""
        limits = self._limits[client.id] = self._look_up(client)
        return limits

    def _look_up(self, client: Client) -> ClientLimits:
        asked = self._asked.get(client.id)
        if not (self._set or self.annotations or self.rules or asked):
            return quotas.NO_LIMITS
        return quotas.decide(
            set_limit=self._set_for(client),
            annotation=self.annotations.get((client.namespace, client.pod)),
            config=quotas.from_rules(self.rules, client.pod, client.namespace, client.uid),
            env=asked,
        )

    def _set_for(self, client: Client) -> QuotaValues:
        found = [self._set[name] for name in names(client) if name in self._set]
        memory = next((quota.memory_bytes for quota in found if quota.memory_bytes is not None), None)
        core = next((quota.core_percent for quota in found if quota.core_percent is not None), None)
        return QuotaValues(memory, core)
