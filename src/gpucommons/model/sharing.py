"""The scheduler's state at an instant: clients, queues and turns of every shared GPU, and parked programs."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Final, NamedTuple

from gpucommons.model.process_identity import ProcessKey
from gpucommons.model.words import SharingClass

# Counts values up to bounds, as Prometheus's histograms do.


class HistogramReading(NamedTuple):
    """`counts` are cumulative and one longer than `bounds`: the last is the total."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


class Histogram:
    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def reading(self) -> HistogramReading:
        return HistogramReading(self._bounds, tuple(accumulate(self._counts)), self._sum)


# Parked programs at an instant: those whose GPU memory is in host memory, or on its way there or back.

# The causes of parking: see ParkedReading.
IDLE: Final = "idle"
ASKED: Final = "asked"
TURN: Final = "turn"
SUSPENDED: Final = "suspended by Slurm"
EARLIER_AGENT: Final = "left by an earlier agent"
ARRIVAL: Final = "room for a new program"
BACKGROUND: Final = "class background"


class ParkedFor(NamedTuple):
    """The program for which another was parked, or what was parked for it. `name` is its command; empty: hidden.

    `was_idle`: it was not at work when it was parked.
    """

    name: str
    user: str
    uid: int | None
    bytes: int
    was_idle: bool = True

    def in_events_of(self, uid: int | None) -> "ParkedFor":
        """As the events of this user have it: users read their own events, so these name no other user."""
        return self if self.uid == uid else self._replace(name="")


class ParkedReading(NamedTuple):
    """`stage` is parking, parked, waking or stranded; `since_wall_s` is when the program was last on the GPU.

    `gpu_bytes` is what it held there, `host_bytes` the part of it that is in host memory. `cause` is why it was parked:
    idle, asked, turn (of another program, with oversubscribe), suspended by Slurm, room for a new program, class
    background (it worked, and another needs the room), or left by an earlier agent. `made_for` is that new program.
    `waits` says why it is not brought back yet, empty where it need not be. `remaining_s` is until the move ends, or
    until it is back while it waits, and `rate_bytes_s` how fast it moves: estimates; None: not known. `name` and
    `waits` are printable. `comes_after` are the requests for leases from which its room on the GPU is not kept; None:
    it is kept from none. `ancestors` are those of a program that an earlier agent left: its key does not name the lease
    that started it.
    """

    key: str
    name: str
    user: str
    uid: int | None
    stage: str
    gpu_uuid: str
    pids: tuple[int, ...]
    gpu_bytes: int
    host_bytes: int
    since_wall_s: float
    cause: str
    waits: str = ""
    rate_bytes_s: float | None = None
    remaining_s: float | None = None
    comes_after: frozenset[str] | None = None
    ancestors: tuple[ProcessKey, ...] = ()
    made_for: ParkedFor | None = None


class ArrivalReading(NamedTuple):
    """A program that began on a full GPU and waited for room before its first allocation.

    `is_held`: it waits now. `parked` is what was parked for it; `why` is why it went on, empty while it waits.
    """

    key: str
    name: str
    user: str
    uid: int | None
    pid: int
    gpu_uuid: str
    is_held: bool
    since_wall_s: float
    waited_s: float
    parked: tuple[ParkedFor, ...] = ()
    why: str = ""


class ParkEvent(NamedTuple):
    """`kind` is parked, woken, refused, stranded or waited (for room). `why` is the reason of a refusal in one word."""

    id: str
    kind: str
    wall_s: float
    key: str
    name: str
    user: str
    uid: int | None
    gpu_uuid: str
    bytes: int
    duration_s: float
    sentence: str
    why: str = ""


class KeptReading(NamedTuple):
    """A suspended job that keeps its GPU memory, with the reason in a sentence that every user may read."""

    job: str
    gpu_uuids: tuple[str, ...]
    sentence: str


class ParkingReading(NamedTuple):
    """`unavailable` is why nothing can be parked, empty where it can. `events` are the latest, in order.

    `parks` and `wakes` are counted since the agent started, `refusals` by reason. `expected_rooms` is when a request
    for a lease is expected to have its room, by wall clock. `arrivals` are programs that wait for room before their
    first allocation or did so lately, `arrivals_held` counts them, and `arrivals_waited_s` is how long they waited in
    all. `kept` are suspended jobs that could not be parked.
    """

    idle_after_s: float = 0.0
    eager: bool = False
    unavailable: str = ""
    programs: tuple[ParkedReading, ...] = ()
    events: tuple[ParkEvent, ...] = ()
    parks: int = 0
    wakes: int = 0
    refusals: Mapping[str, int] = {}
    expected_rooms: Mapping[str, float] = {}
    arrivals: tuple[ArrivalReading, ...] = ()
    arrivals_held: int = 0
    arrivals_waited_s: float = 0.0
    kept: tuple[KeptReading, ...] = ()


# The scheduler's state at an instant: clients, queues and turns of every shared GPU.
#
# Client rows are NamedTuples, not dataclasses: a node may have thousands, and they are made again every second.

# Seconds. Hand-offs take microseconds, turns and waits seconds to minutes.
HANDOFF_BUCKETS: Final = (0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.1)
DRAIN_BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
# A checkpoint moves about 2 GB/s, a restore about 5.
MOVE_BUCKETS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0)
# A pause takes under a millisecond where the queue of submitted work is short, and up to its timeout where it is deep.
PAUSE_BUCKETS: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
TURN_BUCKETS: Final = (0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


_LASTING_WAIT_S: Final = 2.0


class WaitReason(StrEnum):
    """Why a client that requested a turn does not run: rules/wait_reasons.py has the sentences."""

    QUOTA = "quota"
    TURN = "turn"
    MEMORY = "memory"
    DEMAND = "demand"
    SOLO = "solo"
    FAIRNESS = "fairness"
    BACKGROUND = "background"
    READY = "ready"


class WaitReading(NamedTuple):
    """A client's wait. `ahead` clients are before it in the queue; `room_bytes` is free under the safe limit;
    `expected_s` is an estimate, None where there is none."""

    reason: WaitReason
    waited_s: float
    ahead: int
    room_bytes: int
    expected_s: float | None

    @property
    def is_lasting(self) -> bool:
        """False for a short one of many: programs in turns change places several times a second."""
        return self.waited_s >= _LASTING_WAIT_S


class ClientSharing(NamedTuple):
    """One client. Times are durations; `need_bytes` is None for v1 clients, which do not report their memory.

    `over_claimed`: it reported more memory than the GPU has; `allocated_bytes` is the GPU's memory then. `name` is for
    people, finished and printable: model/names.py makes it. A plain program has its key in `program`, all of its
    pids in `processes`, and the protocol version 0; for a client of nvshare these are None and empty. The standing of a
    program may also be "resting": it does not use the GPU now, is not paused and takes no turns; or "stopped", by its
    user, or "hanging": the driver's call for it does not return. Then `held_up` says what is in the way, in words.
    `class_source` is where its class was set; `holds_back`: others are held back while it works, which a program of
    class latency loses while its owner has more than its share.
    """

    client_id: str
    pod: str
    namespace: str
    gpu_uuid: str
    gpu_index: int | None
    protocol_version: int
    pid: int
    uid: int
    gid: int
    standing: str
    revoked: bool
    pending_drop: bool
    turn_s: float | None
    turns: int
    wait: WaitReading | None
    allocated_bytes: int
    allocated_peak_bytes: int
    nvml_bytes: int | None
    overhead_bytes: int | None
    need_bytes: int | None
    memory_quota_bytes: int
    memory_quota_source: str
    core_quota_percent: int
    core_quota_effective_percent: float
    core_quota_source: str
    window_usage_s: float
    window_limit_s: float
    throttled: bool
    debt_s: float
    billed_s: float
    demand_ratio: float | None
    over_claimed: bool = False
    name: str = ""
    program: str | None = None
    processes: tuple[int, ...] = ()
    held_up: str = ""
    sharing_class: SharingClass = SharingClass.BATCH
    class_source: str = "none"
    holds_back: bool = False


class LeftAlone(NamedTuple):
    """A program on a GPU that takes no turns. `why` is one word for metrics, `sentence` says it in words.

    `name` and `sentence` are printable. `uid` is None where it is not known, or its processes have several users.
    """

    name: str
    why: str
    sentence: str
    uid: int | None = None
    gpu_uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuSharing:
    """One GPU's queues. `way` is how its clients share it now, `way_reason` why.

    Ways: alone, together, turns (of owners, or one by one), measuring, linked
    (its clients are in the queue of another GPU, because a program uses both), free.
    `gain_ratio` is the progress per second compared with the driver's time-slicing of the same clients, as measured;
    None while it is not known. `coarse`: there is no measured SM activity, so that utilisation decides.
    `running_memory_bytes` is the estimated need of the clients that run, `running_managed_bytes` what they report.
    """

    uuid: str
    index: int | None
    present: bool
    running: tuple[str, ...]
    request_queue: tuple[str, ...]
    wait_queue: tuple[str, ...]
    running_memory_bytes: int
    running_managed_bytes: int
    running_managed_peak_bytes: int
    total_memory_bytes: int
    total_memory_measured: bool
    safe_limit_bytes: int
    overloaded: bool
    way: str
    way_reason: str
    quantum_left_s: float | None
    busy_seconds: float
    drop_lock: Mapping[str, int]
    wait_for_mem: int
    mem_available: int
    wait_seconds: HistogramReading
    turn_seconds: HistogramReading
    drain_seconds: HistogramReading
    # Its name: 3, or 6.0 for a MIG device; empty while it is not known.
    slot: str = ""
    gain_ratio: float | None = None
    coarse: bool = False


class PauserReading(NamedTuple):
    """What the pauser did since the agent started. `failures` is by operation and reason.

    `timeouts` are locks that failed because submitted work did not end in time. `forced` are programs that the pauser
    resumed on its own, after the longest pause. `longest_pause_s` is of the pauses for turns, also those that go on.
    `hold_backs` are times in which programs were held back for one of class latency, or a background one for another.
    """

    available: bool
    locks: int
    unlocks: int
    timeouts: int
    forced: int
    restarts: int
    failures: Mapping[tuple[str, str], int]
    longest_pause_s: float
    lock_seconds: HistogramReading
    unlock_seconds: HistogramReading
    hold_backs: int = 0
    held_back_s: float = 0.0


class SharingReading(NamedTuple):
    """`departed` are the last rows of disconnected clients, kept for `metrics_stale_ttl_s`.

    `share_programs` is whose plain programs take turns: off, own or all. `left_alone` are those that do not.
    `park_seconds` and `wake_seconds` are the durations of moves to host memory and back; None where nothing is parked.
    `pauser` is None where no plain program takes turns.
    """

    on: bool
    mode: str
    fixed_quantum_s: float | None
    gpus: tuple[GpuSharing, ...]
    clients: tuple[ClientSharing, ...]
    departed: tuple[ClientSharing, ...]
    messages: Mapping[str, int]
    disconnects: Mapping[str, int]
    refusals: Mapping[str, int]
    handoff_seconds: HistogramReading
    window_s: float
    debug_labels: bool = True
    connections: int = 0
    share_programs: str = "off"
    left_alone: tuple[LeftAlone, ...] = ()
    parking: ParkingReading | None = None
    park_seconds: HistogramReading | None = None
    wake_seconds: HistogramReading | None = None
    pauser: PauserReading | None = None


class Turn(NamedTuple):
    """One turn of a client. `end_wall_s` is None while it runs; `uid` is the user of the client."""

    id: str
    client_id: str
    label: str
    uid: int
    start_wall_s: float
    end_wall_s: float | None = None


Timeline = Mapping[str, tuple[Turn, ...]]
