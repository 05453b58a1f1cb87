"""Makes paused processes run again: one attempt for one process, or all that a record holds.

The start time in /proc/PID/stat distinguishes a process from a later one with its pid; what the driver says of it now
decides what is called. `gpucommons resume` does this without a pauser.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from gpucommons.base import processes
from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser.backend import Code, Failure, PauseBackend, State, failure
from gpucommons.pauser.record import Entry, PauseRecord, Stage
from gpucommons.pauser.stopped import STOPPED, why_stopped

Row = TypeVar("Row")

# Which process a pid is now: its start time in /proc/PID/stat distinguishes a reused pid from the original process.

_ENDED: Final = ("Z", "X", "x")


class _Process(NamedTuple):
    key: ProcessKey
    state_letter: str


def key_of(pid: int) -> ProcessKey | None:
    """The process that has this pid now; None where there is none."""
    stat = _read(pid)
    return None if stat is None else stat.key


def state_letter(pid: int) -> str:
    """The kernel's letter for what the process does (R, S, T, Z); empty where there is no such process."""
    stat = _read(pid)
    return "" if stat is None else stat.state_letter


def has_ended(key: ProcessKey) -> bool:
    """Whether this very process is gone, or is a zombie that its parent has not collected."""
    stat = _read(key.pid)
    return stat is None or stat.key != key or stat.state_letter in _ENDED


def _read(pid: int) -> _Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
        return _Process(ProcessKey(pid, processes.start_ticks(stat)), processes.state_letter(stat))
    except (OSError, ValueError, IndexError):
        return None


# One attempt to make a paused process run again, decided by what the driver says of it now. Never waits: a stopped
# process, for which the driver's calls do not return, gets none until it is continued.
#
# The record says what was begun; the driver says what came of it. A lock whose caller died may still be carried out, so
# a process that runs counts as released only once its entry has settled.


class Outcome(StrEnum):
    RESUMED = "resumed"
    RUNS = "was not paused"
    ENDED = "has ended"
    PARKED = "parked"
    STRANDED = "stranded"
    STOPPED = "stopped by its user, to be resumed when it is continued"
    AGAIN = "try again"


# The process is not paused any more.
FINAL = frozenset({Outcome.RESUMED, Outcome.RUNS, Outcome.ENDED})
# To be tried until it succeeds.
UNFINISHED = frozenset({Outcome.STOPPED, Outcome.AGAIN})


@dataclass(frozen=True, slots=True)
class Attempt:
    outcome: Outcome
    detail: str = ""


def attempt(backends: Mapping[str, PauseBackend], entry: Entry, *, settled: bool) -> Attempt:
    """`settled`: no lock for this process can be under way any more."""
    key = entry.key
    # The pid of an entry that was just being locked may have been reused before the lock: then its new owner got it.
    if key is not None and has_ended(key) and (settled or entry.stage is not Stage.LOCKING):
        return Attempt(Outcome.ENDED)
    backend = backends.get(entry.backend)
    if backend is None:
        return Attempt(Outcome.AGAIN, f"the {entry.backend} calls that paused it are not available here")
    if backend.hangs_on_stopped and (why := why_stopped(entry.pid)):
        return Attempt(Outcome.STOPPED, why)
    state = backend.state(entry.pid)
    if isinstance(state, Failure):
        return _unknown(state, entry)
    if state is State.LOCKED:
        refused = backend.unlock(entry.pid)
        return Attempt(Outcome.RESUMED) if refused is None else _unknown(refused, entry)
    if state is State.CHECKPOINTED:
        return Attempt(Outcome.PARKED)
    if state is State.FAILED:
        return Attempt(Outcome.STRANDED, "the driver reports that an earlier restore failed; end the process")
    if entry.stage is Stage.LOCKING and not settled:
        return Attempt(Outcome.AGAIN, "a lock may be under way")
    return Attempt(Outcome.RUNS)


def _unknown(failed: Failure, entry: Entry) -> Attempt:
    if failed.code == Code.NOT_CUDA:
        return Attempt(Outcome.RUNS)
    key = entry.key
    if key_of(entry.pid) is None or (key is not None and has_ended(key)):
        return Attempt(Outcome.ENDED)
    return Attempt(Outcome.AGAIN, f"{failed.meaning} ({failed.code})")


# Programs that are parked without an entry in the record: it was deleted or damaged, but the driver knows their state.


def write_lost(record: PauseRecord, backend: PauseBackend, pids: Iterable[int], within_s: float) -> list[Entry]:
    """Gives each of these processes that is parked and that the record does not name an entry. Returns those.

    Each call has a thread of its own: one that hangs holds up no other.
    """
    named = {entry.pid for entry in record.entries() if entry.start_ticks is not None}
    entries: list[Entry] = []

    def look(pid: int) -> None:
        key = key_of(pid)
        stopped = backend.hangs_on_stopped and why_stopped(pid)
        if key is None or stopped or backend.state(pid) is not State.CHECKPOINTED or key_of(pid) != key:
            return
        entry = Entry(pid, key.start_ticks, Stage.PARKED, backend.name)
        record.write(entry)
        entries.append(entry)

    _run_side_by_side(look, (pid for pid in pids if pid not in named), within_s)
    return list(entries)


def _run_side_by_side(do: Callable[[Row], None], rows: Iterable[Row], within_s: float) -> None:
    """Each in a thread of its own, which are waited for. Where no more threads can be had, the rest is left."""
    deadline_s = time.monotonic() + within_s
    threads = []
    with suppress(RuntimeError):
        for row in rows:
            thread = threading.Thread(target=do, args=(row,), daemon=True)
            thread.start()
            threads.append(thread)
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))


# Resumes what a record holds, with no pauser: for `gpucommons resume`, and for a pauser that hangs.
#
# A parked program is restored only where the GPU has the room for it and a reserve: a restore that runs out of memory
# strands the program for good. They are restored one after another, and the room is looked at before each.

RESERVE_BYTES: Final = 1 << 30
_RETRY_S: Final = 0.01
# How long a call that began in time is waited for.
_LATE_S: Final = 0.3

# The free bytes of a GPU by UUID, or of the fullest where the UUID is empty; a text says why that is unknown.
Room = Callable[[str], int | str]


@dataclass(frozen=True, slots=True)
class Leftover:
    """One program of the record and what came of it. `detail` says what is in the way."""

    entry: Entry
    outcome: Outcome
    detail: str = ""

    @property
    def is_resumed(self) -> bool:
        return self.outcome in FINAL


def resume(
    record: PauseRecord,
    backends: Mapping[str, PauseBackend],
    *,
    owned: bool,
    within_s: float,
    room: Room | None = None,
    accept: Callable[[Entry], bool] = lambda _: True,
) -> list[Leftover]:
    """Resume every program of the record that `accept` takes. Entries are removed only if the record is owned.

    Without `room`, parked programs stay parked.
    """
    attempts = _unlock_all([entry for entry in record.entries() if accept(entry)], backends, within_s)
    for number, left in enumerate(attempts):
        if left.outcome is Outcome.PARKED and room is not None and owned:
            attempts[number] = _restore(record, left.entry, backends, room)
    if owned:
        for left in attempts:
            if left.is_resumed:
                record.remove(left.entry.pid)
    return attempts


def _unlock_all(entries: list[Entry], backends: Mapping[str, PauseBackend], within_s: float) -> list[Leftover]:
    """All of them side by side, each in a thread of its own: a call that hangs for one holds up no other."""
    results = {entry.pid: Leftover(entry, Outcome.AGAIN, failure(Code.HANGS).meaning) for entry in entries}
    deadline_s = time.monotonic() + within_s

    def unlock(entry: Entry) -> None:
        while True:
            tried = _attempt(entry, backends)
            results[entry.pid] = Leftover(entry, tried.outcome, tried.detail)
            again = tried.outcome is Outcome.AGAIN and entry.backend in backends
            if not again or time.monotonic() >= deadline_s:
                return
            time.sleep(_RETRY_S)

    _run_side_by_side(unlock, entries, within_s + _LATE_S)
    return [results[entry.pid] for entry in entries]


def _attempt(entry: Entry, backends: Mapping[str, PauseBackend]) -> Attempt:
    return attempt(backends, entry, settled=time.monotonic() >= entry.settles_at_s)


def _restore(record: PauseRecord, entry: Entry, backends: Mapping[str, PauseBackend], room: Room) -> Leftover:
    needed = entry.memory_bytes or _host_bytes(entry.pid)
    free = room(entry.gpu)
    if isinstance(free, str):
        return Leftover(entry, Outcome.PARKED, f"not restored: {free}")
    if free < needed + RESERVE_BYTES:
        detail = f"not restored: it needs {_gib(needed)} and a reserve of {_gib(RESERVE_BYTES)}, {_gib(free)} is free"
        return Leftover(entry, Outcome.PARKED, detail)
    if backends[entry.backend].hangs_on_stopped and (why := why_stopped(entry.pid)):
        return Leftover(entry, Outcome.PARKED, f"not restored: {STOPPED}: {why}")
    record.write(replace(entry, stage=Stage.RESTORING))
    failed = backends[entry.backend].restore(entry.pid)
    tried = _attempt(entry, backends)
    if tried.outcome is Outcome.PARKED:
        record.write(replace(entry, stage=Stage.PARKED))
    detail = tried.detail if failed is None else f"restore failed: {failed.meaning} ({failed.code})"
    return Leftover(entry, tried.outcome, "" if tried.outcome in FINAL else detail)


def _host_bytes(pid: int) -> int:
    """Upper bound of what a parked program needs on the GPU: its GPU memory is part of its host memory now."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
    except OSError:
        return 0
    return sum(int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmSwap") if name in fields)


def _gib(amount: int) -> str:
    return f"{amount / (1 << 30):.1f} GiB"
