"""The policy in the event loop: carries out its actions and its measurements, and wakes it at its deadlines.

It decides nothing. A measurement is two samples of the GPU within a phase.
"""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final, Protocol

from gpucommons.model.gpu import ActivityMeasurement, DeviceActivity, GpuActivity
from gpucommons.model.sharing import HANDOFF_BUCKETS, Histogram
from gpucommons.scheduler.corun.facts import mean_activity
from gpucommons.scheduler.policy.policy import Policy
from gpucommons.scheduler.policy.state import LONG_AGO, NEVER, Action, Client, Disconnect, GpuQueue, Measure
from gpucommons.scheduler.protocol.wire import MessageType

# The policy in the event loop: carries out its actions and wakes it at its deadlines. It decides nothing.

LOCK_OK = MessageType.LOCK_OK
_LOCK_OK: Final = int(LOCK_OK)

_READ_BYTES: Final = 16 * 1024
# Timing every hand-off would cost more than it is worth.
_HANDOFF_TIMING_INTERVAL_S: Final = 0.01
# Timers of the loop have millisecond steps and may fire early: aim a little late.
_TIMER_SLACK_S: Final = 0.0005


class TurnLoop:
    """`messages` counts by message type; `armed_s` is when the policy is woken next."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.messages = [0] * (len(MessageType) + 1)
        self.handoffs = Histogram(HANDOFF_BUCKETS)
        self.armed_s = NEVER
        self.time_handoff_s = 0.0
        # Every connection reads into this buffer: one at a time, and no bytes stay in it.
        self.buffer = bytearray(_READ_BYTES)
        self.view = memoryview(self.buffer)
        self._timer: asyncio.TimerHandle | None = None
        # Where the GPU's activity can be measured, the server sets how.
        self.measure: Callable[[Measure], None] = lambda action: None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def apply(self, actions: Sequence[Action], now: float) -> None:
        """Carries out the actions of an event that may have touched any GPU."""
        self.perform(actions)
        deadline = self.policy.next_deadline_s()
        if deadline < self.armed_s:
            self.arm(deadline, now)

    def perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Measure):
                self.measure(action)
                continue
            if action.message is LOCK_OK:
                self.grant(action.client)
                continue
            peer = action.client.peer
            if peer is None or peer.closing:
                continue
            if isinstance(action, Disconnect):
                peer.close("fenced")
            else:
                self.messages[action.message] += 1
                peer.send(action.message, action.value)

    def grant(self, client: Client) -> None:
        """Sends LOCK_OK, the most frequent action."""
        peer = client.peer
        if peer is not None and not peer.closing:
            self.messages[_LOCK_OK] += 1
            peer.write(peer.lock_ok)

    def arm(self, deadline_s: float, now: float) -> None:
        """Sets the timer for a deadline that is earlier than the present one."""
        if self._timer is not None:
            self._timer.cancel()
        self.armed_s = deadline_s
        self._timer = self._loop.call_later(max(0.0, deadline_s - now) + _TIMER_SLACK_S, self._wake)

    def time_handoff(self, now: float) -> None:
        """Records the time from the bytes of a release to the next client's LOCK_OK, for a sample of the hand-offs."""
        done = monotonic()
        self.handoffs.observe(done - now)
        self.time_handoff_s = done + _HANDOFF_TIMING_INTERVAL_S

    def _wake(self) -> None:
        now = monotonic()
        self.armed_s = NEVER
        self._timer = None
        self.apply(self.policy.tick(now), now)


# Carries out the policy's measurements: two samples of the GPU within a phase, by the meter. It decides nothing.

# Timers of the loop have millisecond steps and may fire early, but the first sample must not be.
_SAMPLE_SLACK_S: Final = 0.001
# A meter that did not answer this often in a row is not used for a while.
_MAX_MISSES: Final = 8
_UNUSED_S: Final = 30.0

OnTurn = Callable[[Client, DeviceActivity, float, float], None]


class PhaseMeter(Protocol):
    """Measures a GPU's activity between two moments, without ever waiting."""

    def start(self, loop: asyncio.AbstractEventLoop, on_measured: Callable[[ActivityMeasurement], None]) -> None: ...
    def stop(self) -> None: ...
    def supports(self, gpu_uuid: str) -> bool: ...
    def begin(self, gpu_uuid: str, token: object) -> None: ...
    def end(self, gpu_uuid: str, token: object) -> None: ...


class Measuring:
    """`on_turn` is called with each measurement of a client that ran alone: its activity, begin and end."""

    def __init__(self, turns: TurnLoop, meter: PhaseMeter | None, on_turn: OnTurn) -> None:
        self._turns = turns
        self._meter = meter
        self._on_turn = on_turn
        self._results: dict[GpuQueue, dict[str, ActivityMeasurement]] = {}
        # Measurements that ended without an answer, in a row, and until when the meter is not used.
        self._misses: dict[GpuQueue, int] = {}
        self._unused_until_s: dict[GpuQueue, float] = {}

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        if self._meter is not None:
            self._meter.start(loop, self._measured)
            self._turns.measure = self._measure

    def stop(self) -> None:
        if self._meter is not None:
            self._meter.stop()

    def check(self, now: float) -> None:
        """Which GPUs can be measured may change with every reading."""
        meter = self._meter
        if meter is None:
            return
        for queues in (self._results, self._misses, self._unused_until_s):
            for gone in queues.keys() - self._turns.policy.gpus.values():
                del queues[gone]
        for gpu in list(self._turns.policy.gpus.values()):
            usable = now >= self._unused_until_s.get(gpu, LONG_AGO)
            available = usable and all(map(meter.supports, gpu.devices))
            if available != gpu.phases.metered:
                self._turns.apply(self._turns.policy.meter(gpu, available, now), now)

    def _measure(self, action: Measure) -> None:
        now = monotonic()
        self._loop.call_later(max(0.0, action.begin_s - now) + _SAMPLE_SLACK_S, self._begin, action)
        self._loop.call_later(max(0.0, action.end_s - now), self._end, action)

    def _begin(self, action: Measure) -> None:
        if self._meter is not None and action.number == action.gpu.phases.measured:
            self._results[action.gpu] = {}
            for device in action.gpu.devices:
                self._meter.begin(device, action.number)

    def _end(self, action: Measure) -> None:
        gpu = action.gpu
        if self._meter is None or action.number != gpu.phases.measured or gpu not in self._results:
            return
        self._misses[gpu] = self._misses.get(gpu, 0) + 1
        if self._misses[gpu] > _MAX_MISSES:
            self._misses[gpu] = 0
            self._unused_until_s[gpu] = monotonic() + _UNUSED_S
        for device in gpu.devices:
            self._meter.end(device, action.number)

    def _measured(self, measurement: ActivityMeasurement) -> None:
        now, policy = monotonic(), self._turns.policy
        gpu = next((queue for queue in self._results if measurement.gpu_uuid in queue.devices), None)
        if gpu is None or measurement.token != gpu.phases.measured:
            return
        results = self._results[gpu]
        results[measurement.gpu_uuid] = measurement
        if len(results) < len(gpu.devices):
            return
        del self._results[gpu]
        self._misses[gpu] = 0
        activity = mean([measurement.activity for measurement in results.values()])
        begin_s = min(measurement.begin_s for measurement in results.values())
        ran, actions = policy.record_activity(gpu, gpu.phases.measured, activity, begin_s, now)
        self._turns.apply(actions, now)
        if len(ran) == 1 and ran[0] in policy.clients:
            self._on_turn(policy.clients[ran[0]], activity, begin_s, now)


def mean(activities: list[GpuActivity]) -> DeviceActivity:
    """Of several GPUs that are one queue. What a GPU does not report counts as 0 in every measurement alike."""
    return mean_activity(
        DeviceActivity(activity.sm, activity.tensor or 0.0, activity.dram or 0.0, activity.busy)
        for activity in activities
    )
