"""Leases with their MPS daemons, and the messages to idle holders."""

from collections import Counter
from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, counter, gauge
from gpucommons.model.leases import LeasesReading
from gpucommons.model.snapshot import Snapshot

# gpucommons_lease*: leases, waiting requests, reservations and trespassers.

ENABLED = gauge("gpucommons_leases_enabled", "State of the leases: 1 if the agent gives leases, 0 if not.")
HELD = gauge("gpucommons_leases", "Leases of a user.", "user")
SLOTS = gauge("gpucommons_leases_slots", "Slots that a user has leased; a shared slot counts for each lease.", "user")
LEASE_WAITING = gauge("gpucommons_leases_waiting", "Requests of a user that wait for a lease.", "user")
LONGEST = gauge("gpucommons_leases_longest_wait_seconds", "Age of the oldest request that waits for a lease.")
RESERVATIONS = gauge("gpucommons_leases_reservations", "Reservations of a user, active or to come.", "user")
TRESPASSERS = gauge(
    "gpucommons_leases_trespassers",
    "Processes without a lease on an exclusively leased slot, or left from a lease that is over its time limit.",
    "slot",
)
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
EXPIRED = counter(
    "gpucommons_leases_expired_total", "Leases that the agent ended because their clients did not at their time limit."
)
NO_SHOWS = counter("gpucommons_leases_no_shows_total", "Reservations released because they were not used.")
WAITED = counter("gpucommons_leases_wait_seconds_total", "Time that granted requests waited, in seconds.")
LEASE_RECORDED = gauge(
    "gpucommons_leases_recorded", "State of the record of leases, which outlives the agent: 1 if it can be written."
)

LEASES_CATALOGUE = (
    *(ENABLED, HELD, SLOTS, LEASE_WAITING, LONGEST, RESERVATIONS, TRESPASSERS, PAUSED),
    *(GRANTED, ENDED, LOST, CANCELLED, REFUSED, EXPIRED, NO_SHOWS, WAITED, LEASE_RECORDED),
)


def collect_leases(snapshot: Snapshot) -> Iterator[Family]:
    reading = snapshot.readings.leases
    if reading is None:
        return
    yield ENABLED.value(int(not reading.off_reason))
    yield from _of_users(reading, snapshot.wall_s)
    totals = reading.counters
    yield GRANTED.value(totals.granted)
    yield ENDED.value(totals.ended)
    yield LOST.value(totals.lost)
    yield CANCELLED.value(totals.cancelled)
    yield REFUSED.value(totals.refused)
    yield EXPIRED.value(totals.expired)
    yield NO_SHOWS.value(totals.no_shows)
    yield WAITED.value(totals.waited_s)
    yield LEASE_RECORDED.value(int(reading.recorded))


def _of_users(reading: LeasesReading, now_s: float) -> Iterator[Family]:
    held = Counter(lease.request.user for lease in reading.leases)
    slots: Counter[str] = Counter()
    for lease in reading.leases:
        slots[lease.request.user] += len(lease.slots)
    waiting = Counter(request.user for request, _ in reading.waiting)
    reserved = Counter(reservation.user for reservation in reading.reservations)
    yield HELD.of(((user,), count) for user, count in held.items())
    yield SLOTS.of(((user,), count) for user, count in slots.items())
    yield LEASE_WAITING.of(((user,), count) for user, count in waiting.items())
    yield LONGEST.value(max((max(0.0, now_s - request.arrived_s) for request, _ in reading.waiting), default=0.0))
    yield RESERVATIONS.of(((user,), count) for user, count in reserved.items())
    trespassers = Counter(trespasser.slot for trespasser in reading.trespassers)
    yield TRESPASSERS.of(((slot,), count) for slot, count in trespassers.items())
    paused = Counter(trespasser.slot for trespasser in reading.trespassers if trespasser.paused)
    yield PAUSED.of(((slot,), paused[slot]) for slot in trespassers)


# gpucommons_mps_*: the MPS daemons of leases. Absent where leases do not use MPS.

_STAGES = ("starting", "running", "stopping", "broken")

AVAILABLE = gauge("gpucommons_mps_available", "State of MPS for leases: 1 if daemons can be started, 0 if not.")
DAEMONS = gauge(
    "gpucommons_mps_daemons", "MPS daemons for leases by stage: starting, running, stopping or broken.", "stage"
)
STARTS = counter("gpucommons_mps_starts_total", "MPS daemons started since the agent started.")
FAILURES = counter("gpucommons_mps_failures_total", "Starts of MPS daemons that failed since the agent started.")
DEATHS = counter(
    "gpucommons_mps_deaths_total", "MPS daemons that ended by themselves, or did not answer, since the agent started."
)

MPS_CATALOGUE = (AVAILABLE, DAEMONS, STARTS, FAILURES, DEATHS)


def collect_mps(snapshot: Snapshot) -> Iterator[Family]:
    leases = snapshot.readings.leases
    reading = None if leases is None else leases.mps
    if reading is None:
        return
    yield AVAILABLE.value(int(not reading.unavailable))
    counts = Counter(daemon.stage for daemon in reading.daemons)
    yield DAEMONS.of(((stage,), counts[stage]) for stage in _STAGES)
    yield STARTS.value(reading.starts)
    yield FAILURES.value(reading.failures)
    yield DEATHS.value(reading.deaths)


# gpucommons_idle_*: holders of idle GPUs, the steps taken, and the channels that deliver messages to them.

HOLDERS = gauge("gpucommons_idle_holders", "Holders whose GPUs have been idle for at least idle.after_s.")
STEPS = counter("gpucommons_idle_steps_total", "Steps taken since the agent started: notify, remind and act.", "step")
CHANNEL_UP = gauge(
    "gpucommons_idle_channel_up", "State of a channel: 0 if its last message could not be delivered, else 1.", "channel"
)
IDLE_WAITING = gauge("gpucommons_idle_messages_waiting", "Messages that wait for their delivery.", "channel")
MESSAGES = counter(
    "gpucommons_idle_messages_total",
    "Messages since the agent started, by outcome: delivered, failed (given up) or dropped (too many waited).",
    *("channel", "outcome"),
)
IDLE_RECORDED = gauge(
    "gpucommons_idle_recorded", "State of the record of steps, which outlives the agent: 1 if it can be written."
)

IDLE_CATALOGUE = (HOLDERS, STEPS, CHANNEL_UP, IDLE_WAITING, MESSAGES, IDLE_RECORDED)


def collect_idle(snapshot: Snapshot) -> Iterator[Family]:
    reading = snapshot.readings.idle
    if reading is None:
        return
    yield HOLDERS.value(reading.idle_holders)
    yield STEPS.of(((step.value,), count) for step, count in reading.steps.items())
    yield CHANNEL_UP.of(((channel.name,), int(channel.failing_since_wall_s is None)) for channel in reading.channels)
    yield IDLE_WAITING.of(((channel.name,), channel.waiting) for channel in reading.channels)
    yield MESSAGES.of(
        ((channel.name, outcome), count)
        for channel in reading.channels
        for outcome, count in (
            ("delivered", channel.delivered),
            ("failed", channel.failed),
            ("dropped", channel.dropped),
        )
    )
    yield IDLE_RECORDED.value(int(reading.recorded))


CATALOGUE = (
    *LEASES_CATALOGUE,
    *MPS_CATALOGUE,
    *IDLE_CATALOGUE,
)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    yield from collect_leases(snapshot)
    yield from collect_mps(snapshot)
    yield from collect_idle(snapshot)
