"""The policy's state: one Client per connection, one GpuQueue per device, and the terms of the settings.

Only this package changes the state, and each part of it is changed by one module, which its docstring names:

| part | of a client | of a GPU | changed by |
|---|---|---|---|
| memory | ClientMemory | MemorySums | transitions.py |
| turn | standing, ClientTurn | GpuTurns | transitions.py |
| service | Service | ServiceOrder, OwnerLine | attained.py |
| core limit | Quota | CoreLimits | core_limits.py |
| activity | | Phases | phasing.py |
| verdict | | deadline_s, next_client and the fields next to them | evaluation.py |

The words of the config file become enumerations here.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Final, Literal, NamedTuple, Protocol

from gpucommons.base.peers import ClientProcess
from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.model.sharing import DRAIN_BUCKETS, TURN_BUCKETS, Histogram
from gpucommons.model.words import SharingClass
from gpucommons.scheduler.corun.coruns import TURN_GAIN, Coruns, Phase, Way
from gpucommons.scheduler.policy.quota_bucket import QuotaBucket
from gpucommons.scheduler.protocol.wire import MessageType, Version

# The settings as the rules use them: words of the config file as enumerations, and what an operator changed since.

GIB: Final = 1 << 30


class Mode(StrEnum):
    """serial: one at a time. concurrent: together while memory fits. auto: also by measured demand."""

    SERIAL = "serial"
    CONCURRENT = "concurrent"
    AUTO = "auto"


class SwitchTime(StrEnum):
    AUTO = "auto"
    FIXED = "fixed"


class Fence(StrEnum):
    """When the socket of a client whose turn was revoked is closed: never, after its second revocation
    within a while (evaluation.py), at once."""

    NONE = "none"
    SECOND = "second"
    DISCONNECT = "disconnect"

    def closes_after(self, revocations: int) -> bool:
        return revocations >= {Fence.DISCONNECT: 1, Fence.SECOND: 2}.get(self, revocations + 1)


class Terms:
    """`operator_quantum_s` is the quantum that an operator fixed; None: by the settings. `v1_alone`: v1 clients run
    alone, because their memory is not known."""

    __slots__ = (
        "_configured_shortest_s",
        "auto",
        "fair_between_owners",
        "fence",
        "fixed_switch_time",
        "mode",
        "operator_quantum_s",
        "serial",
        "settings",
        "shortest_quantum_s",
        "v1_alone",
    )

    # The limits of a quantum that grows with the memory to be moved.
    SWITCH_TIME_MIN_S: Final = 10.0
    SWITCH_TIME_MAX_S: Final = 300.0

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self.fence = Fence(settings.fence)
        self.fair_between_owners = settings.fair_between == "owners"
        self.fixed_switch_time = SwitchTime(settings.switch_time_mode) is SwitchTime.FIXED
        self.operator_quantum_s: float | None = None
        self._configured_shortest_s = settings.switch_time_fixed_s if self.fixed_switch_time else self.SWITCH_TIME_MIN_S
        self.shortest_quantum_s = self._configured_shortest_s
        self.set_mode(Mode(settings.mode))

    def set_mode(self, mode: Mode) -> None:
        self.mode = mode
        self.serial = mode is Mode.SERIAL
        self.auto = mode is Mode.AUTO
        self.v1_alone = mode is not Mode.CONCURRENT

    def longest_quantum_s(self, total_bytes: int) -> float:
        """The longest quantum on a GPU with so much memory."""
        if self.operator_quantum_s is not None or self.fixed_switch_time:
            return self.shortest_quantum_s
        longest_s = self.settings.switch_time_multiplier * total_bytes / GIB
        return min(max(longest_s, self.SWITCH_TIME_MIN_S), self.SWITCH_TIME_MAX_S)

    def set_quantum(self, seconds: float | None) -> None:
        """None: as the settings say."""
        self.operator_quantum_s = seconds
        self.shortest_quantum_s = self._configured_shortest_s if seconds is None else seconds


# The policy's state: one Client per connection, one GpuQueue per device. Only this package changes them.

NEVER: Final = float("inf")
LONG_AGO: Final = float("-inf")
# How often DROP_LOCK is sent again, and how long the room that it makes is reserved.
DROP_RESEND_S: Final = 5.0
_HANDOVERS_PER_STEP: Final = 512
# In place of a protocol version: a plain program, which the pauser stops and resumes.
PROGRAM: Final = 0


class ClientStanding(StrEnum):
    """idle: no request. throttled: requested, but its core quota is spent. waiting: requested, and in the queue."""

    IDLE = "idle"
    WAITING = "waiting"
    THROTTLED = "throttled"
    RUNNING = "running"


class DropReason(StrEnum):
    """Why DROP_LOCK was sent: the values of the metric's label."""

    QUANTUM = "quantum"
    QUOTA = "quota"
    MEMORY = "memory"
    REVOKED = "revoked"


class Send(NamedTuple):
    """Send a message to this client. `value` is its payload, if it has one: a memory or core limit."""

    client: "Client"
    message: MessageType
    value: int = 0


class Peer(Protocol):
    """The service's connection to a client. The policy does not use it."""

    @property
    def closing(self) -> str: ...
    @property
    def lock_ok(self) -> bytes: ...
    @property
    def write(self) -> Callable[[bytes], None]: ...

    def send(self, message: MessageType, value: int) -> None: ...
    def close(self, reason: str) -> None: ...


class TurnClock:
    """One GPU's time as it is billed: it advances by dt / n while n clients run, and stops while none do.

    The bill of a turn is its wall time divided by the number of clients that ran on the GPU meanwhile. The clock
    integrates that for all clients at once, so a turn costs two readings.
    """

    __slots__ = ("at_s", "billed_s", "busy_s", "running", "window_billed_s", "window_end_s", "window_s")

    def __init__(self, now_s: float, window_s: float) -> None:
        self.at_s = now_s
        self.billed_s = 0.0
        self.busy_s = 0.0
        self.running = 0
        self.window_s = window_s
        self.window_billed_s = 0.0
        self.window_end_s = now_s + window_s

    def advance(self, now_s: float) -> None:
        """Must be called before `running` changes."""
        elapsed = now_s - self.at_s
        if elapsed <= 0.0:
            return
        if now_s >= self.window_end_s:
            self._roll(now_s)
        running = self.running
        if running:
            self.billed_s += elapsed / running
            self.busy_s += elapsed
        self.at_s = now_s

    def _roll(self, now_s: float) -> None:
        """Opens the window that `now_s` is in, and records what the clock showed when that window began."""
        passed = (now_s - self.window_end_s) // self.window_s
        start = self.window_end_s + passed * self.window_s
        self.window_end_s = start + self.window_s
        inside = (start - self.at_s) / self.running if self.running else 0.0
        self.window_billed_s = self.billed_s + inside


class OwnerLine:
    """One owner's clients on one GPU, and what they have had. attained.py alone changes it.

    `waiting` is in the order in which they are served; `running` is how many have a turn, programs aside. `has_anchor`:
    one of them is the GPU's anchor. If none is and some wait, the owner has a place in the queue. `served_s` is its
    service until `since_s`, `floor_s` the least that one of its clients had, `ran_s` when its last turn ended,
    `luck_s` what it had in the room that an anchor left over and has not been forgotten. `clients` is how many are
    registered.
    """

    __slots__ = (
        "clients",
        "floor_s",
        "has_anchor",
        "luck_s",
        "place",
        "ran_s",
        "running",
        "served_s",
        "since_s",
        "waiting",
    )

    def __init__(self) -> None:
        self.waiting: list[WaitEntry] = []
        self.place: PlaceEntry | None = None
        self.clients = 0
        self.running = 0
        self.has_anchor = False
        self.served_s = 0.0
        self.since_s = 0.0
        self.floor_s = 0.0
        self.ran_s = LONG_AGO
        self.luck_s = 0.0


class ClientMemory:
    """What a client needs and has. transitions.py alone changes it.

    `claimed_bytes` is what it reports; `used_bytes` the same, at most the device's. `blind`: its memory is not known.
    v1 clients do not report it; NVML may show it. The memory of a program stays on the GPU while it is paused, so it
    counts for the GPU (`resident_bytes`) and not as the need of a turn.
    """

    __slots__ = (
        "blind",
        "claimed_bytes",
        "held_bytes",
        "limit_bytes",
        "must_refit",
        "need_bytes",
        "nvml_bytes",
        "overhead_bytes",
        "peak_bytes",
        "peak_nvml_bytes",
        "resident_bytes",
        "used_bytes",
    )

    def __init__(self, *, blind: bool) -> None:
        self.blind = blind
        self.claimed_bytes = 0
        self.used_bytes = 0
        self.peak_bytes = 0
        # Of contexts and libraries; NVML's value for the process.
        self.overhead_bytes: int | None = None
        self.nvml_bytes: int | None = None
        self.peak_nvml_bytes = 0
        self.need_bytes = 0
        self.resident_bytes = 0
        # While it is revoked: how much of its need counts.
        self.held_bytes = 0
        # 0: none. The client enforces it.
        self.limit_bytes = 0
        # Dropped by an overload: it must fit with a margin before it may join other clients again.
        self.must_refit = False


class ClientTurn:
    """A client's wait, its turn and the end of it, and what its turns were billed. transitions.py alone changes it."""

    __slots__ = (
        "begun_s",
        "billed_s",
        "count",
        "drop_again_s",
        "drop_reason",
        "drop_s",
        "eligible_s",
        "keep_until_s",
        "mark_s",
        "requested_again",
        "revoked",
        "wait_for_mem_sent",
        "wait_s",
        "window_base_s",
        "window_end_s",
    )

    def __init__(self) -> None:
        self.revoked = False
        self.requested_again = False
        # The wait: time of the request, time since which only other clients block it, whether WAIT_FOR_MEM was sent.
        self.wait_s = 0.0
        self.eligible_s = 0.0
        self.wait_for_mem_sent = False
        # The turn: when it began, and the GPU's turn clock then; how many have ended.
        self.begun_s = 0.0
        self.mark_s = 0.0
        self.count = 0
        # When DROP_LOCK was sent, when it is sent again, and why.
        self.drop_s: float | None = None
        self.drop_again_s = 0.0
        self.drop_reason = DropReason.QUANTUM
        # A program that could not be paused runs at least until then.
        self.keep_until_s = LONG_AGO
        # Its bill, and what that was when the window that ends at `window_end_s` began.
        self.billed_s = 0.0
        self.window_base_s = 0.0
        self.window_end_s = 0.0


class Service:
    """A client's place in the order, and what it has had. attained.py alone changes it.

    `entry` is its place in the queue of its owner while it waits. `served_s` is the time of its turns, as far as it
    counts for the order; `ran_s` is when the last one ended, `released` whether before it was asked to. A guest, which
    passed the front of the queue, may run until `guest_until_s` in the room that is left over; None: its turn lasts a
    quantum.
    """

    __slots__ = ("entry", "guest_until_s", "line", "ran_s", "released", "served_s")

    def __init__(self) -> None:
        # Set when it enters.
        self.line = OwnerLine()
        self.entry: WaitEntry | None = None
        self.served_s = 0.0
        self.ran_s = LONG_AGO
        self.released = False
        self.guest_until_s: float | None = None


class Quota:
    """A client's core limit. core_limits.py alone changes it. No bucket: no limit. `settled_mark_s` is the GPU's
    turn clock at the last settlement."""

    __slots__ = ("bucket", "percent", "settled_mark_s")

    def __init__(self) -> None:
        self.percent = 100
        self.bucket: QuotaBucket | None = None
        self.settled_mark_s = 0.0


class Client:
    """One registered client: a connection of nvshare, or a plain program. Its standing is changed in transitions.py."""

    __slots__ = (
        "device",
        "gid",
        "gpu",
        "gpu_name",
        "gpu_share",
        "id",
        "is_program",
        "lock_ok",
        "memory",
        "namespace",
        "owner",
        "peer",
        "pid",
        "pod",
        "process",
        "quota",
        "service",
        "sharing_class",
        "standing",
        "turn",
        "uid",
        "version",
    )

    def __init__(
        self,
        id: int,
        gpu: "GpuQueue",
        *,
        version: Version | Literal[0] = 2,
        pod: str = "none",
        namespace: str = "none",
        pid: int = 0,
        uid: int = 0,
        gid: int = 0,
        gpu_name: str = "",
        process: "ClientProcess | None" = None,
        owner: str = "",
    ) -> None:
        self.id = id
        self.gpu = gpu
        # The device that it is on. Its queue may be that of another device, where a program links the two.
        self.device = gpu.key
        # The client's name for the GPU: resolved again when the GPUs become known later.
        self.gpu_name = gpu_name
        self.version = version
        self.is_program = version == PROGRAM
        self.sharing_class = SharingClass.BATCH
        # The part of the GPU that a batch system gave to it; None: none in particular.
        self.gpu_share: float | None = None
        # Clients of one owner share what one client of another owner gets; without an owner it is its own.
        self.owner = owner or client_name(id)
        self.pod = pod
        self.namespace = namespace
        self.pid = pid
        self.uid = uid
        self.gid = gid
        self.process = process
        # For the service only.
        self.peer: Peer | None = None

        # The only answer of the hot path, made once.
        self.lock_ok = Send(self, MessageType.LOCK_OK)

        self.standing = ClientStanding.IDLE
        self.memory = ClientMemory(blind=version == 1)
        self.turn = ClientTurn()
        self.service = Service()
        self.quota = Quota()


class MemorySums:
    """A device's memory and the sums over its clients. transitions.py alone changes it."""

    __slots__ = (
        "client_limit_bytes",
        "held_bytes",
        "managed_bytes",
        "overloaded",
        "peak_managed_bytes",
        "resident_bytes",
        "running_blind",
        "running_bytes",
        "safe_limit_bytes",
        "total_bytes",
        "total_known",
    )

    def __init__(self) -> None:
        self.total_bytes = 0
        self.total_known = False
        # The safe limit, and what the memory of programs leaves of it.
        self.safe_limit_bytes = 0
        self.client_limit_bytes = 0
        self.resident_bytes = 0
        # Sums over the running clients: the need, and the part of it that clients of nvshare report as managed memory,
        # with its peak; how many of them are blind. `held_bytes` is the memory that revoked clients hold.
        self.running_bytes = 0
        self.managed_bytes = 0
        self.peak_managed_bytes = 0
        self.running_blind = 0
        self.held_bytes = 0
        self.overloaded = False

    def possible_bytes(self, claimed_bytes: int) -> int:
        """A claim, at most the memory of the device where that is known."""
        return min(claimed_bytes, self.total_bytes) if self.total_known else claimed_bytes


class GpuTurns:
    """The clients with a turn, in the order of the turns, and those that were dropped, revoked or throttled; what
    turns took. transitions.py alone changes it."""

    __slots__ = (
        "changed_s",
        "clock",
        "draining",
        "drains",
        "drops",
        "handovers",
        "hung",
        "lengths",
        "mem_available",
        "programs",
        "revoked",
        "running",
        "throttled",
        "wait_for_mem",
        "waits",
    )

    def __init__(self, now_s: float, window_s: float) -> None:
        self.clock = TurnClock(now_s, window_s)
        self.running: dict[int, Client] = {}
        self.draining: dict[int, Client] = {}
        self.revoked: dict[int, Client] = {}
        self.throttled: dict[int, Client] = {}
        # Programs for which a call of the driver does not return.
        self.hung: dict[int, Client] = {}
        # How many of the running clients are programs.
        self.programs = 0
        # When a turn last began or ended without a hand-over.
        self.changed_s = now_s

        self.drops = dict.fromkeys(DropReason, 0)
        self.wait_for_mem = 0
        self.mem_available = 0
        self.waits = Histogram(TURN_BUCKETS)
        self.lengths = Histogram(TURN_BUCKETS)
        self.drains = Histogram(DRAIN_BUCKETS)
        # Hand-overs not yet in the histograms, alternating: length of the turn, wait of the next client. A flat list
        # of numbers: pairs would be work for the garbage collector.
        self.handovers: list[float] = []

    def count_handovers(self) -> bool:
        """Moves some of the recorded hand-overs into the histograms. Returns whether some are left."""
        part = self.handovers[: 2 * _HANDOVERS_PER_STEP]
        del self.handovers[: 2 * _HANDOVERS_PER_STEP]
        for length_s in part[::2]:
            self.lengths.observe(length_s)
        for wait_s in part[1::2]:
            self.waits.observe(wait_s)
        return bool(self.handovers)


class ServiceOrder:
    """The waiting clients, in the order of their requests, and the owners in the order in which they are served.
    attained.py alone changes it."""

    __slots__ = (
        "anchor",
        "claim",
        "departed_s",
        "floor_s",
        "front",
        "lead_s",
        "lines",
        "places",
        "requests",
        "room_s",
        "waiting",
    )

    def __init__(self) -> None:
        self.waiting: dict[int, Client] = {}
        self.lines: dict[str, OwnerLine] = {}
        # The owners that wait, without that of the anchor, in the order in which they are served.
        self.places: list[PlaceEntry] = []
        # The client that was the front last, the one that room is made for now, and the one that turns were ended for
        # and that has not begun yet.
        self.anchor: Client | None = None
        self.front: Client | None = None
        self.claim: Client | None = None
        # By when room is made for the front.
        self.room_s = NEVER
        # What the least served owner had, how much more is kept in full, what owners had that left, requests so far.
        self.floor_s = 0.0
        self.lead_s = 0.0
        self.departed_s: dict[str, float] = {}
        self.requests = 0

    def first_waiting(self) -> Client | None:
        """The client that is served next: the one that turns were ended for; else of the least served owner; of the
        anchor's owner only if no other waits."""
        if self.claim is not None:
            return self.claim
        if self.places:
            return self.places[0][2].waiting[0][2]
        line = None if self.anchor is None else self.anchor.service.line
        return line.waiting[0][2] if line is not None and line.waiting else None

    def in_order(self) -> Iterator[Client]:
        """The waiting clients in the order in which they are served: the first, then one of each owner, those that have
        no turn first, then the others."""
        claim = self.claim
        if claim is None:
            yield from self._by_service()
        else:
            yield claim
            yield from (client for client in self._by_service() if client is not claim)

    def _by_service(self) -> Iterator[Client]:
        places = self.places
        for _, _, line in places[:1]:
            yield line.waiting[0][2]
        if len(places) > 1:
            yield from (line.waiting[0][2] for _, _, line in places[1:] if not line.running)
            yield from (line.waiting[0][2] for _, _, line in places[1:] if line.running)
        if len(places) < len(self.waiting):
            for _, _, line in places:
                yield from (client for _, _, client in line.waiting[1:])
            if self.anchor is not None:
                yield from (client for _, _, client in self.anchor.service.line.waiting)


class CoreLimits:
    """The core limits of the clients that run, wait or are throttled: their sum in percent, and the factor that scales
    them down. core_limits.py alone changes it."""

    __slots__ = ("clients", "percent", "refill_s", "running", "scale")

    def __init__(self) -> None:
        self.clients: dict[int, Client] = {}
        self.running: dict[int, Client] = {}
        self.percent = 0
        self.scale = 1.0
        # When the next throttled client is refilled.
        self.refill_s = NEVER


class Phases:
    """What was learnt of the GPU's activity, and the phase in force. phasing.py alone changes it."""

    __slots__ = (
        "before",
        "begun",
        "busy_until_s",
        "coruns",
        "counted_s",
        "current",
        "disturbed_s",
        "measured",
        "members",
        "metered",
        "planned_s",
        "until_s",
    )

    def __init__(self, now_s: float, turn_gain: float) -> None:
        # Whether the activity of a phase can be measured, and until when the last utilisation is valid.
        self.metered = False
        self.busy_until_s = LONG_AGO
        # When programs were last held back for one of class latency: what was measured meanwhile does not count.
        self.disturbed_s = LONG_AGO
        self.coruns: Coruns[int] = Coruns(turn_gain)
        # The phase in force: since when time is counted for it, whether exactly its clients run, and the clients that
        # it considered. It ends at `planned_s` if its measurement has come by then, and at `until_s` at the latest.
        # `before` is the last one that had begun; `measured` is the number of the last measurement.
        self.current: Phase[int] | None = None
        self.before: Phase[int] | None = None
        self.counted_s = now_s
        self.begun = False
        self.planned_s = NEVER
        self.until_s = NEVER
        self.members: frozenset[int] = frozenset()
        self.measured = 0

    @property
    def measured_until_s(self) -> float:
        """Until when the running clients are measured to decide how they share; in the past while they are not."""
        phase = self.current
        if phase is None or not self.begun or not self.metered or phase.way is not Way.MEASURING:
            return LONG_AGO
        return LONG_AGO if self.until_s == NEVER else self.until_s


class GpuQueue:
    """One device, its clients, and what each part of the policy keeps of it."""

    __slots__ = (
        "biggest_waiter",
        "clients",
        "deadline_s",
        "devices",
        "fast_path",
        "index",
        "key",
        "limits",
        "memory",
        "next_client",
        "order",
        "phases",
        "programs",
        "turns",
    )

    def __init__(
        self, key: str, index: int | None, now_s: float, window_s: float, turn_gain: float = TURN_GAIN
    ) -> None:
        self.key = key
        self.index = index
        # The GPUs of this queue: several where a program on several GPUs links them.
        self.devices: tuple[str, ...] = (key,)
        # How many of the clients are programs.
        self.clients: dict[int, Client] = {}
        self.programs = 0

        self.memory = MemorySums()
        self.turns = GpuTurns(now_s, window_s)
        self.order = ServiceOrder()
        self.limits = CoreLimits()
        self.phases = Phases(now_s, turn_gain)

        # At the last evaluation, which alone changes them: when it has to be evaluated next; whether no limit, drain,
        # overload or measurement was in force; the client that runs next, where that is certain; the biggest waiting
        # client, None where no memory has to be moved.
        self.deadline_s = NEVER
        self.fast_path = True
        self.next_client: Client | None = None
        self.biggest_waiter: Client | None = None


class Disconnect(NamedTuple):
    """Close this client's connection: its turn was revoked."""

    client: Client
    message: None = None


class Measure(NamedTuple):
    """Measure the GPU's activity from `begin_s` to `end_s`, for phase `number`."""

    gpu: GpuQueue
    number: int
    begin_s: float
    end_s: float
    message: None = None


Action = Send | Disconnect | Measure


# The order in which clients are served: by service, then by request.
WaitEntry = tuple[float, int, Client]
PlaceEntry = tuple[float, int, OwnerLine]


def client_name(client_id: int) -> str:
    """The id as clients and users see it."""
    return f"{client_id:016x}"
