"""Driver calls on one GPU, prepared once: arguments and the place of the result are allocated in advance.

NVML's getters have a few signatures; a function here makes calls of one of them. A call runs every second or every
15 seconds, by its cost on this machine: its lane.
"""

import math
from collections.abc import Callable
from ctypes import byref, c_int, c_uint, c_ulonglong
from enum import StrEnum
from functools import partial

from gpucommons.model.gpu import GpuReadings, LaneMove
from gpucommons.sources.nvml import library
from gpucommons.sources.nvml.header import (
    MEMORY_V2_VERSION,
    NVML_NVLINK_MAX_LINKS,
    VALUE_MEMBERS,
    FieldValue,
    LicensableFeatures,
    Memory,
    MemoryV2,
    Utilization,
    Violation,
)
from gpucommons.sources.nvml.library import Function

# Which calls run every second and which every 15 seconds, by their cost on this machine. Pure.
#
# A call moves to the slow lane if the median of its last five durations exceeds the budget of the fast lane. It moves
# back after five in a row below half of the budget, so that a call near the budget does not oscillate and a single
# slow call has no effect. A call that the scheduler depends on stays in the fast lane at any cost.

FAST_BUDGET_S = 0.0025
SLOW_EVERY_S = 15.0

_WINDOW = 5
_MASK = (1 << _WINDOW) - 1
_MAJORITY = _WINDOW // 2 + 1


class Lane(StrEnum):
    FAST = "fast"
    SLOW = "slow"


def remember(history: int, hit: bool) -> int:
    """The last five results as bits, the newest lowest. The median exceeds a limit if three of them do."""
    return (history << 1 | hit) & _MASK


def is_costly(history: int) -> bool:
    return history.bit_count() >= _MAJORITY


def is_cheap_again(history: int) -> bool:
    return history == _MASK


class LaneTable:
    """The lane of each call. Kept for the life of the agent: a new session does not have to learn it again."""

    def __init__(self) -> None:
        self.moves: dict[LaneMove, int] = {}
        self._slow: set[tuple[str, str]] = set()

    def lane(self, uuid: str, call: str, home: Lane) -> Lane:
        return Lane.SLOW if (uuid, call) in self._slow else home

    def move(self, uuid: str, call: str, to: Lane) -> None:
        (self._slow.add if to is Lane.SLOW else self._slow.discard)((uuid, call))
        move = LaneMove(uuid, call, to.value)
        self.moves[move] = self.moves.get(move, 0) + 1

    def slow_calls(self) -> tuple[LaneMove, ...]:
        return tuple(LaneMove(uuid, call, Lane.SLOW.value) for uuid, call in sorted(self._slow))

    def forget(self) -> None:
        """Call when the driver has changed: its costs differ."""
        self._slow.clear()


# One driver call on one GPU, prepared once: its arguments and the place of its result are allocated in advance.
#
# What runs every second must cost little more than the call itself, so nothing is looked up or allocated then.

Handle = object
Slots = list[int | float | None]
Invoke = Callable[[], int]
# Stores the result. Returns a reason if the result cannot be right and was dropped.
Store = Callable[[], str | None]
Clear = Callable[[], None]

ABOVE_LIMIT = "above_limit"


class Call:
    """`key` is what is remembered if the GPU does not support the call; `history` are the last results of timing it."""

    __slots__ = ("clear", "history", "home", "invoke", "key", "name", "store")

    def __init__(self, name: str, key: str, home: Lane, invoke: Invoke, store: Store, clear: Clear) -> None:
        self.name = name
        self.key = key
        self.home = home
        self.invoke = invoke
        self.store = store
        self.clear = clear
        self.history = 0


def value_of(field: FieldValue) -> int | float | None:
    """The value, by the type that the driver reports; None for an unknown type."""
    kind = field.value_type
    return getattr(field.value, VALUE_MEMBERS[kind]) if kind < len(VALUE_MEMBERS) else None


# The signatures that NVML's getters have. Each function here makes calls of one of them.

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
    out.version = MEMORY_V2_VERSION
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
        for link in range(NVML_NVLINK_MAX_LINKS):
            code = function(handle, link, reference)
            if code:
                return code if link == 0 else library.OK
            active += state.value == 1
        return library.OK

    def store() -> str | None:
        slots[slot] = active
        return None

    return invoke, store, clearing(slots, "nvlinks_active")


def licence(function: Function, handle: Handle, slots: Slots) -> Made:
    """1 if any feature of the vGPU software is licensed, otherwise 0."""
    out = LicensableFeatures()
    slot = SLOT["vgpu_licensed"]

    def store() -> str | None:
        count = min(out.count, len(out.features))
        slots[slot] = int(any(out.features[i].state == 1 for i in range(count)))
        return None

    return partial(function, handle, byref(out)), store, clearing(slots, "vgpu_licensed")
