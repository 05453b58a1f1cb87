"""The scheduler's state at an instant: clients, queues and turns of every shared GPU.

Client rows are NamedTuples, not dataclasses: a node may have thousands, and they are made again every second.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from gpucommons.model.histogram import HistogramReading
from gpucommons.model.parking import ParkingReading

# Seconds. Hand-offs take microseconds, turns and waits seconds to minutes.
HANDOFF_BUCKETS: Final = (0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.1)
DRAIN_BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
# A checkpoint moves about 2 GB/s, a restore about 5.
MOVE_BUCKETS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0)
# A pause takes under a millisecond where the queue of submitted work is short, and up to its timeout where it is deep.
PAUSE_BUCKETS: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
TURN_BUCKETS: Final = (0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class WaitReason(StrEnum):
    """Why a client that requested a turn does not run: rules/wait_reasons.py has the sentences."""

    QUOTA = "quota"
    TURN = "turn"
    MEMORY = "memory"
    DEMAND = "demand"
    SOLO = "solo"
    FAIRNESS = "fairness"
    READY = "ready"


class WaitReading(NamedTuple):
    """A client's wait. `ahead` clients are before it in the queue; `room_bytes` is free under the safe limit;
    `expected_s` is an estimate, None where there is none."""

    reason: WaitReason
    waited_s: float
    ahead: int
    room_bytes: int
    expected_s: float | None


class ClientSharing(NamedTuple):
    """One client. Times are durations; `need_bytes` is None for v1 clients, which do not report their memory.

    `over_claimed`: it reported more memory than the GPU has; `allocated_bytes` is the GPU's memory then. `name` is for
    people, finished and printable: rules/identities.py makes it. A plain program has its key in `program`, all of its
    pids in `processes`, and the protocol version 0; for a client of nvshare these are None and empty. The standing of a
    program may also be "resting": it does not use the GPU now, is not paused and takes no turns; or "stopped", by its
    user, or "hanging": the driver's call for it does not return. Then `held_up` says what is in the way, in words.
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
    gain_ratio: float | None = None
    coarse: bool = False


class PauserReading(NamedTuple):
    """What the pauser did since the agent started. `failures` is by operation and reason.

    `timeouts` are locks that failed because submitted work did not end in time. `forced` are programs that the pauser
    resumed on its own, after the longest pause. `longest_pause_s` is of the pauses for turns, also those that go on.
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


@dataclass(frozen=True, slots=True)
class SharingReading:
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


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a client. `end_wall_s` is None while it runs; `uid` is the user of the client."""

    id: str
    client_id: str
    label: str
    uid: int
    start_wall_s: float
    end_wall_s: float | None = None


Timeline = Mapping[str, tuple[Turn, ...]]


# The one queue of all clients whose GPU is not known (yet).
DEFAULT_GPU: Final = "default"
