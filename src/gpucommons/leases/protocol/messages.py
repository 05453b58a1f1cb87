"""The lines of the lease socket: one JSON object each. Pure.

A client sends one request. `run` and `resume` keep the connection: the lease lasts as long as it does. All other
requests get one answer.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

MOST_LINE_BYTES: Final = 8192
_MOST_GPUS: Final = 1024
_MOST_BYTES: Final = 2**60
_LONGEST_S: Final = 366 * 86_400.0
_LONGEST_NAME: Final = 64
_LONGEST_ID: Final = 24
_TOKEN_LENGTH: Final = 32

Line = Mapping[str, object]


class LeaseMessageError(ValueError):
    """A line that is not a request. One line: what is wrong."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """`updates`: the client shows its place in the queue. `sm_percent` is the part of a GPU that it may use."""

    gpus: int = 1
    memory_bytes: int | None = None
    share: bool = False
    limit_s: float | None = None
    name: str = ""
    wait: bool = True
    updates: bool = False
    sm_percent: int | None = None


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


def encoded_line(line: Line) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def decoded_line(raw: bytes) -> dict[str, object]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        raise LeaseMessageError("invalid JSON: send one JSON object on one line") from None
    if not isinstance(value, dict):
        raise LeaseMessageError("expected a JSON object on one line")
    return value


def parse_request(raw: bytes) -> LeaseLine:
    line = decoded_line(raw)
    request = line.get("request")
    if request == "run":
        return RunRequest(
            _whole(line, "gpus", 1, _MOST_GPUS),
            None if line.get("memory_bytes") is None else _whole(line, "memory_bytes", 1, _MOST_BYTES),
            _flag(line, "share"),
            None if line.get("limit_s") is None else _seconds(line, "limit_s", 1.0, _LONGEST_S),
            _text(line, "name", _LONGEST_NAME, required=False),
            _flag(line, "wait", True),
            _flag(line, "updates"),
            None if line.get("sm_percent") is None else _whole(line, "sm_percent", 1, 100),
        )
    if request == "resume":
        return ResumeRequest(
            _text(line, "id", _LONGEST_ID), _text(line, "token", _TOKEN_LENGTH), _flag(line, "updates")
        )
    if request == "reserve":
        return ReserveRequest(
            _whole(line, "gpus", 1, _MOST_GPUS),
            _seconds(line, "from_s", 0.0, 1e11),
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
    line = decoded_line(raw)
    return line.get("request") == "done", line.get("report") is True


def _whole(line: Line, name: str, least: int, most: int) -> int:
    value = line.get(name, 1 if name == "gpus" else None)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise LeaseMessageError(f"invalid {name} {str(value)[:40]}: use a whole number from {least} to {most}")
    return value


def _seconds(line: Line, name: str, least: float, most: float) -> float:
    value = line.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise LeaseMessageError(f"invalid {name} {str(value)[:40]}: use a number of seconds")
    if not least <= value <= most:
        raise LeaseMessageError(f"invalid {name} {value:g}: use {least:g} to {most:g} seconds")
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
