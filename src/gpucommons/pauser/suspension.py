"""Processes that a batch system has stopped, and that have to run for the moment in which their memory is moved.

The driver's calls do not return for a stopped process. So a process of a suspended Slurm job is continued, locked and
checkpointed, and stopped again as it was: by a signal, or by the freezer of its cgroup, below a directory `job_N`. The
agent, which asks Slurm, says when. Whatever goes wrong, the process ends up running, never stopped:

| request | what the pauser does |
|---|---|
| let_run | continues the process, and again whenever it is found stopped: Slurm stops it twice, 2 s apart |
| stop | stops it as it was. Unless `leave` follows within CONFIRM_S, it is continued: Slurm may have resumed the job |
| leave | nothing more: it stays as it is |

When the agent's connection ends, what was stopped and not confirmed is continued, and the rest is left as it is.
"""

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpucommons.base.cgroup_paths import read_cgroups
from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser.backend import Code, Failure, failure
from gpucommons.pauser.release import has_ended
from gpucommons.pauser.stopped import FreezerMounts, why_stopped

CONFIRM_S: Final = 10.0
_LOOK_S: Final = 0.05
_CONTINUED_WITHIN_S: Final = 2.0
# The job's own directory, below which Slurm freezes the cgroup of each step.
_JOB: Final = re.compile(r"job_[0-9]{1,18}|s[0-9A-Z]{13}")


@dataclass(slots=True)
class _Suspension:
    """`signalled`: it was stopped by a signal. `frozen` are the cgroups that were. `stopped_s`: stopped again, then."""

    process: ProcessKey
    signalled: bool = False
    frozen: set[Path] = field(default_factory=set)
    stopped_s: float | None = None


class Suspensions:
    def __init__(self) -> None:
        self._mounts = FreezerMounts()
        self._rows: dict[ProcessKey, _Suspension] = {}
        self._lock = threading.Lock()
        self._work = threading.Event()
        self._started = False

    def let_run(self, process: ProcessKey) -> Failure | None:
        with self._lock:
            row = self._rows.setdefault(process, _Suspension(process))
            was_stopped, row.stopped_s = row.stopped_s is not None, None
            if not self._started:
                self._started = True
                threading.Thread(target=self._watch, name="suspensions", daemon=True).start()
        self._work.set()
        if was_stopped:
            _undo_stop(row)
        deadline_s = time.monotonic() + _CONTINUED_WITHIN_S
        while why := self._continue(row):
            if has_ended(process):
                self.leave(process)
                return failure(Code.GONE)
            if time.monotonic() >= deadline_s:
                self.leave(process)
                return failure(Code.STOPPED, why)
            time.sleep(_LOOK_S / 10)
        return None

    def stop(self, process: ProcessKey) -> Failure | None:
        with self._lock:
            row = self._rows.get(process)
            if row is None:
                return failure(Code.NOT_PAUSED, "it was not continued")
            row.stopped_s = time.monotonic()
            others = [other for other in self._rows.values() if other is not row and other.stopped_s is None]
            # A cgroup is frozen with the last of the processes in it that have to run.
            groups = row.frozen - {group for other in others for group in other.frozen}
        if has_ended(process):
            self.leave(process)
            return failure(Code.GONE)
        failed = _signal(process, signal.SIGSTOP) if row.signalled else None
        for group in groups:
            failed = _freeze(group, True) or failed
        return failed

    def leave(self, process: ProcessKey) -> Failure | None:
        with self._lock:
            self._rows.pop(process, None)
        return None

    def leave_all(self) -> None:
        """The agent has gone."""
        with self._lock:
            rows, self._rows = list(self._rows.values()), {}
        for row in rows:
            if row.stopped_s is not None:
                _undo_stop(row)

    def lets_run(self, process: ProcessKey) -> bool:
        """Whether it has to run now; if it is stopped, it is continued."""
        with self._lock:
            row = self._rows.get(process)
        if row is None or row.stopped_s is not None:
            return False
        self._continue(row)
        return True

    def _watch(self) -> None:
        while self._work.wait():
            now_s = time.monotonic()
            with self._lock:
                rows = list(self._rows.values())
                if not rows:
                    self._work.clear()
            for row in rows:
                if has_ended(row.process):
                    self.leave(row.process)
                elif row.stopped_s is None:
                    self._continue(row)
                elif now_s - row.stopped_s >= CONFIRM_S:
                    _undo_stop(row)
                    self.leave(row.process)
            time.sleep(_LOOK_S)

    def _continue(self, row: _Suspension) -> str:
        """Returns what still stops it; empty: it runs. What it was stopped by is remembered."""
        why = why_stopped(row.process.pid, every_thread=False)
        if not why:
            return ""
        for group in self._frozen_groups(row.process.pid):
            row.frozen.add(group)
            _freeze(group, False)
        if _has_stop_signal(row.process.pid):
            row.signalled = True
            _signal(row.process, signal.SIGCONT)
        return why_stopped(row.process.pid, every_thread=False)

    def _frozen_groups(self, pid: int) -> Iterator[Path]:
        """The cgroups of its job that are frozen themselves: from its own up to the job's directory, and not above."""
        try:
            cgroups = read_cgroups(pid)
        except OSError:
            return
        for controllers, path in cgroups:
            root = self._mounts.v2 if not controllers else self._mounts.v1 if "freezer" in controllers else None
            segments = [segment for segment in path.split("/") if segment]
            job = next((depth for depth, segment in enumerate(segments) if _JOB.fullmatch(segment)), None)
            if root is None or job is None or ".." in segments:
                continue
            for depth in range(len(segments), job, -1):
                group = root.joinpath(*segments[:depth])
                if _is_frozen_itself(group):
                    yield group


def _undo_stop(row: _Suspension) -> None:
    """Also where the stop has not taken effect yet: a process that looks as if it ran may be stopped a moment later."""
    for group in row.frozen:
        _freeze(group, False)
    if row.signalled:
        _signal(row.process, signal.SIGCONT)


def _is_frozen_itself(group: Path) -> bool:
    with suppress(OSError):
        return (group / "cgroup.freeze").read_text().strip() == "1"
    with suppress(OSError):
        return (group / "freezer.self_freezing").read_text().strip() == "1"
    return False


def _freeze(group: Path, frozen: bool) -> Failure | None:
    try:
        if (group / "cgroup.freeze").exists():
            (group / "cgroup.freeze").write_text("1" if frozen else "0")
        else:
            (group / "freezer.state").write_text("FROZEN" if frozen else "THAWED")
    except OSError as error:
        return failure(Code.OPERATING_SYSTEM, f"{group}: {error.strerror}")
    return None


def _has_stop_signal(pid: int) -> bool:
    """Also where the process is frozen at the same time: its letter is then D."""
    try:
        # The name of the process comes before, and may look like another line to all but a newline.
        return b"\nState:\tT" in Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return False


def _signal(process: ProcessKey, number: signal.Signals) -> Failure | None:
    """By descriptor: the signal cannot reach a process that got the pid since."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return failure(Code.GONE)
    try:
        if has_ended(process):
            return failure(Code.GONE)
        signal.pidfd_send_signal(descriptor, number)
    except OSError as error:
        return failure(Code.OPERATING_SYSTEM, error.strerror or "")
    finally:
        os.close(descriptor)
    return None
