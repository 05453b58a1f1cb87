"""The language between the agent and the pauser: one JSON object a line, bounded, every field checked. No I/O.

The pauser speaks first: a hello with the version and whether it can pause. The agent sends requests; each gets one
reply with its number, in any order. A notice reports what the pauser resumed on its own, and which of the programs that
the agent asked to watch are stopped or go on. Whatever does not fit is a PauserProtocolError, which ends the
connection.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser.arrivals import ArrivalTerms
from gpucommons.pauser.backend import Failure, State
from gpucommons.pauser.record import LONGEST_GPU, MAX_PID, Stage

VERSION: Final = 5
MAX_REQUEST_BYTES: Final = 4096
# A reply may list every paused program.
MAX_REPLY_BYTES: Final = 1 << 20
MAX_TIMEOUT_MS: Final = 60_000
# A call that takes this much longer than it may is given up; the agent waits longer than that for the reply.
LATE_S: Final = 1.0
_MAX_NUMBER: Final = 1 << 53
_LONGEST_TEXT: Final = 1000
NO_PROCESS: Final = ProcessKey(0, 0)


class PauserProtocolError(Exception):
    """What came is not of this protocol: one line."""


class Operation(StrEnum):
    LOCK = "lock"
    UNLOCK = "unlock"
    KEEP = "keep"
    STATE = "state"
    CHECKPOINT = "checkpoint"
    RESTORE = "restore"
    RESUME_ALL = "resume_all"
    LIST = "list"
    WATCH = "watch"
    UNWATCH = "unwatch"
    WATCH_ARRIVALS = "watch_arrivals"
    GUARD = "guard"
    YIELD_TO = "yield_to"
    LEAVE_GROUPS = "leave_groups"
    LET_RUN = "let_run"
    STOP = "stop"
    LEAVE = "leave"


# Those that act on one process, and so name it.
OF_A_PROCESS: Final = frozenset(Operation) - {Operation.RESUME_ALL, Operation.LIST, Operation.WATCH_ARRIVALS}
# Those that name its GPU, or the group of programs that it belongs to.
_NAMING_GPU: Final = frozenset({Operation.LOCK, Operation.GUARD, Operation.YIELD_TO})


@dataclass(frozen=True, slots=True)
class PauserRequest:
    """Requests run side by side; those of one process are refused while one for it is under way.

    `timeout_ms` is how long a lock waits for submitted work. `gpu` and `memory_bytes` go into the record. For guard and
    yield_to, `gpu` is the name of the group, and `share_percent` how much of the time others may be held back.
    `arrivals` says which new programs are held; None: none.
    """

    number: int
    operation: Operation
    process: ProcessKey = NO_PROCESS
    timeout_ms: int = 0
    gpu: str = ""
    memory_bytes: int = 0
    share_percent: int = 0
    arrivals: ArrivalTerms | None = None


@dataclass(frozen=True, slots=True)
class Hello:
    """`unavailable` says why nothing can be paused; empty where it can. `resumed` counts what was left over."""

    pid: int
    backend: str
    max_pause_s: float
    unavailable: str = ""
    resumed: int = 0
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Paused:
    """One program that the pauser holds, and for how long."""

    process: ProcessKey
    stage: Stage
    age_s: float
    gpu: str = ""
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """`duration_s` is what the driver's call took. `state` answers a state request, `paused` a list."""

    number: int
    failure: Failure | None = None
    duration_s: float = 0.0
    state: State | None = None
    paused: tuple[Paused, ...] = ()


class NoticeKind(StrEnum):
    """`RESUMED`: the pauser resumed it. The others are of watched programs: its user stopped it, the driver's call for
    it does not return, or neither is so any more; whatever of ours had paused it has then ended. `ARRIVED`: a new
    program is held before its first allocation; the reason is the UUID of its GPU. The last two are of guards: others
    are held back for it, and were."""

    RESUMED = "resumed"
    STOPPED = "stopped"
    HANGS = "hangs"
    GOES_ON = "goes_on"
    ARRIVED = "arrived"
    HOLDS_BACK = "holds_back"
    HELD_BACK = "held_back"


@dataclass(frozen=True, slots=True)
class Notice:
    """Something happened to a program without a request of the agent."""

    process: ProcessKey
    reason: str
    kind: NoticeKind = NoticeKind.RESUMED
    # How long others were held back for it.
    held_back_s: float = 0.0


Message = Hello | Reply | Notice


class MessageLines:
    """Bytes in, whole lines out. A line that is longer than allowed is an error, however slowly it comes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if any(len(line) > self._max_bytes for line in (*lines, self._rest)):
            raise PauserProtocolError(f"a line is longer than {self._max_bytes} bytes")
        return lines


def encode_request(request: PauserRequest) -> bytes:
    document: dict[str, object] = {"number": request.number, "operation": request.operation.value}
    if request.operation in OF_A_PROCESS:
        document |= {"pid": request.process.pid, "start_ticks": request.process.start_ticks}
    if request.operation in _NAMING_GPU:
        document |= {"gpu": request.gpu}
    if request.operation is Operation.LOCK:
        document |= {"timeout_ms": request.timeout_ms}
    if request.operation is Operation.GUARD:
        document |= {"share_percent": request.share_percent}
    if request.operation is Operation.CHECKPOINT:
        document |= {"memory_bytes": request.memory_bytes}
    if request.operation is Operation.WATCH_ARRIVALS:
        terms = request.arrivals
        rows = () if terms is None else terms.gpus.items()
        short, full = (frozenset(), frozenset()) if terms is None else (terms.short, terms.full)
        document["gpus"] = [
            {"number": number, "uuid": uuid, "short": int(number in short), "full": int(number in full)}
            for number, uuid in rows
        ]
        document["uid"] = -1 if terms is None or terms.uid is None else terms.uid
    return _line(document)


def decode_request(line: bytes) -> PauserRequest:
    document = _document(line)
    fields = _Fields(document)
    number = fields.whole("number", 1, _MAX_NUMBER)
    try:
        operation = Operation(fields.text("operation", 32))
    except ValueError:
        raise PauserProtocolError(f"unknown operation {document['operation']!r}") from None
    request = PauserRequest(number, operation)
    if operation in OF_A_PROCESS:
        request = PauserRequest(
            number,
            operation,
            process=fields.process(),
            timeout_ms=fields.whole("timeout_ms", 1, MAX_TIMEOUT_MS) if operation is Operation.LOCK else 0,
            gpu=fields.text("gpu", LONGEST_GPU) if operation in _NAMING_GPU else "",
            memory_bytes=fields.whole("memory_bytes", 0, _MAX_NUMBER) if operation is Operation.CHECKPOINT else 0,
            share_percent=fields.whole("share_percent", 0, 100) if operation is Operation.GUARD else 0,
        )
    elif operation is Operation.WATCH_ARRIVALS:
        request = PauserRequest(number, operation, arrivals=_arrivals(fields))
    fields.nothing_else()
    return request


def _arrivals(fields: "_Fields") -> ArrivalTerms | None:
    """None where no GPU is short of room."""
    gpus: dict[int, str] = {}
    short, full = set[int](), set[int]()
    for row in fields.rows("gpus"):
        if not isinstance(row, dict):
            raise PauserProtocolError(f"a GPU is an object, not {row!r:.60}")
        gpu = _Fields(row)
        number = gpu.whole("number", 0, _MAX_NUMBER)
        gpus[number] = gpu.text("uuid", LONGEST_GPU)
        if gpu.whole("short", 0, 1):
            short.add(number)
        if gpu.whole("full", 0, 1):
            full.add(number)
        gpu.nothing_else()
    uid = fields.whole("uid", -1, _MAX_NUMBER)
    return ArrivalTerms(gpus, frozenset(short), None if uid < 0 else uid, frozenset(full)) if short else None


def encode_message(message: Message) -> bytes:
    if isinstance(message, Hello):
        return _line(
            {
                "hello": message.version,
                "pid": message.pid,
                "backend": message.backend,
                "max_pause_s": message.max_pause_s,
                "unavailable": message.unavailable[:_LONGEST_TEXT],
                "resumed": message.resumed,
            }
        )
    if isinstance(message, Notice):
        key = message.process
        return _line(
            {
                "notice": message.kind.value,
                "reason": message.reason[:_LONGEST_TEXT],
                "pid": key.pid,
                "start_ticks": key.start_ticks,
                "held_back_s": message.held_back_s,
            }
        )
    document: dict[str, object] = {"reply": message.number, "duration_s": message.duration_s}
    if message.failure is not None:
        document |= {"code": message.failure.code, "meaning": message.failure.meaning[:_LONGEST_TEXT]}
    if message.state is not None:
        document["state"] = int(message.state)
    if message.paused:
        document["paused"] = [
            {
                "pid": paused.process.pid,
                "start_ticks": paused.process.start_ticks,
                "stage": paused.stage.value,
                "age_s": paused.age_s,
                "gpu": paused.gpu,
                "memory_bytes": paused.memory_bytes,
            }
            for paused in message.paused
        ]
    return _line(document)


def decode_message(line: bytes) -> Message:
    document = _document(line)
    fields = _Fields(document)
    message: Message
    if "hello" in document:
        version = fields.whole("hello", 0, _MAX_NUMBER)
        if version != VERSION:
            raise PauserProtocolError(
                f"the pauser speaks version {version} and the agent version {VERSION}: restart the older of the two"
            )
        message = Hello(
            pid=fields.whole("pid", 1, MAX_PID),
            backend=fields.text("backend", 32),
            max_pause_s=fields.number("max_pause_s"),
            unavailable=fields.text("unavailable", _LONGEST_TEXT),
            resumed=fields.whole("resumed", 0, _MAX_NUMBER),
            version=version,
        )
    elif "notice" in document:
        try:
            kind = NoticeKind(fields.text("notice", 32))
        except ValueError:
            raise PauserProtocolError(f"unknown notice {document['notice']!r:.60}") from None
        process, reason = fields.process(), fields.text("reason", _LONGEST_TEXT)
        message = Notice(process, reason, kind, fields.number("held_back_s"))
    else:
        message = _reply(document, fields)
    fields.nothing_else()
    return message


def _reply(document: Mapping[str, Any], fields: "_Fields") -> Reply:
    failed = None
    if "code" in document:
        code = fields.whole("code", -_MAX_NUMBER, _MAX_NUMBER)
        failed = Failure(code, fields.text("meaning", _LONGEST_TEXT))
    rows = fields.rows("paused") if "paused" in document else []
    return Reply(
        number=fields.whole("reply", 1, _MAX_NUMBER),
        failure=failed,
        duration_s=fields.number("duration_s"),
        state=State(fields.whole("state", min(State), max(State))) if "state" in document else None,
        paused=tuple(map(_parse_paused, rows)),
    )


def _parse_paused(row: object) -> Paused:
    if not isinstance(row, dict):
        raise PauserProtocolError(f"a paused program is an object, not {row!r}")
    fields = _Fields(row)
    try:
        stage = Stage(fields.text("stage", 32))
    except ValueError:
        raise PauserProtocolError(f"unknown stage {row['stage']!r}") from None
    paused = Paused(
        process=fields.process(),
        stage=stage,
        age_s=fields.number("age_s"),
        gpu=fields.text("gpu", LONGEST_GPU),
        memory_bytes=fields.whole("memory_bytes", 0, _MAX_NUMBER),
    )
    fields.nothing_else()
    return paused


def _line(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _document(line: bytes) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        raise PauserProtocolError("a line is not JSON") from None
    if not isinstance(document, dict):
        raise PauserProtocolError("a line is not a JSON object")
    return document


class _Fields:
    """The fields of one object, each taken once and checked; what is left over is an error."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._left = dict(document)

    def whole(self, name: str, least: int, most: int) -> int:
        value = self._left.pop(name, None)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise PauserProtocolError(f"{name} is not a whole number from {least} to {most}: {value!r:.60}")
        return value

    def number(self, name: str) -> float:
        value = self._left.pop(name, None)
        # NaN and the infinities are not between them either.
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _MAX_NUMBER:
            raise PauserProtocolError(f"{name} is not a number of seconds: {value!r:.60}")
        return float(value)

    def text(self, name: str, longest: int) -> str:
        value = self._left.pop(name, None)
        if not isinstance(value, str) or len(value) > longest or not _plain(value):
            raise PauserProtocolError(f"{name} is not a plain text of at most {longest} characters: {value!r:.60}")
        return value

    def rows(self, name: str) -> list[object]:
        value = self._left.pop(name, None)
        if not isinstance(value, list):
            raise PauserProtocolError(f"{name} is not a list: {value!r:.60}")
        return value

    def process(self) -> ProcessKey:
        return ProcessKey(self.whole("pid", 1, MAX_PID), self.whole("start_ticks", 0, _MAX_NUMBER))

    def nothing_else(self) -> None:
        if self._left:
            raise PauserProtocolError(f"unknown field {next(iter(self._left))!r:.60}")


def _plain(text: str) -> bool:
    return text.isprintable() or not text
