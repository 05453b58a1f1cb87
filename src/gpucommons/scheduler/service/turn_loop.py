"""The policy in the event loop: carries out its actions and wakes it at its deadlines. It decides nothing."""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

from gpucommons.model.sharing import HANDOFF_BUCKETS, Histogram
from gpucommons.scheduler.policy.policy import Policy
from gpucommons.scheduler.policy.state import NEVER, Action, Client, Disconnect, Measure
from gpucommons.scheduler.protocol.wire import MessageType

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
