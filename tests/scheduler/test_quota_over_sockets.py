"""Core quotas over real sockets: the same dues as in simulation, with real clocks, timers and clients.

All cases run at once, each on a GPU of its own, together and one at a time, and everything is four times as fast
as by default: a quarter of a minute shows what a minute would.
"""

import select
import time
from dataclasses import dataclass, field
from pathlib import Path

from gpucommons.scheduler.policy.devices import GpuFacts
from gpucommons.scheduler.protocol.wire import MessageType
from scheduler.served import Scripted, Served, serving

T = MessageType
FASTER = 4
LENGTH_S = 60.0 / FASTER
EXTRA_TIMES = 4
CASES: dict[str, tuple[tuple[int, float], ...]] = {
    "25 alone": ((25, 0.0),),
    "25 alone, 300 ms to release": ((25, 0.3),),
    "25 alone, 1 s to release": ((25, 1.0),),
    "30 + 60": ((30, 0.0), (60, 0.0)),
    "75 + 75": ((75, 0.0), (75, 0.0)),
    "25 / 25 / 50": ((25, 0.0), (25, 0.0), (50, 0.0)),
}


@dataclass
class Busy:
    """A client that always has a request and releases slowly."""

    case: str
    limit: int
    tail_s: float
    client: Scripted
    release_s: float = field(default=float("inf"))
    held_since_s: float | None = None
    held_s: float = 0.0

    def readable(self, now: float) -> None:
        reply = self.client.receive()
        assert reply is not None
        if reply.type == T.LOCK_OK:
            self.held_since_s = now
        elif reply.type == T.DROP_LOCK:
            self.release_s = now + self.tail_s

    def due(self, now: float) -> None:
        if now >= self.release_s:
            self.release_s = float("inf")
            self.held_s = self.held_until(now)
            self.held_since_s = None
            self.client.release().ask()

    def held_until(self, now: float) -> float:
        """How long it had the lock by its own watch."""
        return self.held_s + (now - self.held_since_s if self.held_since_s is not None else 0.0)


def play(clients: list[Busy], seconds: float) -> None:
    by_socket = {busy.client.socket: busy for busy in clients}
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        next_s = min(end, *(busy.release_s for busy in clients))
        for ready in select.select(list(by_socket), [], [], max(0.0, next_s - now))[0]:
            by_socket[ready].readable(time.monotonic())
        for busy in clients:
            busy.due(time.monotonic())


def busy_clients(served: Served) -> list[Busy]:
    served.call(lambda: served.server.update_gpus([GpuFacts(f"GPU-{index}", index) for index in range(len(CASES))]))
    return [
        Busy(case, limit, tail_s / FASTER, Scripted(served.path).register(gpu=str(index), core_limit_percent=limit))
        for index, (case, parts) in enumerate(CASES.items())
        for limit, tail_s in parts
    ]


def errors(served: Served, clients: list[Busy], begin: float) -> dict[str, float]:
    """How far each share is from its due, in points: by the scheduler's books, and by the client's own watch."""
    billed = {row.client_id: row.billed_s for row in served.reading().clients}
    now = time.monotonic()
    found = {}
    for number, busy in enumerate(clients):
        due = busy.limit * min(1.0, 100 / sum(limit for limit, _ in CASES[busy.case]))
        found[f"{number}: {busy.case}, billed"] = 100 * billed[busy.client.id] / (now - begin) - due
        if served.reading().mode == "serial":
            found[f"{number}: {busy.case}, held"] = 100 * busy.held_until(now) / (now - begin) - due
    return found


def test_all_clients_gets_its_due(tmp_path: Path) -> None:
    faster = {"compute_window_ms": 2000 / FASTER, "quota_sample_interval_ms": 50 / FASTER}
    with (
        serving(tmp_path / "a", (), mode="auto", **faster) as together,
        serving(tmp_path / "s", (), mode="serial", **faster) as serial,
    ):
        nodes = [(served, busy_clients(served)) for served in (together, serial)]
        all_clients = [busy for _, clients in nodes for busy in clients]
        for busy in all_clients:
            busy.client.ask()
        begin = time.monotonic()
        play(all_clients, LENGTH_S)
        for _ in range(EXTRA_TIMES):
            found = {name: error for served, clients in nodes for name, error in errors(served, clients, begin).items()}
            wrong = {name: round(error, 2) for name, error in found.items() if abs(error) > 2.0}
            if not wrong:
                return
            # If the machine stalled for a moment, a client has a debt of that moment: check again after it is paid.
            play(all_clients, LENGTH_S / 3)
        raise AssertionError(wrong)
