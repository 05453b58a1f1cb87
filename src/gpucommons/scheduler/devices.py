"""Which GPUs there are, and which of them a client means. Plain values in; the policy is told what changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpucommons.scheduler.actions import Action
from gpucommons.scheduler.gpu_names import DEFAULT_GPU, KnownGpu, resolve
from gpucommons.scheduler.overhead import next_overhead
from gpucommons.scheduler.policy import Policy
from gpucommons.scheduler.state import Gpu, Standing

# Above this a running client counts as hot: its figures say nothing about its overhead.
_HOT_RATIO: Final = 0.5


@dataclass(frozen=True, slots=True)
class Busy:
    """The share of the time since then, on the monotonic clock, in which a device was busy."""

    ratio: float
    since_s: float


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What NVML or GPM told of one device. `busy` if it was measured anew; `process_bytes` is by the host's pids."""

    uuid: str
    index: int
    total_bytes: int | None = None
    busy: Busy | None = None
    process_bytes: Mapping[int, int] = field(default_factory=dict)


class Devices:
    def __init__(self, policy: Policy, most_unknown: int, now: float) -> None:
        self._policy = policy
        self._most_unknown = most_unknown
        self._known: tuple[KnownGpu, ...] = ()
        # What clients call their GPUs, once worked out. Emptied when the GPUs change, and when it grows.
        self._called: dict[str, str] = {}
        policy.add_gpu(DEFAULT_GPU, None, now)

    @property
    def present(self) -> frozenset[str]:
        return frozenset(gpu.uuid for gpu in self._known)

    def update(self, facts: Sequence[GpuFacts], now: float) -> list[Action]:
        """What is known of the devices now; empty where NVML does not answer."""
        known = tuple(KnownGpu(fact.uuid, fact.index) for fact in facts)
        if known != self._known:
            self._known = known
            self._called.clear()
        actions: list[Action] = []
        for fact in facts:
            gpu = self._gpu_of(fact, now)
            if fact.total_bytes is not None and fact.total_bytes != gpu.total_bytes:
                actions += self._policy.resize(gpu, fact.total_bytes, now)
            if fact.busy is not None:
                actions += self._policy.sample_busy(gpu, fact.busy.ratio, now - fact.busy.since_s, now)
            actions += self._learn_memory(gpu, fact, now)
        for gpu in list(self._policy.gpus.values()):
            self.forget_unused(gpu)
        return actions

    def called(self, name: str, now: float) -> Gpu:
        """The GPU that a client means. Names of no known GPU get a queue of their own, up to a number of them."""
        key = self._called.get(name)
        if key is None:
            if len(self._called) > 1000:
                self._called.clear()
            key = self._called[name] = resolve(name, self._known)
        policy = self._policy
        gpu = policy.gpus.get(key)
        if gpu is not None:
            return gpu
        if key != DEFAULT_GPU and len(policy.gpus) - len(self._known) >= self._most_unknown:
            policy.refusals["too_many_gpu_names"] += 1
            return self.called("", now)
        return policy.add_gpu(key, int(key) if key.isdigit() else None, now)

    def forget_unused(self, gpu: Gpu) -> None:
        """The queue of a GPU that is not there goes with its last client; the unnamed one stays while it is alone."""
        alone = gpu.key == DEFAULT_GPU and not self._known
        if not gpu.clients and not alone and gpu.key not in self.present:
            self._policy.remove_gpu(gpu)

    def _gpu_of(self, fact: GpuFacts, now: float) -> Gpu:
        policy = self._policy
        gpu = policy.gpus.get(fact.uuid)
        if gpu is None:
            unnamed = policy.gpus.get(DEFAULT_GPU)
            if unnamed is not None and fact.index == min(known.index for known in self._known):
                policy.rename_gpu(unnamed, fact.uuid, fact.index)
                return unnamed
            return policy.add_gpu(fact.uuid, fact.index, now)
        gpu.index = fact.index
        return gpu

    def _learn_memory(self, gpu: Gpu, fact: GpuFacts, now: float) -> list[Action]:
        actions: list[Action] = []
        for client in gpu.clients.values():
            client.nvml_bytes = fact.process_bytes.get(client.pid)
            running = client.standing is Standing.RUNNING
            hot = running and (fact.busy is None or fact.busy.ratio > _HOT_RATIO)
            overhead = next_overhead(client.overhead_bytes, client.used_bytes, client.nvml_bytes, hot)
            if overhead is not None and overhead != client.overhead_bytes:
                actions += self._policy.update_overhead(client, overhead, now)
        return actions
