"""MIG: how a GPU is split now, and the memory and GPM of its instances.

A MIG device is identified by its UUID. No handle of an instance is kept beyond the pass that requested it: the driver
reuses handles, and a handle that is held blocks changes of the layout.
"""

from collections import Counter
from collections.abc import Iterator
from ctypes import byref, c_char_p, c_uint
from typing import NamedTuple

from gpucommons.model.gpu import GpmReading, MigInstance, MigMemory
from gpucommons.sources.nvml import library
from gpucommons.sources.nvml.calls import Handle
from gpucommons.sources.nvml.gpm import GpmSampler
from gpucommons.sources.nvml.header import (
    MEMORY_V2_VERSION,
    DeviceAttributes,
    GpuInstanceInfo,
    MemoryV2,
    OpaquePointer,
)
from gpucommons.sources.nvml.identity import StaticFacts
from gpucommons.sources.nvml.processes import Instance

_NOT_SUPPORTED = 3
Placement = tuple[int, int]


class MigLayout(NamedTuple):
    """The MIG devices of a GPU, and the number of further ones that the driver lists without ids."""

    instances: tuple[MigInstance, ...] = ()
    without_id: int = 0


class MigMode(NamedTuple):
    """`pending` differs from `enabled` while a change waits for the GPU to be free."""

    enabled: bool
    pending: bool


def read_mode(handle: Handle) -> MigMode | None:
    """None if the GPU does not support MIG."""
    modes = StaticFacts(handle).numbers("nvmlDeviceGetMigMode", count=2)
    return None if modes is None else MigMode(modes[0] == 1, modes[1] == 1)


def _profile(name: str, attributes: DeviceAttributes) -> str:
    """The profile: the end of the MIG device's name, or composed of its attributes."""
    _, separator, profile = name.partition(" MIG ")
    if separator:
        return profile
    gpu, compute = attributes.gpu_instance_slices, attributes.compute_instance_slices
    part = "" if gpu == compute else f"{compute}c."
    return f"{part}{gpu}g.{round(attributes.memory_mib / 1024)}gb"


def _placement(handle: Handle, gpu_instance_id: int) -> Placement | None:
    """The placement of the instance in the GPU. Only root can read it."""
    by_id, info = library.function("nvmlDeviceGetGpuInstanceById"), library.function("nvmlGpuInstanceGetInfo")
    instance, out = OpaquePointer(), GpuInstanceInfo()
    if by_id is None or info is None or by_id(handle, gpu_instance_id, byref(instance)) != library.OK:
        return None
    if info(instance, byref(out)) != library.OK:
        return None
    return out.placement.start, out.placement.size


def _one(device: Handle, mig: Handle, placements: dict[tuple[int, str], Placement]) -> MigInstance | None:
    """One MIG device; None if the driver does not identify it, for example because it was just removed."""
    static = StaticFacts(mig)
    uuid, name = static.text("nvmlDeviceGetUUID"), static.text("nvmlDeviceGetName")
    gpu_instance = static.number("nvmlDeviceGetGpuInstanceId")
    compute_instance = static.number("nvmlDeviceGetComputeInstanceId")
    attributes = DeviceAttributes()
    query = library.function("nvmlDeviceGetAttributes_v2")
    if uuid is None or gpu_instance is None or compute_instance is None or query is None:
        return None
    if query(mig, byref(attributes)) != library.OK:
        return None
    profile = _profile(name or "", attributes)
    placement = placements.get((gpu_instance, profile)) or _placement(device, gpu_instance)
    return MigInstance(
        uuid=uuid,
        gpu_instance_id=gpu_instance,
        compute_instance_id=compute_instance,
        profile=profile,
        gpu_instance_slices=attributes.gpu_instance_slices,
        compute_slices=attributes.compute_instance_slices,
        multiprocessors=attributes.multiprocessors,
        memory_bytes=attributes.memory_mib << 20,
        placement_start=None if placement is None else placement[0],
        placement_size=None if placement is None else placement[1],
    )


def read_slices(device: Handle) -> int | None:
    """The number of compute slices of the GPU, which is the number of smallest instances that fit."""
    return StaticFacts(device).number("nvmlDeviceGetMaxMigDeviceCount") or None


def read_layout(device: Handle, before: tuple[MigInstance, ...]) -> MigLayout:
    """The MIG devices of a GPU. Indices may have gaps."""
    by_index = library.function("nvmlDeviceGetMigDeviceHandleByIndex")
    count = read_slices(device) or 0
    placements: dict[tuple[int, str], Placement] = {
        (instance.gpu_instance_id, instance.profile): (instance.placement_start, instance.placement_size)
        for instance in before
        if instance.placement_start is not None and instance.placement_size is not None
    }
    instances, without_id = [], 0
    for index in range(count if by_index is not None else 0):
        mig = OpaquePointer()
        if by_index is not None and by_index(device, c_uint(index), byref(mig)) == library.OK:
            instance = _one(device, mig, placements)
            if instance is None:
                without_id += 1
            else:
                instances.append(instance)
    return MigLayout(tuple(instances), without_id)


class MigReadings:
    """The changing values of one layout. `changed` is set once an instance of it no longer exists."""

    def __init__(self, device: Handle, instances: tuple[MigInstance, ...], with_gpm: bool) -> None:
        self.layout = instances
        self.changed = False
        self._by_uuid = library.function("nvmlDeviceGetHandleByUUID")
        self._memory_v2 = library.function("nvmlDeviceGetMemoryInfo_v2")
        self._memory: dict[int, MigMemory] = {}
        # Memory and GPM belong to the GPU instance: one call for all of its compute instances.
        self._first = {instance.gpu_instance_id: instance for instance in reversed(instances)}
        self._samplers = {gi: GpmSampler(device, gi) for gi in self._first} if with_gpm else {}

    def alone_in_gpu_instance(self) -> list[MigInstance]:
        """The MIG devices whose GPU instance has no other: its GPM is theirs."""
        counts = Counter(instance.gpu_instance_id for instance in self.layout)
        return [instance for instance in self.layout if counts[instance.gpu_instance_id] == 1]

    def handles(self) -> Iterator[Instance]:
        """A handle of each MIG device, valid for this pass."""
        for instance in self.layout:
            handle = self._handle(instance)
            if handle is not None:
                yield handle, instance.gpu_instance_id, instance.compute_instance_id

    def _handle(self, instance: MigInstance) -> Handle | None:
        handle = OpaquePointer()
        if self._by_uuid is None:
            return None
        code = self._by_uuid(c_char_p(instance.uuid.encode()), byref(handle))
        if code in library.SESSION_LOST:
            raise library.SessionLost(code)
        if code:
            self.changed = True
            return None
        return handle

    # -- memory, as a Call

    def invoke_memory(self) -> int:
        self._memory = {}
        if self._memory_v2 is None:
            return _NOT_SUPPORTED
        out = MemoryV2()
        out.version = MEMORY_V2_VERSION
        for gpu_instance_id, instance in self._first.items():
            handle = self._handle(instance)
            if handle is None:
                continue
            code = self._memory_v2(handle, byref(out))
            if code in library.SETTLED or code in library.GPU_LOST or code in library.SESSION_LOST:
                return code
            if code:
                self.changed = True
            else:
                self._memory[gpu_instance_id] = MigMemory(out.total, out.used, out.free, out.reserved)
        return library.OK

    def clear_memory(self) -> None:
        self._memory = {}

    # -- GPM, as a Call

    def invoke_gpm(self) -> int:
        for sampler in self._samplers.values():
            code = sampler.invoke()
            if code in library.SETTLED or code in library.GPU_LOST or code in library.SESSION_LOST:
                return code
            if code:
                sampler.clear()
                self.changed = True
        return library.OK

    def store_gpm(self) -> str | None:
        dropped = None
        for sampler in self._samplers.values():
            dropped = sampler.store() or dropped
        return dropped

    def clear_gpm(self) -> None:
        for sampler in self._samplers.values():
            sampler.clear()

    # -- the reading

    def instances(self) -> tuple[MigInstance, ...]:
        return tuple(
            MigInstance(
                instance.uuid,
                instance.gpu_instance_id,
                instance.compute_instance_id,
                instance.profile,
                instance.gpu_instance_slices,
                instance.compute_slices,
                instance.multiprocessors,
                instance.memory_bytes,
                instance.placement_start,
                instance.placement_size,
                self._memory.get(instance.gpu_instance_id),
                self._gpm(instance.gpu_instance_id),
            )
            for instance in self.layout
        )

    def _gpm(self, gpu_instance_id: int) -> GpmReading | None:
        sampler = self._samplers.get(gpu_instance_id)
        return None if sampler is None else sampler.reading

    def close(self) -> None:
        for sampler in self._samplers.values():
            sampler.close()
        self._samplers = {}
