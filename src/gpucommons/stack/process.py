"""Processes that outlive the command that started them: their identity, and how they are signalled.

A process is identified by its pid and its start time: a pid file is ignored if its pid now belongs to another process.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class StartedProcess:
    pid: int
    started: str


def identity_of(pid: int) -> StartedProcess | None:
    """None if the process is gone or is a zombie."""
    started = _start_of(pid)
    return None if started is None else StartedProcess(pid, started)


def is_alive(identity: StartedProcess) -> bool:
    return _start_of(identity.pid) == identity.started


def _start_of(pid: int) -> str | None:
    if sys.platform == "linux":
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in ("Z", "X") else fields[19]
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else repr(process.create_time())
    except psutil.Error:
        return None


def write_pid_file(file: Path, identity: StartedProcess) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = file.with_name(f".{file.name}.new")
    fresh.write_text(json.dumps({"pid": identity.pid, "started": identity.started}))
    fresh.replace(file)


def read_pid_file(file: Path) -> StartedProcess | None:
    """The process that the file names, if it still runs. None for a damaged or outdated file."""
    try:
        content = json.loads(file.read_text())
        identity = StartedProcess(int(content["pid"]), str(content["started"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return identity if is_alive(identity) else None


def send(identity: StartedProcess, number: signal.Signals) -> None:
    if is_alive(identity):
        try:
            os.kill(identity.pid, number)
        except ProcessLookupError:
            return


def wait_gone(identities: Iterable[StartedProcess], timeout_s: float) -> list[StartedProcess]:
    """The processes that still run after the timeout."""
    left = list(identities)
    deadline = time.monotonic() + timeout_s
    while (left := [identity for identity in left if is_alive(identity)]) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return left
