"""The lines of the lease socket, one JSON object each, and a client of it for the commands.

The messages are pure. The client blocks and is used by one thread; it imports nothing of the agent, because each
command that asks for a lease imports it.
"""

import json
import select
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpucommons.base.text import LineSplitter, LineTooLong
from gpucommons.model.words import SharingClass

# The lines of the lease socket: one JSON object each. Pure.
#
# A client sends one request. `run` and `resume` keep the connection: the lease lasts as long as it does. All other
# requests get one answer.

MAX_LINE_BYTES: Final = 8192
_MAX_GPUS: Final = 1024
_MAX_BYTES: Final = 2**60
_LONGEST_S: Final = 366 * 86_400.0
# The end of the calendar.
_LAST_S: Final = 253_402_387_200.0
_LONGEST_NAME: Final = 64
_LONGEST_ID: Final = 24
_TOKEN_LENGTH: Final = 32

Line = Mapping[str, object]


class LeaseMessageError(ValueError):
    """A line that is not a request. One line: what is wrong."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """`updates`: the client shows its place in the queue. `sm_percent` is the part of a GPU that it may use.

    `model`, `slot` and `whole` are what the GPU has to be; empty and False: any. `program` is the program of the
    command, which other users see in the place of the name.
    """

    gpus: int = 1
    memory_bytes: int | None = None
    share: bool = False
    limit_s: float | None = None
    name: str = ""
    wait: bool = True
    updates: bool = False
    sm_percent: int | None = None
    sharing_class: str = ""
    model: str = ""
    slot: str = ""
    whole: bool = False
    program: str = ""


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    id: str
    token: str
    updates: bool = False


@dataclass(frozen=True, slots=True)
class ReserveRequest:
    gpus: int
    from_s: float
    for_s: float


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Cancels a lease or a request. `kind` is cancel or unreserve."""

    kind: str
    id: str


@dataclass(frozen=True, slots=True)
class QueueRequest:
    """Requests the document of the queue."""


LeaseLine = RunRequest | ResumeRequest | ReserveRequest | CancelRequest | QueueRequest


def encode_line(line: Line) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def decode_line(raw: bytes) -> dict[str, object]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        raise LeaseMessageError("invalid JSON: send one JSON object on one line") from None
    if not isinstance(value, dict):
        raise LeaseMessageError("expected a JSON object on one line")
    return value


def parse_request(raw: bytes) -> LeaseLine:
    line = decode_line(raw)
    request = line.get("request")
    if request == "run":
        return RunRequest(
            _whole(line, "gpus", 1, _MAX_GPUS),
            None if line.get("memory_bytes") is None else _whole(line, "memory_bytes", 1, _MAX_BYTES),
            _flag(line, "share"),
            None if line.get("limit_s") is None else _seconds(line, "limit_s", 1.0, _LONGEST_S),
            _text(line, "name", _LONGEST_NAME, required=False),
            _flag(line, "wait", True),
            _flag(line, "updates"),
            None if line.get("sm_percent") is None else _whole(line, "sm_percent", 1, 100),
            _class(line),
            _text(line, "model", _LONGEST_NAME, required=False),
            _text(line, "slot", _LONGEST_NAME, required=False),
            _flag(line, "whole"),
            _text(line, "program", _LONGEST_NAME, required=False),
        )
    if request == "resume":
        return ResumeRequest(
            _text(line, "id", _LONGEST_ID), _text(line, "token", _TOKEN_LENGTH), _flag(line, "updates")
        )
    if request == "reserve":
        return ReserveRequest(
            _whole(line, "gpus", 1, _MAX_GPUS),
            _seconds(line, "from_s", 0.0, _LAST_S),
            _seconds(line, "for_s", 1.0, _LONGEST_S),
        )
    if request in ("cancel", "unreserve"):
        return CancelRequest(str(request), _text(line, "id", _LONGEST_ID))
    if request == "queue":
        return QueueRequest()
    raise LeaseMessageError(
        f"unknown request {str(request)[:40]!r}: use run, resume, queue, cancel, reserve, unreserve"
    )


def is_done(raw: bytes) -> tuple[bool, bool]:
    """Whether a line of a client with a lease says that its command has ended, and whether a report is requested."""
    line = decode_line(raw)
    return line.get("request") == "done", line.get("report") is True


def _whole(line: Line, name: str, least: int, most: int) -> int:
    value = line.get(name, 1 if name == "gpus" else None)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise LeaseMessageError(f"invalid {name} {str(value)[:40]}: use a whole number from {least} to {most}")
    return value


def _seconds(line: Line, name: str, least: float, most: float) -> float:
    value = line.get(name)
    # NaN is not between them either. A whole number may be too large for a float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise LeaseMessageError(f"invalid {name} {str(value)[:40]}: use {least:g} to {most:g} seconds")
    return float(value)


def _flag(line: Line, name: str, default: bool = False) -> bool:
    value = line.get(name, default)
    if not isinstance(value, bool):
        raise LeaseMessageError(f"invalid {name} {str(value)[:40]}: use true or false")
    return value


def _text(line: Line, name: str, longest: int, required: bool = True) -> str:
    value = line.get(name, None if required else "")
    if not isinstance(value, str) or len(value) > longest or (required and not value):
        raise LeaseMessageError(f"invalid {name}: use a text of at most {longest} characters")
    return value


def _class(line: Line) -> str:
    value = _text(line, "class", _LONGEST_NAME, required=False)
    if value and value not in SharingClass.__members__.values():
        raise LeaseMessageError(f"invalid class {value!r}: use {', '.join(SharingClass)}")
    return value


# A client of the lease socket, for the commands. Blocks; used by one thread.

_CONNECT_S: Final = 5.0
# The answer to `queue` is one line.
_MAX_ANSWER_BYTES: Final = 16 << 20


class LeaseServiceGone(Exception):
    """No agent answers at these sockets, or the connection is lost. One line."""


class LeaseConnection:
    """A connection to the first of these sockets that an agent serves. Raises LeaseServiceGone."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._splitter = LineSplitter(_MAX_ANSWER_BYTES)
        self._lines: list[dict[str, object]] = []
        tried = []
        for path in paths:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(_CONNECT_S)
            try:
                _connect(self._socket, path)
                return
            except OSError as error:
                self._socket.close()
                tried.append(f"{path}: {error.strerror or error}")
        raise LeaseServiceGone("; ".join(tried))

    def __enter__(self) -> "LeaseConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, line: Line) -> None:
        try:
            self._socket.sendall(encode_line(line))
        except OSError as error:
            raise LeaseServiceGone(f"the agent does not answer: {error.strerror or error}") from None

    def receive(self, timeout_s: float | None) -> dict[str, object] | None:
        """The next line; None if none came in time."""
        while not self._lines:
            ready, _, _ = select.select([self._socket], [], [], timeout_s)
            if not ready:
                return None
            self._read()
        return self._lines.pop(0)

    def _read(self) -> None:
        try:
            chunk = self._socket.recv(65536)
            if not chunk:
                raise LeaseServiceGone("the agent has closed the connection")
            self._lines += map(decode_line, self._splitter.feed(chunk))
        except (OSError, LineTooLong, LeaseMessageError) as error:
            raise LeaseServiceGone(f"the agent does not answer: {error}") from None


def _connect(connecting: socket.socket, path: Path) -> None:
    """While many clients connect at once, the queue of the socket may be full for a moment."""
    deadline_s = time.monotonic() + _CONNECT_S
    while True:
        try:
            connecting.connect(str(path))
            return
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                raise
        time.sleep(0.05)


def answer_of(paths: Iterable[Path], request: Line, timeout_s: float = _CONNECT_S) -> dict[str, object]:
    """The one line that answers a request. Raises LeaseServiceGone."""
    with LeaseConnection(paths) as connection:
        connection.send(request)
        line = connection.receive(timeout_s)
    if line is None:
        raise LeaseServiceGone(f"the agent has not answered within {timeout_s:g} s")
    return line
