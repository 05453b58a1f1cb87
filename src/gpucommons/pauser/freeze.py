"""Pausing without the driver: the cgroup v2 freezer of the program's container, or SIGSTOP. For drivers before r570.

It stops the whole program, not only its GPU work, and submitted work goes on for a moment. A container is frozen as a
whole, and only ever a container: never a cgroup that holds this process, never a slice or a login session.
"""

import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Final

from gpucommons.base.cgroup_paths import read_cgroups
from gpucommons.pauser.backend import Code, Failure, State, failure
from gpucommons.pauser.release import state_letter

# Every container runtime names the container's cgroup by its id; docs/owners.md lists the forms.
_CONTAINER: Final = re.compile(r"(?:[a-z-]+-)?[0-9a-f]{64}(?:\.scope)?")
_STOPPED: Final = "T"
_LOOK_S: Final = 0.002


class Freeze:
    """Knows which pids it holds frozen in which cgroup: a container thaws when the last of them is unlocked.

    `protected` are processes that must go on whatever is asked: the pauser, and the agent that talks to it.
    """

    name = "freeze"
    # It stops processes itself.
    hangs_on_stopped = False

    def __init__(self) -> None:
        self._root = _cgroup_mount()
        self._frozen: dict[Path, set[int]] = {}
        self._lock = threading.Lock()
        self.protected = {os.getpid(), os.getppid()}

    def state(self, pid: int) -> State | Failure:
        letter = state_letter(pid)
        if not letter:
            return failure(Code.OPERATING_SYSTEM)
        group = self._container(pid)
        frozen = group is not None and _is_frozen(group)
        return State.LOCKED if frozen or letter == _STOPPED else State.RUNNING

    def lock(self, pid: int, timeout_ms: int) -> Failure | None:
        group = self._container(pid)
        if pid in self.protected:
            return failure(Code.REFUSED, "it is the pauser or the agent itself")
        if group is None:
            return self._stop(pid, timeout_ms)
        if self._holds_us(group):
            return failure(Code.REFUSED, f"its container {group.name} holds the pauser or the agent")
        with self._lock:
            mine = self._frozen.get(group)
            if mine is None and _is_frozen(group):
                return failure(Code.STOPPED, "its container was paused by something else")
            self._frozen.setdefault(group, set()).add(pid)
        failed = _set_frozen(group, True, timeout_ms)
        if failed is not None:
            self._thaw(group, pid)
        return failed

    def unlock(self, pid: int) -> Failure | None:
        group = self._container(pid)
        if group is not None and _is_frozen(group):
            return self._thaw(group, pid)
        if state_letter(pid) == _STOPPED:
            return _send(pid, signal.SIGCONT)
        return failure(Code.WRONG_STATE) if state_letter(pid) else failure(Code.OPERATING_SYSTEM)

    def checkpoint(self, pid: int) -> Failure | None:
        return failure(Code.NOT_SUPPORTED, "freezing moves no memory")

    def restore(self, pid: int) -> Failure | None:
        return failure(Code.NOT_SUPPORTED, "freezing moves no memory")

    def _stop(self, pid: int, timeout_ms: int) -> Failure | None:
        if state_letter(pid) == _STOPPED:
            return failure(Code.STOPPED, "a stop signal, such as Ctrl-Z")
        if (failed := _send(pid, signal.SIGSTOP)) is not None:
            return failed
        deadline_s = time.monotonic() + timeout_ms / 1000
        while (letter := state_letter(pid)) != _STOPPED:
            if not letter:
                return failure(Code.OPERATING_SYSTEM)
            if time.monotonic() >= deadline_s:
                _send(pid, signal.SIGCONT)
                return failure(Code.TIMEOUT)
            time.sleep(_LOOK_S)
        return None

    def _thaw(self, group: Path, pid: int) -> Failure | None:
        with self._lock:
            mine = self._frozen.get(group, set())
            mine.discard(pid)
            if mine:
                return None
            self._frozen.pop(group, None)
        return _set_frozen(group, False, 0)

    def _container(self, pid: int) -> Path | None:
        """The cgroup of the innermost container that the process is in; None where it is in none."""
        path = _cgroup_of(pid)
        if self._root is None or path is None:
            return None
        segments = [segment for segment in path.split("/") if segment]
        last = max((i for i, segment in enumerate(segments) if _CONTAINER.fullmatch(segment)), default=None)
        if last is None or ".." in segments:
            return None
        group = self._root.joinpath(*segments[: last + 1])
        return group if (group / "cgroup.freeze").exists() else None

    def _holds_us(self, group: Path) -> bool:
        assert self._root is not None
        for pid in self.protected:
            ours = _cgroup_of(pid)
            if ours is not None and (self._root / ours.lstrip("/")).is_relative_to(group):
                return True
        return False


def _cgroup_mount() -> Path | None:
    """Where cgroup v2 is mounted; on a hybrid machine that is not /sys/fs/cgroup itself."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
            mounts = [line.split() for line in file]
    except OSError:
        return None
    return next((Path(fields[1]) for fields in mounts if len(fields) > 2 and fields[2] == "cgroup2"), None)


def _cgroup_of(pid: int) -> str | None:
    try:
        return next((path for controllers, path in read_cgroups(pid) if not controllers), None)
    except OSError:
        return None


def _is_frozen(group: Path) -> bool:
    try:
        return "frozen 1" in (group / "cgroup.events").read_text()
    except OSError:
        return False


def _set_frozen(group: Path, frozen: bool, timeout_ms: int) -> Failure | None:
    try:
        (group / "cgroup.freeze").write_text("1" if frozen else "0")
    except OSError as error:
        return failure(Code.OPERATING_SYSTEM, f"{group / 'cgroup.freeze'}: {error.strerror}")
    deadline_s = time.monotonic() + timeout_ms / 1000
    while frozen and not _is_frozen(group):
        if time.monotonic() >= deadline_s:
            return failure(Code.TIMEOUT)
        time.sleep(_LOOK_S)
    return None


def _send(pid: int, number: signal.Signals) -> Failure | None:
    """By descriptor: the signal cannot reach a process that got the pid since."""
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return failure(Code.OPERATING_SYSTEM)
    try:
        signal.pidfd_send_signal(process, number)
    except OSError as error:
        return failure(Code.OPERATING_SYSTEM, error.strerror or "")
    finally:
        os.close(process)
    return None
