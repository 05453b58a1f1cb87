"""One attempt to make a paused process run again, decided by what the driver says of it now. Never waits: a stopped
process, for which the driver's calls do not return, gets none until it is continued.

The record says what was begun; the driver says what came of it. A lock whose caller died may still be carried out, so a
process that runs counts as released only once its entry has settled.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from gpucommons.pauser.backend import Code, Failure, PauseBackend, State
from gpucommons.pauser.identity import has_ended, key_of
from gpucommons.pauser.record import Entry, Stage
from gpucommons.pauser.stopped import why_stopped


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
