"""The signatures that NVML's getters have. Each function here makes calls of one of them."""

import math
from collections.abc import Callable
from ctypes import byref, c_int, c_uint, c_ulonglong
from functools import partial

import pynvml

from gpucommons.model.gpu import GpuReadings
from gpucommons.sources.nvml import codes
from gpucommons.sources.nvml.call import ABOVE_LIMIT, Clear, Handle, Invoke, Slots, Store
from gpucommons.sources.nvml.library import Function
from gpucommons.sources.nvml.structs import (
    FieldValue,
    Memory,
    MemoryV2,
    Utilization,
    Violation,
    value_of,
)

Made = tuple[Invoke, Store, Clear]
Maker = Callable[[Function, Handle, Slots], Made]
Scalar = type[c_uint] | type[c_int] | type[c_ulonglong]

SLOT = {name: index for index, name in enumerate(GpuReadings._fields)}
# What the driver writes where it has no value. Signed getters have no such marker.
_NOT_AVAILABLE = {c_uint: 2**32 - 1, c_ulonglong: 2**64 - 1, c_int: None}


def clearing(slots: Slots, *names: str) -> Clear:
    indices = tuple(SLOT[name] for name in names)

    def clear() -> None:
        for index in indices:
            slots[index] = None

    return clear


def number(
    name: str,
    *arguments: int,
    ctype: Scalar = c_uint,
    scale: float | int = 1,
    at_most: float = math.inf,
    unknown: int | None = None,
) -> Maker:
    """fn(device, arguments..., &number)."""
    nothing = _NOT_AVAILABLE[ctype] if unknown is None else unknown

    def make(function: Function, handle: Handle, slots: Slots) -> Made:
        out = ctype()
        slot = SLOT[name]

        def store() -> str | None:
            value = out.value
            if value == nothing:
                slots[slot] = None
            elif value > at_most:
                slots[slot] = None
                return ABOVE_LIMIT
            else:
                slots[slot] = value if scale == 1 else value * scale
            return None

        return partial(function, handle, *arguments, byref(out)), store, clearing(slots, name)

    return make


def engine(name: str) -> Maker:
    """fn(device, &percent, &sampling period)."""

    def make(function: Function, handle: Handle, slots: Slots) -> Made:
        percent, period_us = c_uint(), c_uint()
        slot = SLOT[name]

        def store() -> str | None:
            value = percent.value
            if value > 100:
                slots[slot] = None
                return ABOVE_LIMIT
            slots[slot] = value
            return None

        return partial(function, handle, byref(percent), byref(period_us)), store, clearing(slots, name)

    return make


def utilization(function: Function, handle: Handle, slots: Slots) -> Made:
    out = Utilization()
    gpu, memory = SLOT["utilization_percent"], SLOT["memory_utilization_percent"]
    clear = clearing(slots, "utilization_percent", "memory_utilization_percent")

    def store() -> str | None:
        if out.gpu > 100 or out.memory > 100:
            clear()
            return ABOVE_LIMIT
        slots[gpu], slots[memory] = out.gpu, out.memory
        return None

    return partial(function, handle, byref(out)), store, clear


_MEMORY = ("memory_total_bytes", "memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes")


def memory_v2(function: Function, handle: Handle, slots: Slots) -> Made:
    out = MemoryV2()
    out.version = pynvml.nvmlMemory_v2
    total, used, free, reserved = (SLOT[name] for name in _MEMORY)
    clear = clearing(slots, *_MEMORY)

    def store() -> str | None:
        if out.used > out.total or out.free > out.total:
            clear()
            return ABOVE_LIMIT
        slots[total], slots[used], slots[free], slots[reserved] = out.total, out.used, out.free, out.reserved
        return None

    return partial(function, handle, byref(out)), store, clear


def memory_v1(function: Function, handle: Handle, slots: Slots) -> Made:
    """Older drivers: reserved memory is included in used memory and not reported."""
    out = Memory()
    total, used, free, _ = (SLOT[name] for name in _MEMORY)
    clear = clearing(slots, *_MEMORY)

    def store() -> str | None:
        if out.used > out.total or out.free > out.total:
            clear()
            return ABOVE_LIMIT
        slots[total], slots[used], slots[free] = out.total, out.used, out.free
        return None

    return partial(function, handle, byref(out)), store, clear


def field(name: str, field_id: int) -> Maker:
    """One field of nvmlDeviceGetFieldValues. One call each: cost and support differ by field."""

    def make(function: Function, handle: Handle, slots: Slots) -> Made:
        out = FieldValue()
        out.field_id = field_id
        reference = byref(out)
        slot = SLOT[name]

        def invoke() -> int:
            return function(handle, 1, reference) or int(out.code)

        def store() -> str | None:
            slots[slot] = value_of(out)
            return None

        return invoke, store, clearing(slots, name)

    return make


_REMAPPED = (
    "remapped_rows_corrected",
    "remapped_rows_uncorrected",
    "remapped_rows_pending",
    "remapped_rows_failed",
)


def remapped_rows(function: Function, handle: Handle, slots: Slots) -> Made:
    outs = tuple(c_uint() for _ in _REMAPPED)
    indices = tuple(SLOT[name] for name in _REMAPPED)

    def store() -> str | None:
        for index, out in zip(indices, outs, strict=True):
            slots[index] = out.value
        return None

    return partial(function, handle, *map(byref, outs)), store, clearing(slots, *_REMAPPED)


def violation(name: str, policy: int) -> Maker:
    def make(function: Function, handle: Handle, slots: Slots) -> Made:
        out = Violation()
        slot = SLOT[name]

        def store() -> str | None:
            slots[slot] = out.violation_ns
            return None

        return partial(function, handle, policy, byref(out)), store, clearing(slots, name)

    return make


def nvlinks(function: Function, handle: Handle, slots: Slots) -> Made:
    """The number of links that are up. The first link that does not exist ends the count."""
    state = c_uint()
    reference = byref(state)
    slot = SLOT["nvlinks_active"]
    active = 0

    def invoke() -> int:
        nonlocal active
        active = 0
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            code = function(handle, link, reference)
            if code:
                return code if link == 0 else codes.OK
            active += state.value == 1
        return codes.OK

    def store() -> str | None:
        slots[slot] = active
        return None

    return invoke, store, clearing(slots, "nvlinks_active")


def licence(function: Function, handle: Handle, slots: Slots) -> Made:
    """1 if any feature of the vGPU software is licensed, otherwise 0."""
    out = pynvml.c_nvmlGridLicensableFeatures_v4_t()
    slot = SLOT["vgpu_licensed"]

    def store() -> str | None:
        count = min(out.licensableFeaturesCount, len(out.gridLicensableFeatures))
        features = (out.gridLicensableFeatures[i] for i in range(count))
        slots[slot] = int(any(feature.featureState == 1 for feature in features))
        return None

    return partial(function, handle, byref(out)), store, clearing(slots, "vgpu_licensed")
