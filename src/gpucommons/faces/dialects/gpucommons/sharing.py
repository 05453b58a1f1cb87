"""Turns on shared GPUs, the pauser that carries them out, and programs whose memory is parked."""

from collections import Counter
from collections.abc import Iterator, Sequence

from gpucommons.faces.dialects.series import OVERFLOW, KeptFamilies, named_labels, within_limit
from gpucommons.faces.exposition.families import Family, HistogramPoint, counter, gauge, histogram, sum_points
from gpucommons.model.sharing import (
    DRAIN_BUCKETS,
    HANDOFF_BUCKETS,
    MOVE_BUCKETS,
    PAUSE_BUCKETS,
    TURN_BUCKETS,
    ClientSharing,
    HistogramReading,
    SharingReading,
)
from gpucommons.model.snapshot import Snapshot
from gpucommons.model.words import SharingClass

# gpucommons_sharing_*: how each GPU is shared, the durations of waits, turns and hand-offs, and each client.
#
# The clients beyond the limit of series of their user are summed in one series per GPU, with the pod `overflow`.

_GPU = ("gpu", "uuid")
_CLIENT = ("namespace", "pod", "client_id", "uuid", "name")
# Of programs; these are always reported while programs take turns.
_STANDINGS = ("running", "waiting", "throttled", "resting", "stopped")
_QUEUES = ("waiting", "paused", "parked")

ON = gauge(
    "gpucommons_sharing_on", "State of the scheduler: 1 while it gives turns, 0 while all clients run freely.", "mode"
)
WAY = gauge(
    "gpucommons_sharing_way_info",
    "Way in which clients share a GPU (alone, together, turns, measuring, linked or free) and why; always 1.",
    *_GPU,
    "way",
    "reason",
)
GAIN = gauge(
    "gpucommons_sharing_gain_ratio",
    "Progress per second of a GPU's clients over that under the driver's time-slicing, an estimate from its activity.",
    *_GPU,
)
COARSE = gauge(
    "gpucommons_sharing_coarse",
    "Basis of the decision how to share a GPU: 1 if utilisation decides because SM activity cannot be read, else 0.",
    *_GPU,
)
SHARING_PROGRAMS = gauge(
    "gpucommons_sharing_programs",
    "Programs on the GPUs by standing: those that take turns, and left_alone for those that do not.",
    "standing",
)
BUSY = counter("gpucommons_sharing_busy_seconds_total", "Time in which at least one client had a turn on a GPU.", *_GPU)
WAIT = histogram("gpucommons_sharing_wait_seconds", "Time from a request to its turn.", *_GPU, buckets=TURN_BUCKETS)
TURN = histogram("gpucommons_sharing_turn_seconds", "Duration of turns.", *_GPU, buckets=TURN_BUCKETS)
DRAIN = histogram(
    "gpucommons_sharing_drop_to_release_seconds",
    "Time from the end of a turn until the client has released the GPU, or the program is paused.",
    *_GPU,
    buckets=DRAIN_BUCKETS,
)
HANDOFF = histogram(
    "gpucommons_sharing_handoff_seconds",
    "Time from receiving a release to sending the next client's LOCK_OK, for a sample of hand-offs.",
    buckets=HANDOFF_BUCKETS,
)
REFUSALS = counter("gpucommons_sharing_refusals_total", "Messages that were refused or had no effect.", "reason")
CONNECTIONS = gauge("gpucommons_sharing_connections", "Open connections to the scheduler, registered or not.")
REVOKED = gauge(
    "gpucommons_sharing_client_revoked",
    'Client whose turn was revoked and that still runs; 1, or the number of such clients in pod "overflow".',
    *_CLIENT,
)
DEMAND = gauge(
    "gpucommons_sharing_client_demand_ratio",
    "SM activity of the GPU while a client runs alone, as measured; its utilisation where that cannot be read.",
    *_CLIENT,
)
BILLED = counter(
    "gpucommons_sharing_client_billed_seconds_total",
    "GPU time billed to a client: the time of its turns divided by the number of clients that ran at the same time.",
    *_CLIENT,
)

WAITING = gauge(
    "gpucommons_sharing_client_wait_seconds",
    "Time for which a client has been waiting, and for what: turn, memory, quota, demand, solo or ready.",
    *_CLIENT,
    "why",
)
CLASSES = gauge("gpucommons_sharing_class_programs", "Programs that share GPUs, by their class.", *_GPU, "class")
QUEUED = gauge(
    "gpucommons_sharing_queued_clients",
    "Clients that wait for a GPU: waiting for their turn, paused until then, or parked in host memory.",
    *_GPU,
    "queue",
)

SHARING_CATALOGUE = (
    ON,
    WAY,
    GAIN,
    COARSE,
    SHARING_PROGRAMS,
    BUSY,
    WAIT,
    TURN,
    DRAIN,
    HANDOFF,
    REFUSALS,
    CONNECTIONS,
    REVOKED,
    DEMAND,
    BILLED,
    WAITING,
    CLASSES,
    QUEUED,
)


def collect_sharing(snapshot: Snapshot) -> Iterator[Family]:
    sharing = snapshot.readings.sharing
    if sharing is None:
        return
    gpus = [(("" if gpu.index is None else str(gpu.index), gpu.uuid), gpu) for gpu in sharing.gpus]
    yield ON.value(int(sharing.on), sharing.mode)
    yield WAY.of(((*labels, gpu.way, gpu.way_reason), 1) for labels, gpu in gpus)
    yield GAIN.of((labels, gpu.gain_ratio) for labels, gpu in gpus if gpu.gain_ratio is not None)
    yield COARSE.of((labels, int(gpu.coarse)) for labels, gpu in gpus)
    if sharing.share_programs != "off":
        yield SHARING_PROGRAMS.of(_standings(sharing))
    yield BUSY.of((labels, gpu.busy_seconds) for labels, gpu in gpus)
    yield WAIT.histogram(_point(gpu.wait_seconds, *labels) for labels, gpu in gpus)
    yield TURN.histogram(_point(gpu.turn_seconds, *labels) for labels, gpu in gpus)
    yield DRAIN.histogram(_point(gpu.drain_seconds, *labels) for labels, gpu in gpus)
    yield HANDOFF.histogram([_point(sharing.handoff_seconds)])
    yield REFUSALS.of(((reason,), count) for reason, count in sharing.refusals.items())
    yield CONNECTIONS.value(sharing.connections)
    yield from _CLIENT_FAMILIES(sharing.clients)
    if sharing.share_programs != "off":
        rows = Counter((row.gpu_uuid, row.sharing_class) for row in sharing.clients if row.program is not None)
        yield CLASSES.of(
            ((*labels, sharing_class.value), rows[gpu.uuid, sharing_class])
            for labels, gpu in gpus
            for sharing_class in SharingClass
        )
    queued = _count_queued(sharing)
    yield QUEUED.of(((*labels, queue), queued[gpu.uuid, queue]) for labels, gpu in gpus for queue in _QUEUES)


def _by_client(rows: Sequence[ClientSharing]) -> Iterator[Family]:
    own, rest = within_limit(rows, lambda row: row.uid)
    clients = [(named_labels(row.namespace, row.pod, row.client_id, row.gpu_uuid, row.name), row) for row in own]
    clients += [(named_labels("", OVERFLOW, "", row.gpu_uuid, ""), row) for row in rest]
    together = sum_points if rest else iter
    yield REVOKED.of(together((labels, 1) for labels, row in clients if row.revoked))
    yield DEMAND.of(together((labels, row.demand_ratio) for labels, row in clients if row.demand_ratio is not None))
    yield BILLED.of(together((labels, row.billed_s) for labels, row in clients))
    waiting = ((labels, row.wait) for labels, row in clients if row.wait is not None)
    yield WAITING.of(together(((*labels, wait.reason.value), wait.waited_s) for labels, wait in waiting))


_CLIENT_FAMILIES = KeptFamilies(_by_client)


def _standings(sharing: SharingReading) -> Iterator[tuple[tuple[str], int]]:
    counts = Counter(row.standing for row in sharing.clients if row.program is not None)
    yield from (((standing,), counts.pop(standing, 0)) for standing in _STANDINGS)
    yield from (((standing,), count) for standing, count in counts.items())
    yield ("left_alone",), len(sharing.left_alone)


def _count_queued(sharing: SharingReading) -> Counter[tuple[str, str]]:
    """By GPU and queue. A program that waits for its turn is paused; a client of nvshare waits by itself."""
    waiting = [(row.gpu_uuid, "paused" if row.program else "waiting") for row in sharing.clients if row.wait]
    parked = [(program.gpu_uuid, "parked") for program in (sharing.parking.programs if sharing.parking else ())]
    return Counter([*waiting, *parked])


def _point(reading: HistogramReading, *labels: str) -> HistogramPoint:
    return HistogramPoint(labels, reading.counts, reading.sum)


# gpucommons_pauser_*: what the process that pauses and resumes programs did, and what it could not do.

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
HOLD_BACKS = counter(
    "gpucommons_pauser_hold_backs_total",
    "Times in which programs were held back while one of class latency worked, or background ones while another did.",
)
HELD_BACK = counter("gpucommons_pauser_held_back_seconds_total", "Time for which programs were held back so, in total.")
LOCK = histogram(
    "gpucommons_pauser_lock_seconds",
    "Time until a process was paused, the end of its submitted work included.",
    buckets=PAUSE_BUCKETS,
)
UNLOCK = histogram("gpucommons_pauser_unlock_seconds", "Time until a process was resumed.", buckets=PAUSE_BUCKETS)

PAUSER_CATALOGUE = (
    AVAILABLE,
    LOCKS,
    UNLOCKS,
    FAILURES,
    TIMEOUTS,
    FORCED,
    RESTARTS,
    LONGEST,
    HOLD_BACKS,
    HELD_BACK,
    LOCK,
    UNLOCK,
)


def collect_pauser(snapshot: Snapshot) -> Iterator[Family]:
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
    yield HOLD_BACKS.value(pauser.hold_backs)
    yield HELD_BACK.value(pauser.held_back_s)
    for metric, reading in ((LOCK, pauser.lock_seconds), (UNLOCK, pauser.unlock_seconds)):
        yield metric.histogram([HistogramPoint((), reading.counts, reading.sum)])


# gpucommons_parking_*: programs whose GPU memory is in host memory, how much it is, and how long moving it took.

_OWNER = ("user",)
_STAGES = ("parking", "parked", "waking", "stranded")

PARKING_PROGRAMS = gauge("gpucommons_parking_programs", "Programs that are parked or on their way, by stage.", "stage")
HOST_BYTES = gauge(
    "gpucommons_parking_host_bytes", "Host memory that holds the GPU memory of a user's parked programs.", *_OWNER
)
PARKED = counter("gpucommons_parking_parked_total", "Programs parked since the agent started.")
WOKEN = counter("gpucommons_parking_woken_total", "Parked programs brought back since the agent started.")
REFUSED = counter("gpucommons_parking_refused_total", "Programs that could not be parked, by reason.", "reason")
PARK = histogram(
    "gpucommons_parking_park_seconds", "Time to move the memory of a program to host memory.", buckets=MOVE_BUCKETS
)
WAKE = histogram(
    "gpucommons_parking_wake_seconds", "Time to move the memory of a program back to the GPU.", buckets=MOVE_BUCKETS
)

ARRIVALS = gauge("gpucommons_parking_arrivals_held", "Programs that wait for room before their first allocation.")
ARRIVED = counter(
    "gpucommons_parking_arrivals_total", "Programs that waited for room as they started, since the agent started."
)
ARRIVAL_WAIT = counter(
    "gpucommons_parking_arrival_wait_seconds_total", "Time that programs waited for room as they started."
)

PARKING_CATALOGUE = (
    *(PARKING_PROGRAMS, HOST_BYTES, PARKED, WOKEN, REFUSED, PARK, WAKE),
    *(ARRIVALS, ARRIVED, ARRIVAL_WAIT),
)


def collect_parking(snapshot: Snapshot) -> Iterator[Family]:
    sharing = snapshot.readings.sharing
    parking = None if sharing is None else sharing.parking
    if sharing is None or parking is None:
        return
    stages = [program.stage for program in parking.programs]
    yield PARKING_PROGRAMS.of(((stage,), stages.count(stage)) for stage in _STAGES)
    yield HOST_BYTES.of(sum_points(((program.user,), program.host_bytes) for program in parking.programs))
    yield PARKED.value(parking.parks)
    yield WOKEN.value(parking.wakes)
    yield REFUSED.of(((reason,), count) for reason, count in parking.refusals.items())
    yield ARRIVALS.value(sum(arrival.is_held for arrival in parking.arrivals))
    yield ARRIVED.value(parking.arrivals_held)
    yield ARRIVAL_WAIT.value(parking.arrivals_waited_s)
    for metric, durations in ((PARK, sharing.park_seconds), (WAKE, sharing.wake_seconds)):
        if durations is not None:
            yield metric.histogram([HistogramPoint((), durations.counts, durations.sum)])


CATALOGUE = (
    *SHARING_CATALOGUE,
    *PAUSER_CATALOGUE,
    *PARKING_CATALOGUE,
)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    yield from collect_sharing(snapshot)
    yield from collect_pauser(snapshot)
    yield from collect_parking(snapshot)
