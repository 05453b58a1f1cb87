"""Core quotas over real sockets: the same dues as in simulation, with real clocks, timers and clients.

All cases run at once, each on its own GPU, together and one at a time, and everything is four times as fast as by
default. A loaded machine delays clients and timers, so the share at a given time proves nothing. The accounts at
each LOCK_OK are checked instead: what a delay cost or gave is then still owed, and must be in the accounts.
"""

import select
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpucommons.scheduler.policy.devices import GpuFacts
from gpucommons.scheduler.policy.state import ClientStanding
from gpucommons.scheduler.protocol.wire import MessageType, encode
from scheduler.served import Scripted, Served, serving

T = MessageType
FASTER = 4
LEAST_S = 60.0 / FASTER
LEAST_TURNS = 6
MAX_S = 90.0
# Allowed difference from the due over LEAST_S: two points, for the start, when not all clients have requested yet.
ALLOWED_S = 0.02 * LEAST_S
RELEASE_AND_REQUEST = encode(2, T.LOCK_RELEASED) + encode(2, T.REQ_LOCK)
# The scheduler cannot foresee these delays: each is a debt.
LATE_AT_TIMES = "25 alone, every third time 3 s to release"
CASES: dict[str, tuple[tuple[int, float], ...]] = {
    "25 alone": ((25, 0.0),),
    "25 alone, 300 ms to release": ((25, 0.3),),
    "25 alone, 1 s to release": ((25, 1.0),),
    LATE_AT_TIMES: ((25, 3.0),),
    "30 + 60": ((30, 0.0), (60, 0.0)),
    "75 + 75": ((75, 0.0), (75, 0.0)),
    "25 / 25 / 50": ((25, 0.0), (25, 0.0), (50, 0.0)),
}


@dataclass(frozen=True)
class Accounts:
    """The scheduler's accounts of a client. `earlier_s` is the bill of the turns before the one that began at `turn_s`,
    `held_s` the length of those turns by the client's own clock."""

    at_s: float
    billed_s: float
    balance_s: float
    band_s: float
    turn_s: float
    earlier_s: float
    held_s: float


@dataclass
class Busy:
    """A client that always has a request and releases slowly."""

    case: str
    limit: int
    tail_s: float
    served: Served
    client: Scripted
    release_s: float = float("inf")
    held_since_s: float | None = None
    held_s: float = 0.0
    drops: int = 0
    grants: list[Accounts] = field(default_factory=list)

    def readable(self) -> None:
        reply = self.client.receive()
        assert reply is not None
        if reply.type == T.LOCK_OK:
            self.held_since_s = time.monotonic()
            self.grants.append(self.accounts())
        elif reply.type == T.DROP_LOCK and self.held_since_s is not None:
            # Without the lock, it is a DROP_LOCK that was sent again because this machine stood still.
            self.drops += 1
            late = self.case != LATE_AT_TIMES or self.drops % 3 == 0
            self.release_s = time.monotonic() + (self.tail_s if late else 0.0)

    def release_if_due(self) -> None:
        now = time.monotonic()
        if now >= self.release_s and self.held_since_s is not None:
            self.release_s = float("inf")
            self.held_s += now - self.held_since_s
            self.held_since_s = None
            # In one write: otherwise a delay between the two would be a time without a request.
            self.client.socket.sendall(RELEASE_AND_REQUEST)

    @property
    def serial(self) -> bool:
        return self.served.server.settings.mode == "serial"

    @property
    def share(self) -> float:
        return self.limit / max(100, sum(limit for limit, _ in CASES[self.case]))

    def is_finished(self) -> bool:
        # Clients that run together and are billed no more than their share never have to stop.
        stops = self.serial or self.share < 1 / len(CASES[self.case])
        return self.drops >= LEAST_TURNS or not stops

    def accounts(self) -> Accounts:
        return self.served.call(self._accounts)

    def _accounts(self) -> Accounts:
        """Runs on the scheduler's thread. At a LOCK_OK the turn still runs: only this client's release ends it."""
        client = self.served.server.policy.clients[int(self.client.id, 16)]
        bucket, clock, now = client.quota.bucket, client.gpu.turns.clock, time.monotonic()
        assert bucket is not None
        clock.advance(now)
        running = client.standing is ClientStanding.RUNNING
        billed_s = client.turn.billed_s + (clock.billed_s - client.turn.mark_s if running else 0.0)
        unsettled_s = clock.billed_s - client.quota.settled_mark_s if running else 0.0
        balance_s = bucket.balance_s + bucket.rate * (now - bucket.settled_s) - unsettled_s
        return Accounts(now, billed_s, balance_s, bucket.band_s, client.turn.begun_s, client.turn.billed_s, self.held_s)

    def errors(self) -> Iterator[str]:
        """What is wrong in the accounts of this client."""
        begin_s = self.grants[0].turn_s
        for grant in self.grants:
            due_s = self.share * (grant.turn_s - begin_s)
            if grant.earlier_s > due_s + grant.band_s + ALLOWED_S:
                yield f"a turn began with {grant.earlier_s:.2f} s billed and {due_s:.2f} s due"
            if self.serial and grant.held_s > grant.earlier_s + 0.001:
                yield f"had the lock for {grant.held_s:.2f} s and was billed {grant.earlier_s:.2f} s"
        for found in (*self.grants, self.accounts()):
            due_s = self.share * (found.at_s - begin_s)
            if abs(found.billed_s + found.balance_s - due_s) > ALLOWED_S:
                yield f"{found.billed_s:.2f} s billed, balance {found.balance_s:.2f} s, {due_s:.2f} s due"


def play(clients: list[Busy]) -> None:
    """Until every client has had its turns for long enough."""
    by_socket = {busy.client.socket: busy for busy in clients}
    begin_s = now = time.monotonic()
    while now < begin_s + LEAST_S or not all(busy.is_finished() for busy in clients):
        assert now < begin_s + MAX_S, f"turns after {MAX_S:.0f} s: {[(busy.case, busy.drops) for busy in clients]}"
        next_s = min(busy.release_s for busy in clients)
        for ready in select.select(list(by_socket), [], [], min(1.0, max(0.0, next_s - now)))[0]:
            by_socket[ready].readable()
        for busy in clients:
            busy.release_if_due()
        now = time.monotonic()


def busy_clients(served: Served) -> list[Busy]:
    served.call(lambda: served.server.update_gpus([GpuFacts(f"GPU-{index}", index) for index in range(len(CASES))]))
    return [
        Busy(
            case,
            limit,
            tail_s / FASTER,
            served,
            Scripted(served.path).register(gpu=str(index), core_limit_percent=limit),
        )
        for index, (case, parts) in enumerate(CASES.items())
        for limit, tail_s in parts
    ]


@pytest.mark.long
def test_every_client_gets_its_due(tmp_path: Path) -> None:
    faster = {"compute_window_ms": 2000 / FASTER, "quota_sample_interval_ms": 50 / FASTER}
    with (
        serving(tmp_path / "a", (), mode="auto", **faster) as together,
        serving(tmp_path / "s", (), mode="serial", **faster) as serial,
    ):
        clients = [busy for served in (together, serial) for busy in busy_clients(served)]
        for busy in clients:
            busy.client.ask()
        play(clients)
        wrong = [f"{busy.case}, serial={busy.serial}: {e}" for busy in clients for e in busy.errors()]
        assert not wrong, f"{len(wrong)} errors: {wrong[:5]}"
