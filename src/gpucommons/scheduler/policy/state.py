"""What the policy remembers: one Client per connection, one GpuQueue per device. It alone changes them."""

from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from gpucommons.model.sharing import DRAIN_BUCKETS, TURN_BUCKETS
from gpucommons.scheduler.policy.billing import Bucket, TurnClock
from gpucommons.scheduler.policy.histogram import Histogram
from gpucommons.scheduler.protocol.wire import MessageType, Version

NEVER: Final = float("inf")
LONG_AGO: Final = float("-inf")
_HANDOVERS_PER_STEP: Final = 512


class ClientStanding(StrEnum):
    """idle: asked for nothing. throttled: asked, but its quota is spent. waiting: asked, and may run."""

    IDLE = "idle"
    WAITING = "waiting"
    THROTTLED = "throttled"
    RUNNING = "running"


class DropReason(StrEnum):
    """Why a client was told DROP_LOCK: the values of the metric's label."""

    QUANTUM = "quantum"
    QUOTA = "quota"
    MEMORY = "memory"
    REVOKED = "revoked"


class Send(NamedTuple):
    """Asks the shell to send a message. `value` is its payload where it has one: a memory or a core limit."""

    client: "Client"
    message: MessageType
    value: int = 0


class Peer(Protocol):
    """What the shell knows a client by. The policy never looks at it."""

    @property
    def closing(self) -> str: ...
    @property
    def lock_ok(self) -> bytes: ...
    @property
    def write(self) -> Callable[[bytes], None]: ...

    def send(self, message: MessageType, value: int) -> None: ...
    def close(self, reason: str) -> None: ...


class Client:
    """One registered client. Its need is None where it cannot be known: v1 clients do not tell."""

    __slots__ = (
        "asked_again",
        "billed_s",
        "bucket",
        "core_limit_percent",
        "demand_milli",
        "demand_s",
        "drop_again_s",
        "drop_reason",
        "drop_s",
        "eligible_s",
        "gid",
        "gpu",
        "gpu_name",
        "id",
        "lock_ok",
        "memory_limit_bytes",
        "must_refit",
        "namespace",
        "need_bytes",
        "nvml_bytes",
        "overhead_bytes",
        "peak_bytes",
        "peer",
        "pid",
        "pod",
        "refresh_demand",
        "registered_s",
        "revoked",
        "settled_mark_s",
        "solo_tries",
        "standing",
        "told_to_wait",
        "turn_mark_s",
        "turn_s",
        "turns",
        "uid",
        "used_bytes",
        "version",
        "wait_s",
        "window_base_s",
        "window_end_s",
    )

    def __init__(
        self,
        id: int,
        gpu: "GpuQueue",
        *,
        version: Version = 2,
        pod: str = "none",
        namespace: str = "none",
        pid: int = 0,
        uid: int = 0,
        gid: int = 0,
        gpu_name: str = "",
        now_s: float = 0.0,
    ) -> None:
        self.id = id
        self.gpu = gpu
        # Its own name for the GPU: needed again when the GPUs become known after it came.
        self.gpu_name = gpu_name
        self.version: Version = version
        self.pod = pod
        self.namespace = namespace
        self.pid = pid
        self.uid = uid
        self.gid = gid
        self.registered_s = now_s
        # For the shell alone: its way to this client.
        self.peer: Peer | None = None

        # The one answer of the hot path, made once.
        self.lock_ok = Send(self, MessageType.LOCK_OK)

        self.standing = ClientStanding.IDLE
        self.revoked = False
        self.asked_again = False

        # Memory: what it reported, the most it ever reported, its context's own overhead, NVML's figure.
        self.used_bytes = 0
        self.peak_bytes = 0
        self.overhead_bytes: int | None = None
        self.nvml_bytes: int | None = None
        self.need_bytes = 0
        self.memory_limit_bytes = 0
        # It was dropped because memory ran over: it must fit with a margin before it may join others again.
        self.must_refit = False

        # The wait: since when it asked, since when only others hold it up, whether WAIT_FOR_MEM was sent.
        self.wait_s = 0.0
        self.eligible_s = 0.0
        self.told_to_wait = False

        # The turn: when it began, and what the GPU's turn clock showed then and at the last settlement.
        self.turn_s = 0.0
        self.turn_mark_s = 0.0
        self.settled_mark_s = 0.0
        self.turns = 0
        self.drop_s: float | None = None
        self.drop_again_s = 0.0
        self.drop_reason = DropReason.QUANTUM

        # Accounts and quota. No bucket: no core limit.
        self.billed_s = 0.0
        # What it was billed before the window that ends at `window_end_s` began.
        self.window_base_s = 0.0
        self.window_end_s = 0.0
        self.core_limit_percent = 100
        self.bucket: Bucket | None = None

        # Demand: how busy it keeps the GPU when alone, in thousandths; when that was measured.
        self.demand_milli: int | None = None
        self.demand_s = LONG_AGO
        self.solo_tries = 0
        self.refresh_demand = False


class GpuQueue:
    """One device and its queues. `waiting` is in order of arrival, `running` in order of turn start."""

    __slots__ = (
        "alone_s",
        "biggest_waiter",
        "busy_span_s",
        "busy_until_s",
        "clients",
        "clock",
        "deadline_s",
        "demand_milli",
        "draining",
        "drops",
        "handovers",
        "heir",
        "held_bytes",
        "index",
        "key",
        "limited",
        "limited_percent",
        "limited_running",
        "limited_scale",
        "mem_available",
        "name",
        "overloaded",
        "peak_running_bytes",
        "plain",
        "refill_s",
        "refreshed_s",
        "revoked",
        "running",
        "running_bytes",
        "running_v1",
        "safe_limit_bytes",
        "solo",
        "solo_until_s",
        "throttled",
        "total_bytes",
        "total_known",
        "turns_drain",
        "turns_length",
        "turns_wait",
        "wait_for_mem",
        "waiting",
    )

    def __init__(self, key: str, index: int | None, now_s: float, window_s: float) -> None:
        self.key = key
        self.index = index
        self.name = ""
        self.total_bytes = 0
        self.total_known = False
        self.safe_limit_bytes = 0

        self.clients: dict[int, Client] = {}
        self.waiting: dict[int, Client] = {}
        self.throttled: dict[int, Client] = {}
        self.running: dict[int, Client] = {}
        self.draining: dict[int, Client] = {}
        self.revoked: dict[int, Client] = {}

        # Sums over `running`, kept as it changes; `held_bytes` is what revoked clients still occupy.
        self.running_bytes = 0
        self.running_v1 = 0
        self.demand_milli = 0
        self.held_bytes = 0
        self.peak_running_bytes = 0
        self.overloaded = False

        # Core limits of those that want to run: their sum, and by how much they are scaled down.
        self.limited: dict[int, Client] = {}
        self.limited_running: dict[int, Client] = {}
        self.limited_percent = 0
        self.limited_scale = 1.0
        self.refill_s = NEVER

        # Demand: how long a time the last busy sample is of and until when it counts, when a turn last ended without a
        # hand-over, and the client whose turn is kept alone so that it can be measured.
        self.busy_span_s = 0.0
        self.busy_until_s = LONG_AGO
        self.alone_s = now_s
        self.refreshed_s = now_s
        self.solo: Client | None = None
        self.solo_until_s = NEVER

        self.clock = TurnClock(now_s, window_s)
        self.deadline_s = NEVER
        # Nothing out of the ordinary at the last evaluation; and who then runs next, where that is certain.
        self.plain = True
        self.heir: Client | None = None
        # Of those that wait, at the last evaluation; None where nobody's memory has to be moved.
        self.biggest_waiter: Client | None = None

        self.drops = dict.fromkeys(DropReason, 0)
        self.wait_for_mem = 0
        self.mem_available = 0
        self.turns_wait = Histogram(TURN_BUCKETS)
        self.turns_length = Histogram(TURN_BUCKETS)
        self.turns_drain = Histogram(DRAIN_BUCKETS)
        # Of hand-overs not yet in the histograms, by turns: how long a turn was, how long the next one waited.
        # Numbers in a row, for pairs of them would be work for the garbage collector.
        self.handovers: list[float] = []

    def count_some(self) -> bool:
        """Moves a part of what was noted into the histograms. Returns whether some is left."""
        part = self.handovers[: 2 * _HANDOVERS_PER_STEP]
        del self.handovers[: 2 * _HANDOVERS_PER_STEP]
        for length_s in part[::2]:
            self.turns_length.observe(length_s)
        for wait_s in part[1::2]:
            self.turns_wait.observe(wait_s)
        left = [histogram.count() for histogram in (self.turns_length, self.turns_wait, self.turns_drain)]
        return bool(self.handovers) or any(left)


__all__ = ["Action", "Disconnect", "Send"]


class Disconnect(NamedTuple):
    """Close this client's connection: its turn was revoked."""

    client: Client
    message: None = None


Action = Send | Disconnect
