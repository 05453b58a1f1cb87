"""SSH sessions from the binary records of utmp. Pure.

Damaged records are left out. Records of 64-bit ARM are longer; the size is detected from the content.
"""

import struct
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

_USER_PROCESS = 7
_LAST_TYPE = 9
# type, pid, line, id, user, host; the exit status, session, time and address that follow are not needed.
_HEAD = struct.Struct("=hxxi32s4s32s256s")
_RECORD_BYTES = (384, 400)
_MOST_RECORDS = 100_000


class Login(NamedTuple):
    type: int
    pid: int
    line: str
    user: str
    host: str


def parse_utmp(data: bytes) -> list[Login]:
    """Every record of the file, with the record size that fits; a truncated record at the end is left out."""
    readings = [_records(data, size) for size in _RECORD_BYTES]
    exact = [found for found, size in zip(readings, _RECORD_BYTES, strict=True) if len(data) % size == 0]
    return max(exact or readings, key=_sound)


def ssh_sessions(logins: list[Login], is_alive: Callable[[int], bool]) -> Mapping[str, int]:
    """Sessions by user. The record of a session that lost its connection remains: its process must be alive."""
    found = Counter(login.user for login in logins if _is_remote(login) and is_alive(login.pid))
    return dict(found)


def _is_remote(login: Login) -> bool:
    """Terminal multiplexers and X sessions write something other than a host."""
    host = login.host
    return (
        login.type == _USER_PROCESS
        and bool(login.user and host)
        and not host.startswith((":", "tmux(", "localhost:"))
        and "via mosh" not in host
    )


def _records(data: bytes, size: int) -> list[Login]:
    count = min(len(data) // size, _MOST_RECORDS)
    return [_record(data, at) for at in range(0, count * size, size)]


def _record(data: bytes, at: int) -> Login:
    type, pid, line, _, user, host = _HEAD.unpack_from(data, at)
    return Login(type, pid, _text(line), _text(user), _text(host))


def _sound(logins: list[Login]) -> float:
    """The share of plausible records: close to zero for the wrong record size."""
    good = sum(0 <= login.type <= _LAST_TYPE and login.pid >= 0 for login in logins)
    return good / len(logins) if logins else 0.0


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "replace")
