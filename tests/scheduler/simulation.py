"""A simulated node: the policy with scripted clients, in simulated time, without sockets."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from gpucommons.base.peers import ClientProcess
from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.scheduler.policy.policy import Policy
from gpucommons.scheduler.policy.state import Action, Client, Disconnect, GpuQueue, Measure, Send
from gpucommons.scheduler.protocol.wire import MessageType, Version

GPU = "GPU-00000000-0000-0000-0000-000000000000"


@dataclass
class Script:
    """How a client behaves. It always has a request; `tail_s` is the time from DROP_LOCK to its release."""

    client: Client
    tail_s: float = 0.0
    obeys: bool = True
    holds: bool = False
    received: list[MessageType] = field(default_factory=list)


class Simulation:
    def __init__(self, settings: SchedulerSettings | None = None, start_s: float = 1000.0) -> None:
        self.now = start_s
        self.policy = Policy(settings or SchedulerSettings())
        self.gpu: GpuQueue = self.policy.add_gpu(GPU, 0, self.now)
        self.scripts: dict[int, Script] = {}
        self._ids = count(1)
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], Sequence[Action]]]] = []

    def add(
        self,
        *,
        core: int = 100,
        tail_s: float = 0.0,
        memory: int = 0,
        version: Version | Literal[0] = 2,
        obeys: bool = True,
        request: bool = True,
        process: ClientProcess | None = None,
        owner: str = "",
    ) -> Script:
        client = Client(next(self._ids), self.gpu, version=version, process=process, owner=owner)
        script = self.scripts[client.id] = Script(client, tail_s, obeys)
        self.perform(self.policy.register(client, self.now))
        self.perform(self.policy.limit_core(client, core, self.now))
        if memory:
            self.perform(self.policy.update_memory(client, memory, self.now))
        if request:
            self.perform(self.policy.request(client, self.now))
        return script

    def at(self, when_s: float, event: Callable[[], Sequence[Action]]) -> None:
        heapq.heappush(self._events, (when_s, next(self._order), event))

    def perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Measure):
                self.measure(action)
                continue
            script = self.scripts[action.client.id]
            if isinstance(action, Disconnect):
                self.at(self.now, lambda c=action.client: self._gone(c))  # type: ignore[misc]
            else:
                self._deliver(script, action)

    def measure(self, action: Measure) -> None:
        """This GPU's activity cannot be measured."""

    def leave(self, script: Script) -> None:
        """It disconnects."""
        if script.client.id in self.policy.clients:
            self.perform(self._gone(script.client))

    def _gone(self, client: Client) -> Sequence[Action]:
        self.scripts[client.id].holds = False
        return self.policy.disconnect(client, self.now)

    def _deliver(self, script: Script, action: Send) -> None:
        script.received.append(action.message)
        if action.message is MessageType.LOCK_OK:
            script.holds = True
        elif action.message is MessageType.DROP_LOCK and script.holds and script.obeys:
            script.holds = False
            self.at(self.now + script.tail_s, lambda: self._release_and_ask(script))

    def _release_and_ask(self, script: Script) -> Sequence[Action]:
        if script.client.id not in self.policy.clients:
            # It has disconnected meanwhile.
            return ()
        released = self.policy.release(script.client, self.now)
        return [*released, *self.policy.request(script.client, self.now)]

    def run(self, seconds: float) -> None:
        """Plays every event and deadline of the next `seconds`, in order."""
        end = self.now + seconds
        while True:
            due = self.policy.next_deadline_s()
            event_s = self._events[0][0] if self._events else float("inf")
            upcoming = min(due, event_s)
            if upcoming > end:
                break
            self.pass_until(max(self.now, upcoming))
            if event_s <= due:
                self.perform(heapq.heappop(self._events)[2]())
            else:
                self.perform(self.policy.tick(self.now))
        self.pass_until(end)
        self.gpu.turns.clock.advance(end)

    def pass_until(self, when_s: float) -> None:
        self.now = when_s

    def billed_s(self, script: Script) -> float:
        """What a client was billed so far, including the running turn."""
        client = script.client
        running = client.id in self.gpu.turns.running
        return client.turn.billed_s + (self.gpu.turns.clock.billed_s - client.turn.mark_s if running else 0.0)
