"""XID errors and other critical events, from NVML's event set. Polled without waiting.

Counts are kept for the life of the agent: a new session with the driver has a new event set, but the same counts.
"""

import ctypes
from collections.abc import Mapping
from ctypes import byref, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass, field

from gpucommons.model.gpu import RECENT_S, XidRecord
from gpucommons.sources.nvml import library
from gpucommons.sources.nvml.calls import Handle
from gpucommons.sources.nvml.header import EventData, OpaquePointer

_XID = 0x8
# Events other than XIDs that matter to an administrator; P-state and clock changes are not errors.
_NAMES: Mapping[int, str] = {
    0x2: "double_bit_ecc_error",
    0x200: "single_bit_ecc_error_storm",
    0x400: "dram_retirement",
    0x800: "dram_retirement_failure",
    0x1000: "non_fatal_poison_error",
    0x2000: "fatal_poison_error",
    0x4000: "gpu_unavailable",
    0x8000: "gpu_recovery_action",
}
_COUNTED = _XID | sum(_NAMES)
# A burst must not delay the pass: the rest is counted in the next one.
_MAX_PER_PASS = 1000


@dataclass(slots=True)
class _Counts:
    watched: bool = False
    xids: dict[int, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    last_code: int | None = None
    last_wall_s: float | None = None
    recent: dict[tuple[int, int], int] = field(default_factory=dict)


class EventCounts:
    """Event counts by GPU. Pure; a record is the same object until it changes."""

    def __init__(self) -> None:
        self._counts: dict[str, _Counts] = {}
        self._records: dict[str, XidRecord] = {}

    def watch(self, uuid: str, watched: bool) -> None:
        self._of(uuid).watched = watched

    def add(self, uuid: str, kind: int, data: int, wall_s: float) -> None:
        counts = self._of(uuid)
        if kind == _XID:
            counts.xids[data] = counts.xids.get(data, 0) + 1
            counts.last_code, counts.last_wall_s = data, wall_s
            self._count_recent(counts, data, wall_s)
        elif kind in _NAMES:
            counts.events[_NAMES[kind]] = counts.events.get(_NAMES[kind], 0) + 1

    def record(self, uuid: str) -> XidRecord:
        xid_record = self._records.get(uuid)
        if xid_record is None:
            counts = self._of(uuid)
            xid_record = self._records[uuid] = XidRecord(
                counts.watched,
                dict(counts.xids),
                counts.last_code,
                counts.last_wall_s,
                dict(counts.events),
                dict(counts.recent),
            )
        return xid_record

    @staticmethod
    def _count_recent(counts: _Counts, code: int, wall_s: float) -> None:
        """By the second, so that a burst takes no more memory than a steady rate."""
        second = int(wall_s)
        first = next(iter(counts.recent), (second, code))
        if first[0] < second - RECENT_S:
            counts.recent = {key: count for key, count in counts.recent.items() if key[0] >= second - RECENT_S}
        counts.recent[(second, code)] = counts.recent.get((second, code), 0) + 1

    def _of(self, uuid: str) -> _Counts:
        self._records.pop(uuid, None)
        return self._counts.setdefault(uuid, _Counts())


class EventSet:
    """The event set of one session."""

    def __init__(self, book: EventCounts) -> None:
        self._book = book
        self._uuids: dict[int, str] = {}
        self._set = OpaquePointer()
        create = library.function("nvmlEventSetCreate")
        self._wait = library.function("nvmlEventSetWait_v2")
        self._open = create is not None and self._wait is not None and create(byref(self._set)) == library.OK
        self._data = EventData()
        self._reference = byref(self._data)
        self._no_time = c_uint(0)

    def watch(self, handle: Handle, uuid: str) -> None:
        self._book.watch(uuid, self._open and self._register(handle))
        address = ctypes.cast(handle, c_void_p).value  # type: ignore[arg-type]
        if address is not None:
            self._uuids[address] = uuid

    def _register(self, handle: Handle) -> bool:
        """Register the events that this GPU supports: an unsupported one makes the whole registration fail."""
        supported = library.function("nvmlDeviceGetSupportedEventTypes")
        register = library.function("nvmlDeviceRegisterEvents")
        types = c_ulonglong()
        if supported is None or register is None or supported(handle, byref(types)) != library.OK:
            return False
        types_to_count = types.value & _COUNTED
        return bool(types_to_count & _XID) and register(handle, c_ulonglong(types_to_count), self._set) == library.OK

    def poll(self, wall_s: float) -> None:
        """Count all events since the last poll."""
        wait = self._wait
        if not self._open or wait is None:
            return
        for _ in range(_MAX_PER_PASS):
            code = wait(self._set, self._reference, self._no_time)
            if code in library.SESSION_LOST:
                raise library.SessionLost(code)
            if code:
                return
            address = self._data.device
            uuid = self._uuids.get(address) if address is not None else None
            if uuid is not None:
                self._book.add(uuid, self._data.event_type, self._data.event_data, wall_s)

    def close(self) -> None:
        free = library.function("nvmlEventSetFree")
        if self._open and free is not None:
            free(self._set)
        self._open = False
