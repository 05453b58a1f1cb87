"""gpucommons_pauser_*: what the process that pauses and resumes programs did, and what it could not do."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, HistogramPoint, counter, gauge, histogram
from gpucommons.model.sharing import PAUSE_BUCKETS
from gpucommons.model.snapshot import Snapshot

AVAILABLE = gauge(
    "gpucommons_pauser_available",
    "State of the pauser: 1 while programs can be paused, else 0; what one that was lost had paused is resumed soon.",
)
LOCKS = counter("gpucommons_pauser_locks_total", "Processes paused since the agent started.")
UNLOCKS = counter("gpucommons_pauser_unlocks_total", "Processes resumed since the agent started.")
FAILURES = counter(
    "gpucommons_pauser_failures_total",
    "Calls of the pauser that failed, by operation and reason; those for an ended process have the reason gone.",
    "operation",
    "reason",
)
TIMEOUTS = counter(
    "gpucommons_pauser_timeouts_total",
    "Pauses that failed because submitted GPU work did not end in time; they are tried again.",
)
FORCED = counter(
    "gpucommons_pauser_forced_resumes_total",
    "Processes that the pauser resumed on its own, because they were paused for scheduler.max_pause_s.",
)
RESTARTS = counter(
    "gpucommons_pauser_restarts_total", "Pausers that were started or connected to again, after one ended or failed."
)
LONGEST = gauge(
    "gpucommons_pauser_longest_pause_seconds",
    "Duration of the longest pause for a turn since the agent started, those that go on included; one that a lost "
    "pauser had made goes on until another has started.",
)
LOCK = histogram(
    "gpucommons_pauser_lock_seconds",
    "Time until a process was paused, the end of its submitted work included.",
    buckets=PAUSE_BUCKETS,
)
UNLOCK = histogram("gpucommons_pauser_unlock_seconds", "Time until a process was resumed.", buckets=PAUSE_BUCKETS)

CATALOGUE = (AVAILABLE, LOCKS, UNLOCKS, FAILURES, TIMEOUTS, FORCED, RESTARTS, LONGEST, LOCK, UNLOCK)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    sharing = snapshot.readings.sharing
    pauser = None if sharing is None else sharing.pauser
    if pauser is None:
        return
    yield AVAILABLE.value(int(pauser.available))
    yield LOCKS.value(pauser.locks)
    yield UNLOCKS.value(pauser.unlocks)
    yield FAILURES.of(pauser.failures.items())
    yield TIMEOUTS.value(pauser.timeouts)
    yield FORCED.value(pauser.forced)
    yield RESTARTS.value(pauser.restarts)
    yield LONGEST.value(pauser.longest_pause_s)
    for metric, reading in ((LOCK, pauser.lock_seconds), (UNLOCK, pauser.unlock_seconds)):
        yield metric.histogram([HistogramPoint((), reading.counts, reading.sum)])
