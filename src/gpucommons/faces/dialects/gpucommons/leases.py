"""gpucommons_lease*: leases, waiting requests, reservations and trespassers."""

from collections import Counter
from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, counter, gauge
from gpucommons.model.leases import LeasesReading
from gpucommons.model.snapshot import Snapshot

ENABLED = gauge("gpucommons_leases_enabled", "State of the leases: 1 if the agent gives leases, 0 if not.")
HELD = gauge("gpucommons_leases", "Leases of a user.", "user")
SLOTS = gauge("gpucommons_leases_slots", "Slots that a user has leased; a shared slot counts for each lease.", "user")
WAITING = gauge("gpucommons_leases_waiting", "Requests of a user that wait for a lease.", "user")
LONGEST = gauge("gpucommons_leases_longest_wait_seconds", "Age of the oldest request that waits for a lease.")
RESERVATIONS = gauge("gpucommons_leases_reservations", "Reservations of a user, active or to come.", "user")
TRESPASSERS = gauge("gpucommons_leases_trespassers", "Processes without a lease on an exclusively leased slot.", "slot")
PAUSED = gauge(
    "gpucommons_leases_trespassers_paused",
    "Processes without a lease that are paused until the lease of their slot ends.",
    "slot",
)
GRANTED = counter("gpucommons_leases_granted_total", "Leases granted since the agent started.")
ENDED = counter("gpucommons_leases_ended_total", "Leases ended since the agent started.")
LOST = counter(
    "gpucommons_leases_lost_total", "Clients that went away without ending their lease or request, such as by SIGKILL."
)
CANCELLED = counter("gpucommons_leases_cancelled_total", "Leases and requests that were cancelled.")
REFUSED = counter("gpucommons_leases_refused_total", "Requests for a lease that were refused.")
NO_SHOWS = counter("gpucommons_leases_no_shows_total", "Reservations released because they were not used.")
WAITED = counter("gpucommons_leases_wait_seconds_total", "Time that granted requests waited, in seconds.")
RECORDED = gauge(
    "gpucommons_leases_recorded", "State of the record of leases, which outlives the agent: 1 if it can be written."
)

CATALOGUE = (
    *(ENABLED, HELD, SLOTS, WAITING, LONGEST, RESERVATIONS, TRESPASSERS, PAUSED),
    *(GRANTED, ENDED, LOST, CANCELLED, REFUSED, NO_SHOWS, WAITED, RECORDED),
)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    reading = snapshot.readings.leases
    if reading is None:
        return
    yield ENABLED.value(int(not reading.off))
    yield from _of_users(reading, snapshot.wall_s)
    totals = reading.counters
    yield GRANTED.value(totals.granted)
    yield ENDED.value(totals.ended)
    yield LOST.value(totals.lost)
    yield CANCELLED.value(totals.cancelled)
    yield REFUSED.value(totals.refused)
    yield NO_SHOWS.value(totals.no_shows)
    yield WAITED.value(totals.waited_s)
    yield RECORDED.value(int(reading.recorded))


def _of_users(reading: LeasesReading, now_s: float) -> Iterator[Family]:
    held = Counter(lease.request.user for lease in reading.leases)
    slots: Counter[str] = Counter()
    for lease in reading.leases:
        slots[lease.request.user] += len(lease.slots)
    waiting = Counter(request.user for request, _ in reading.waiting)
    reserved = Counter(each.user for each in reading.reservations)
    yield HELD.of(((user,), count) for user, count in held.items())
    yield SLOTS.of(((user,), count) for user, count in slots.items())
    yield WAITING.of(((user,), count) for user, count in waiting.items())
    yield LONGEST.value(max((max(0.0, now_s - each.arrived_s) for each, _ in reading.waiting), default=0.0))
    yield RESERVATIONS.of(((user,), count) for user, count in reserved.items())
    trespassers = Counter(each.slot for each in reading.trespassers)
    yield TRESPASSERS.of(((slot,), count) for slot, count in trespassers.items())
    paused = Counter(each.slot for each in reading.trespassers if each.paused)
    yield PAUSED.of(((slot,), paused[slot]) for slot in trespassers)
