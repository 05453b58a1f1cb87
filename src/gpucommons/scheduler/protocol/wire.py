"""nvshare's frames, sans-IO: bytes in, typed messages out, and back. One Decoder per connection.

It has no socket and never raises on what a peer sent: invalid data gives one ProtocolError with a short constant
reason, and the decoder returns nothing more after it.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal

from gpucommons.base.text import parse_decimal

Version = Literal[1, 2]

CONTROL_ID: Final = 0xBEEF


class MessageType(IntEnum):
    REGISTER = 1
    SCHED_ON = 2
    SCHED_OFF = 3
    REQ_LOCK = 4
    LOCK_OK = 5
    DROP_LOCK = 6
    LOCK_RELEASED = 7
    SET_TQ = 8
    MEM_UPDATE = 9
    WAIT_FOR_MEM = 10
    MEM_AVAILABLE = 11
    PREPARE_SWAP_OUT = 12
    UPDATE_LIMIT = 13
    UPDATE_CORE_LIMIT = 14


_V1: Final = struct.Struct("<B254s254sQ20s")
_V2: Final = struct.Struct("<BH254s254s96sQ20sQQii")
V1_FRAME_BYTES: Final = _V1.size
V2_FRAME_BYTES: Final = _V2.size
_V1_ID: Final = struct.Struct("<509xQ")
_V2_ID: Final = struct.Struct("<607xQ")
_V2_MEMORY: Final = struct.Struct("<635xQ")
_FRAME_BYTES: Final[dict[Version, int]] = {1: V1_FRAME_BYTES, 2: V2_FRAME_BYTES}

_CONTROL_TYPES: Final = frozenset({MessageType.SCHED_ON, MessageType.SCHED_OFF, MessageType.SET_TQ})
_FIRST_TYPES: Final = _CONTROL_TYPES | {MessageType.REGISTER}
_NO_SIZE: Final = 1 << 30
_LONGEST_QUANTUM_S: Final = 86_400


@dataclass(frozen=True, slots=True)
class Register:
    """`claimed_pid` is the pid in the client's own namespace; limits are those of its environment."""

    version: Version
    pod: str
    namespace: str
    gpu: str = ""
    claimed_pid: int = 0
    memory_limit_bytes: int = 0
    core_limit_percent: int = 0


@dataclass(frozen=True, slots=True)
class RequestLock:
    pass


@dataclass(frozen=True, slots=True)
class LockReleased:
    pass


@dataclass(frozen=True, slots=True)
class MemoryUpdate:
    used_bytes: int


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """A request of nvsharectl: on, off, or a quantum (only then `quantum_s` is set)."""

    type: MessageType
    quantum_s: int | None = None


@dataclass(frozen=True, slots=True)
class ProtocolError:
    """The data is not a frame of this protocol. The reason is a label value: short, constant, without data."""

    reason: str


Message = Register | RequestLock | LockReleased | MemoryUpdate | ControlRequest
Received = Message | ProtocolError

REQUEST_LOCK: Final = RequestLock()
LOCK_RELEASED: Final = LockReleased()

_NOTHING: Final[tuple[Received, ...]] = ()
# Frames without a payload: shared tuples save the hot path a list and an object for each message.
_BARE: Final[tuple[tuple[Received, ...] | None, ...]] = tuple(
    (REQUEST_LOCK,) if kind == MessageType.REQ_LOCK else (LOCK_RELEASED,) if kind == MessageType.LOCK_RELEASED else None
    for kind in range(256)
)


class Decoder:
    """Frames of one connection. `version` is None until the first frame.

    Data of at least `lone_bytes` begins with a whole frame of a client, whose first byte is its type. A caller may
    handle such a frame itself and feed only the rest.
    """

    __slots__ = ("_control", "_dead", "_frame_bytes", "_pending", "lone_bytes", "version")

    def __init__(self) -> None:
        self.version: Version | None = None
        self._frame_bytes = 0
        # The size of data that holds exactly one frame of a client, while no bytes are pending.
        self.lone_bytes = _NO_SIZE
        self._pending = b""
        self._control = False
        self._dead = False

    def feed(self, data: bytes) -> Sequence[Received]:
        """The messages that these bytes complete, in order."""
        if len(data) == self.lone_bytes:
            bare = _BARE[data[0]]
            if bare is not None:
                return bare
        return self._feed(data)

    def _feed(self, data: bytes) -> Sequence[Received]:
        if self._dead:
            return _NOTHING
        if self._pending:
            data = self._pending + data
        messages: list[Received] = []
        at = 0
        if not self._frame_bytes:
            first = self._first_frame(data)
            if first is None:
                self._pending = data
                return _NOTHING
            messages.append(first)
            at = self._frame_bytes
        while not self._dead and len(data) - at >= self._frame_bytes:
            messages.append(self._decode(data, at))
            at += self._frame_bytes
        self._pending = b"" if self._dead or at == len(data) else data[at:]
        clean = not (self._dead or self._control or self._pending)
        self.lone_bytes = self._frame_bytes if clean else _NO_SIZE
        return messages

    def _first_frame(self, data: bytes) -> Received | None:
        """The first frame, once it is complete; it decides the version. None: more bytes are needed."""
        if not data:
            return None
        if data[0] not in _FIRST_TYPES:
            return self._fail("unexpected_first_frame")
        if data[0] == MessageType.REGISTER:
            return self._first_register(data)
        return self._first_control(data)

    def _first_register(self, data: bytes) -> Received | None:
        if len(data) < 3:
            return None
        version: Version = 2 if data[1] == 2 and data[2] == 0 else 1
        if len(data) < _FRAME_BYTES[version]:
            return None
        self._settle(version)
        return _decode_register(data, version)

    def _first_control(self, data: bytes) -> Received | None:
        self._control = True
        if len(data) < V1_FRAME_BYTES:
            return None
        if _V1_ID.unpack_from(data)[0] == CONTROL_ID:
            self._settle(1)
        elif len(data) < V2_FRAME_BYTES:
            return None
        elif _V2_ID.unpack_from(data)[0] == CONTROL_ID:
            self._settle(2)
        else:
            return self._fail("no_control_id")
        return self._decode_control(data, 0)

    def _decode(self, data: bytes, at: int) -> Received:
        kind = data[at]
        if self._control:
            if kind in _CONTROL_TYPES:
                return self._decode_control(data, at)
            return self._fail("unexpected_type")
        bare = _BARE[kind]
        if bare is not None:
            return bare[0]
        if kind == MessageType.MEM_UPDATE and self.version == 2:
            return MemoryUpdate(_V2_MEMORY.unpack_from(data, at)[0])
        if kind == MessageType.REGISTER:
            return _decode_register(data[at : at + self._frame_bytes], self.version or 1)
        return self._fail("unexpected_type" if 1 <= kind <= len(MessageType) else "unknown_type")

    def _decode_control(self, data: bytes, at: int) -> Received:
        kind = MessageType(data[at])
        if kind is not MessageType.SET_TQ:
            return ControlRequest(kind)
        offset = at + (517 if self.version == 1 else 615)
        seconds = parse_decimal(_text(data[offset : offset + 20]))
        if seconds is None or not 1 <= seconds <= _LONGEST_QUANTUM_S:
            return self._fail("bad_quantum")
        return ControlRequest(kind, seconds)

    def _settle(self, version: Version) -> None:
        self.version = version
        self._frame_bytes = _FRAME_BYTES[version]

    def _fail(self, reason: str) -> ProtocolError:
        self._dead = True
        return ProtocolError(reason)


def _text(raw: bytes) -> str:
    """Up to the first NUL. Bytes that are not UTF-8 become escapes."""
    return raw.split(b"\0", 1)[0].decode("utf-8", "backslashreplace")


def _pad(text: str, size: int) -> bytes:
    return text.encode("utf-8", "surrogateescape")[:size]


def _decode_register(frame: bytes, version: Version) -> Register:
    if version == 1:
        _, pod, namespace, _, _ = _V1.unpack_from(frame)
        return Register(1, _text(pod), _text(namespace))
    _, _, pod, namespace, gpu, _, _, _, memory_limit, core_limit, pid = _V2.unpack_from(frame)
    return Register(2, _text(pod), _text(namespace), _text(gpu), pid, memory_limit, core_limit)


def encode(
    version: Version,
    type: MessageType,
    *,
    pod: str = "",
    namespace: str = "",
    gpu: str = "",
    id: int = 0,
    data: bytes = b"",
    memory_usage_bytes: int = 0,
    memory_limit_bytes: int = 0,
    core_limit_percent: int = 0,
    pid: int = 0,
) -> bytes:
    """One frame. A v1 frame has no room for the later fields: they are omitted."""
    if version == 1:
        return _V1.pack(type, _pad(pod, 254), _pad(namespace, 254), id, data)
    return _V2.pack(
        type,
        2,
        _pad(pod, 254),
        _pad(namespace, 254),
        _pad(gpu, 96),
        id,
        data,
        memory_usage_bytes,
        memory_limit_bytes,
        core_limit_percent,
        pid,
    )


def encode_status(version: Version, on: bool, client_id: int, core_limit_percent: int) -> bytes:
    """The answer to REGISTER, and the broadcast after on and off."""
    kind = MessageType.SCHED_ON if on else MessageType.SCHED_OFF
    return encode(
        version,
        kind,
        id=client_id,
        data=b"%016x" % client_id,
        core_limit_percent=core_limit_percent,
    )


# Frames without a payload, ready to be written: PLAIN[version][type].
PLAIN: Final[dict[Version, tuple[bytes, ...]]] = {
    version: (b"", *(encode(version, type) for type in MessageType)) for version in _FRAME_BYTES
}


@dataclass(frozen=True, slots=True)
class SchedulerReply:
    """A frame from the scheduler, as a client reads it."""

    type: int
    data: str = ""
    memory_limit_bytes: int = 0
    core_limit_percent: int = 0


class ReplyDecoder:
    """The client's side: frames of a known version. Unknown types are returned, too: real clients ignore them."""

    __slots__ = ("_frame_bytes", "_pending", "_version")

    def __init__(self, version: Version) -> None:
        self._version = version
        self._frame_bytes = _FRAME_BYTES[version]
        self._pending = b""

    def feed(self, data: bytes) -> list[SchedulerReply]:
        data = self._pending + data
        whole = len(data) - len(data) % self._frame_bytes
        self._pending = data[whole:]
        return [self._decode(data, at) for at in range(0, whole, self._frame_bytes)]

    def _decode(self, data: bytes, at: int) -> SchedulerReply:
        if self._version == 1:
            kind, _, _, _, text = _V1.unpack_from(data, at)
            return SchedulerReply(kind, _text(text))
        kind, _, _, _, _, _, text, _, memory_limit, core_limit, _ = _V2.unpack_from(data, at)
        return SchedulerReply(kind, _text(text), memory_limit, core_limit)
