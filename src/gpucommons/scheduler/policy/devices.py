"""The known GPUs, and which of them a client means. Plain values in; events for the policy out.

The memory of a client's process besides its allocations (contexts, libraries) belongs to its device, too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from typing import Final

from gpucommons.base.text import parse_decimal
from gpucommons.model.words import DEFAULT_GPU
from gpucommons.scheduler.policy.policy import Policy
from gpucommons.scheduler.policy.state import Action, Client, ClientStanding, GpuQueue

# Which GPU a client's name for it means. Pure.
#
# A client sends NVIDIA_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES as it is set, or nothing; XPUShare's library sends
# `default` where neither is set. It takes its turns on one GPU: the first of the list, which is CUDA's device 0.
#
# | name                            | GPU                                                                |
# |---------------------------------|--------------------------------------------------------------------|
# | none, `all`, `none`, `void`,    | the GPU with the lowest index (v1 clients never send a name)       |
# | `default`                       |                                                                    |
# | `0`, `1`, ...                   | the GPU with that index                                            |
# | `0:1`                           | the second MIG device of the GPU with index 0                      |
# | `GPU-...`, `MIG-...`            | that device; the beginning of a UUID is enough where it is unique  |
# | a list of these                 | the first of the list                                              |
#
# Names are resolved against the GPUs of the latest reading; where none matches, against GPUs that only earlier readings
# had, the most recent first.

_UNNAMED: Final = frozenset({"", "all", "none", "void", DEFAULT_GPU})


@dataclass(frozen=True, slots=True)
class KnownGpu:
    """A GPU as it was last read. `mig` holds the UUIDs of its MIG devices. GPUs that were last read together have the
    same `generation`; a later reading has a higher one."""

    uuid: str
    index: int
    mig: tuple[str, ...] = ()
    generation: int = 0


def resolve(name: str, gpus: Iterable[KnownGpu]) -> str | None:
    """The UUID of the GPU or MIG device; None where none of these matches."""
    first = name.split(",", 1)[0].strip()
    recent_first = sorted(gpus, key=lambda gpu: (-gpu.generation, gpu.index))
    for _, together in groupby(recent_first, key=attrgetter("generation")):
        uuid = _resolve_among(first, list(together))
        if uuid is not None:
            return uuid
    return None


def _resolve_among(first: str, gpus: Sequence[KnownGpu]) -> str | None:
    if first.lower() in _UNNAMED:
        return gpus[0].uuid
    gpu_part, colon, mig_part = first.partition(":")
    index = parse_decimal(gpu_part)
    if index is None:
        return _by_uuid(first.lower(), gpus)
    gpu = next((gpu for gpu in gpus if gpu.index == index), None)
    if gpu is None or not colon:
        return None if gpu is None else gpu.uuid
    number = parse_decimal(mig_part)
    return gpu.mig[number] if number is not None and number < len(gpu.mig) else None


def _by_uuid(prefix: str, gpus: Iterable[KnownGpu]) -> str | None:
    uuids = [uuid for gpu in gpus for uuid in (gpu.uuid, *gpu.mig)]
    matching = [uuid for uuid in uuids if uuid.lower().startswith(prefix)]
    exact = [uuid for uuid in matching if uuid.lower() == prefix]
    return (exact or matching)[0] if exact or len(matching) == 1 else None


# The memory of a client's process on the GPU besides its allocations: contexts and libraries (O_base).
#
# Pure. It is sampled only while the client has allocated little and runs no kernels. It is smoothed, and kept within
# what a CUDA context can plausibly take.

MIB: Final = 1 << 20
_SMALL_ALLOCATION_BYTES: Final = 256 * MIB
_SMOOTHING: Final = 0.2
_LEAST_BYTES: Final = 256 * MIB
_MAX_BYTES: Final = 4096 * MIB


def next_overhead(known_bytes: int | None, allocated_bytes: int, nvml_bytes: int | None, hot: bool) -> int | None:
    """The estimate after one more sample; None while there was no usable sample."""
    if nvml_bytes is None or hot or allocated_bytes >= _SMALL_ALLOCATION_BYTES:
        return known_bytes
    sample = min(max(nvml_bytes - allocated_bytes, _LEAST_BYTES), _MAX_BYTES)
    if known_bytes is None:
        return sample
    return round(known_bytes + _SMOOTHING * (sample - known_bytes))


# The known GPUs, and which of them a client means. Plain values in; events for the policy out.
#
# A GPU that was read once stays known: a driver that does not answer, or a lost GPU, does not change what a name means.
# While no GPU is known, all clients share the queue `default`. A client whose name matches no known GPU counts as
# unnamed: with all other such clients it is in the queue of the GPU with the lowest index, so that it has no exclusive
# turn next to that of another client. It moves to its GPU's queue when a reading shows which one that is. A client that
# has its GPU keeps it, whatever index the GPU has later.
#
# GPUs that a program on several of them links are one queue, that of the first of them: such a program runs on all of
# its GPUs at once or not at all.

# Above this a running client is hot: its memory says nothing about its overhead.
_HOT_RATIO: Final = 0.5
_MAX_NAMES: Final = 1000


@dataclass(frozen=True, slots=True)
class Busy:
    """The share of time in which a device was busy since `since_s` on the monotonic clock."""

    ratio: float
    since_s: float


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One device as NVML and GPM report it. `busy` is set where it was measured again; `process_bytes` is by host pid;
    `mig` holds the UUIDs of its MIG devices, in the driver's order, and `mig_bytes` the memory of each."""

    uuid: str
    index: int
    total_bytes: int | None = None
    busy: Busy | None = None
    process_bytes: Mapping[int, int] = field(default_factory=dict)
    mig: tuple[str, ...] = ()
    mig_bytes: Mapping[str, int] = field(default_factory=dict)


class DeviceTable:
    def __init__(self, policy: Policy, now: float) -> None:
        self._policy = policy
        self._known: dict[str, KnownGpu] = {}
        self._generation = 0
        # UUIDs by the names that clients use. Cleared when the GPUs change, and when it grows too large.
        self._resolved: dict[str, str | None] = {}
        # The queue of each GPU that is linked to another, by the UUID of the first of them.
        self._leaders: dict[str, str] = {}
        self._totals: dict[str, int] = {}
        # The clients whose names match no known GPU.
        self._unmatched: dict[int, Client] = {}
        policy.add_gpu(DEFAULT_GPU, None, now)

    @property
    def present(self) -> frozenset[str]:
        """The GPUs of the latest reading."""
        return frozenset(gpu.uuid for gpu in self._known.values() if gpu.generation == self._generation)

    def slot_of(self, uuid: str) -> str:
        """The name of a GPU, `3`, or of a MIG device, `6.0`; empty where it is not known."""
        for gpu in self._known.values():
            if gpu.uuid == uuid:
                return str(gpu.index)
            if uuid in gpu.mig:
                return f"{gpu.index}.{gpu.mig.index(uuid)}"
        return ""

    def update(self, facts: Sequence[GpuFacts], now: float) -> list[Action]:
        """A reading of the devices. While the driver does not answer, this is not called and nothing changes."""
        changed = self._remember(facts)
        actions: list[Action] = []
        for fact in facts:
            gpu = self._queue(fact.uuid, now)
            gpu.index = fact.index
            if fact.total_bytes is not None:
                self._totals[fact.uuid] = fact.total_bytes
            self._totals |= fact.mig_bytes
        actions += self._resize(now)
        if changed:
            actions += self._move_resolved(now)
        busy = {fact.uuid: fact.busy for fact in facts if fact.busy is not None}
        for fact in facts:
            gpu = self._queue(fact.uuid, now)
            measured = [busy[device] for device in gpu.devices if device in busy]
            if len(measured) == len(gpu.devices):
                ratio = sum(load.ratio for load in measured) / len(measured)
                since_s = min(load.since_s for load in measured)
                actions += self._policy.sample_busy(gpu, ratio, now - since_s, now)
            actions += self._learn_memory(self._queue(self._leaders.get(fact.uuid, fact.uuid), now), fact, now)
        for gpu in list(self._policy.gpus.values()):
            self.forget_unused(gpu)
        return actions

    def find_queue(self, name: str, now: float) -> GpuQueue:
        """The queue for a client that uses this name for its GPU."""
        return self._queue_of(self._resolve(name) or self._unnamed, now)

    def place(self, client: Client) -> bool:
        """Records the device that a new client's name means. False where GPUs are known and none of them has it."""
        uuid = self._resolve(client.gpu_name)
        client.device = uuid or self._unnamed
        if uuid is None:
            self._unmatched[client.id] = client
        return uuid is not None or not self._known

    @property
    def _unnamed(self) -> str:
        """The GPU of clients that name none."""
        return self._resolve("") or DEFAULT_GPU

    def _queue_of(self, device: str, now: float) -> GpuQueue:
        return self._queue(self._leaders.get(device, device), now)

    def link(self, groups: Sequence[Sequence[str]], now: float) -> list[Action]:
        """Makes one queue of the GPUs of each group, and separates those that are linked no longer."""
        leaders = {device: group[0] for group in groups for device in group if len(group) > 1}
        if leaders == self._leaders:
            return []
        self._leaders = leaders
        for gpu in list(self._policy.gpus.values()):
            linked = tuple(device for device, leader in leaders.items() if leader == gpu.key)
            gpu.devices = linked or (gpu.key,)
        moves = []
        for client in self._policy.clients.values():
            gpu = self._queue(leaders.get(client.device, client.device), now)
            if gpu is not client.gpu:
                moves.append((client, gpu))
        for leader in set(leaders.values()):
            queue = self._queue(leader, now)
            queue.devices = tuple(device for device, first in leaders.items() if first == leader)
        return [*self._policy.move(moves, now), *self._resize(now)]

    def is_linked(self, gpu: GpuQueue) -> bool:
        """Whether the clients of this GPU are in the queue of another."""
        return self._leaders.get(gpu.key, gpu.key) != gpu.key

    def forget_unused(self, gpu: GpuQueue) -> None:
        """Removes the queue of an absent GPU without clients; `default` stays while no GPU is known."""
        alone = gpu.key == DEFAULT_GPU and not self._known
        if not gpu.clients and not alone and gpu.key not in self.present:
            self._policy.remove_gpu(gpu)

    def _resize(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for gpu in self._policy.gpus.values():
            totals = [self._totals[device] for device in gpu.devices if device in self._totals]
            if len(totals) == len(gpu.devices) and (
                sum(totals) != gpu.memory.total_bytes or not gpu.memory.total_known
            ):
                actions += self._policy.resize(gpu, sum(totals), now)
        return actions

    def _resolve(self, name: str) -> str | None:
        if name not in self._resolved:
            if len(self._resolved) > _MAX_NAMES:
                self._resolved.clear()
            self._resolved[name] = resolve(name, self._known.values())
        return self._resolved[name]

    def _queue(self, key: str, now: float) -> GpuQueue:
        gpu = self._policy.gpus.get(key)
        if gpu is None:
            device = self._known.get(key)
            gpu = self._policy.add_gpu(key, None if device is None else device.index, now)
            if key in self._totals:
                # Without clients there is nothing to do about it.
                self._policy.resize(gpu, self._totals[key], now)
        return gpu

    def _remember(self, facts: Sequence[GpuFacts]) -> bool:
        """Records the GPUs of a reading; returns whether they differ from the last reading's."""
        generation = self._generation
        read = {}
        for fact in facts:
            before = self._known.get(fact.uuid)
            mig = self._mig_with(before.mig if before else (), fact.mig)
            read[fact.uuid] = KnownGpu(fact.uuid, fact.index, mig, generation)
        latest = {uuid: gpu for uuid, gpu in self._known.items() if gpu.generation == generation}
        if read == latest:
            return False
        self._generation = generation + 1
        self._known |= {uuid: replace(gpu, generation=self._generation) for uuid, gpu in read.items()}
        self._resolved.clear()
        return True

    def _mig_with(self, before: tuple[str, ...], read: tuple[str, ...]) -> tuple[str, ...]:
        """A MIG device in use cannot be destroyed: one with clients stays known if a reading omits it."""
        missed = tuple(uuid for uuid in before if uuid not in read and uuid in self._policy.gpus)
        # A reading without any MIG device omitted them all: their numbers stay the same.
        return (*read, *missed) if read or not missed else before

    def _move_resolved(self, now: float) -> list[Action]:
        """Moves the clients whose GPU was not known to its queue, or to that of clients that name none."""
        waiting = [client for client in self._unmatched.values() if client.id in self._policy.clients]
        unresolved = self._policy.gpus.get(DEFAULT_GPU)
        programs = () if unresolved is None else (c for c in unresolved.clients.values() if c.is_program)
        self._unmatched = {}
        moves = []
        for client in (*waiting, *programs):
            self.place(client)
            gpu = self._queue_of(client.device, now)
            if gpu is not client.gpu:
                moves.append((client, gpu))
        return self._policy.move(moves, now)

    def _learn_memory(self, gpu: GpuQueue, fact: GpuFacts, now: float) -> list[Action]:
        actions: list[Action] = []
        for client in gpu.clients.values():
            if client.is_program or client.device != fact.uuid:
                continue
            nvml_bytes = fact.process_bytes.get(client.pid)
            running = client.standing is ClientStanding.RUNNING
            hot = running and (fact.busy is None or fact.busy.ratio > _HOT_RATIO)
            overhead = next_overhead(client.memory.overhead_bytes, client.memory.used_bytes, nvml_bytes, hot)
            actions += self._policy.measure_memory(client, nvml_bytes, overhead, now)
        return actions
