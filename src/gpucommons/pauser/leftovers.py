"""Resumes what a record holds, with no pauser: for `gpucommons resume`, and for a pauser that hangs.

A parked program is restored only where the GPU has the room for it and a reserve: a restore that runs out of memory
strands the program for good. They are restored one after another, and the room is looked at before each.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from gpucommons.pauser.backend import Code, PauseBackend, failure
from gpucommons.pauser.record import Entry, PauseRecord, Stage
from gpucommons.pauser.release import FINAL, Attempt, Outcome, attempt
from gpucommons.pauser.stopped import STOPPED, why_stopped

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
    found = _unlock_all([entry for entry in record.entries() if accept(entry)], backends, within_s)
    for number, left in enumerate(found):
        if left.outcome is Outcome.PARKED and room is not None and owned:
            found[number] = _restore(record, left.entry, backends, room)
    if owned:
        for left in found:
            if left.is_resumed:
                record.remove(left.entry.pid)
    return found


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

    threads = [threading.Thread(target=unlock, args=(entry,), daemon=True) for entry in entries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline_s + _LATE_S - time.monotonic()))
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
