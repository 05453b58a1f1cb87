"""News of the node for the webhook: problems, when one has lasted for a minute and when it is over; and commands of
`gpucommons run` that start after a long wait.

Idle holders have messages of their own, and Alertmanager sends its alerts itself.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

from gpucommons.base.periods import spoken_duration
from gpucommons.config.settings import Settings
from gpucommons.idle.channels import Delivery, Letter, Outbox, Webhook
from gpucommons.model.leases import Lease, LeasesReading
from gpucommons.model.problems import Problem, ProblemKind
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.problems import own_problems
from gpucommons.sources.source import Source

# A reading that varies around its limit must not send message after message.
LASTS_S: Final = 60.0
_LEFT_OUT: Final = frozenset({ProblemKind.HELD_IDLE, ProblemKind.CHANNEL_FAILING, ProblemKind.ALERT})


class ProblemNews:
    """Which problems are news: pure, driven by the times of snapshots."""

    def __init__(self) -> None:
        self._first_s: dict[str, float] = {}
        self._last_s: dict[str, float] = {}
        self._sent: dict[str, Problem] = {}

    def step(self, problems: Iterable[Problem], now_s: float) -> Iterator[str]:
        """A line for each problem that has lasted for long enough, or is over."""
        for problem in problems:
            if problem.kind in _LEFT_OUT:
                continue
            key = problem.key
            self._last_s[key] = now_s
            if now_s - self._first_s.setdefault(key, now_s) >= LASTS_S and key not in self._sent:
                self._sent[key] = problem
                yield f"{problem.level.name.lower()}: {problem.sentence} {problem.remedy}"
        for key in [key for key, last_s in self._last_s.items() if now_s - last_s >= LASTS_S]:
            del self._first_s[key], self._last_s[key]
            if (over := self._sent.pop(key, None)) is not None:
                yield f"over: {over.sentence}"


class WaitNews:
    """Which commands of `gpucommons run` have begun after a wait of at least `min_wait_s`: pure, driven by readings."""

    def __init__(self, min_wait_s: float) -> None:
        self._min_wait_s = min_wait_s
        # Leases of the reading before; None before the first one, which has those of an earlier agent.
        self._known: frozenset[str] | None = None

    def step(self, reading: LeasesReading) -> Iterator[str]:
        """A line for each command that has begun since the reading before."""
        before, self._known = self._known, frozenset(lease.request.id for lease in reading.leases)
        if before is None:
            return
        for lease in reading.leases:
            waited_s = lease.since_s - lease.request.arrived_s
            if lease.request.id not in before and waited_s >= self._min_wait_s:
                yield _start_sentence(lease, waited_s, reading)


def _start_sentence(lease: Lease, waited_s: float, reading: LeasesReading) -> str:
    """The program, not the name that its user typed: everyone in the channel reads it."""
    slots = [reading.slots.get(uuid, uuid) for uuid in lease.slots]
    what = f" ({lease.request.program})" if lease.request.program else ""
    where = f"GPU{'s' if len(slots) > 1 else ''} {', '.join(slots)}"
    return f"{lease.request.user}: your command{what} runs on {where} now, after {spoken_duration(waited_s)} in line"


class WebhookNews:
    """A part of the agent. `start` begins the thread of the webhook, where one is configured."""

    def __init__(self, settings: Settings, hostname: str) -> None:
        webhook = settings.webhook
        self._hostname = hostname
        self._problems = ProblemNews() if webhook.problems else None
        self._waits = WaitNews(webhook.min_wait_s) if webhook.min_wait_s else None
        self._outbox: Outbox | None = None
        if (self._problems or self._waits) and (webhook.url or webhook.url_file):
            self._outbox = Outbox(Webhook(webhook), _forget)

    def sources(self) -> list[Source]:
        return []

    def observe(self, snapshot: Snapshot) -> None:
        """Called with every snapshot, on the event loop; does not block."""
        if self._outbox is None:
            return
        leases = snapshot.readings.leases
        if self._problems is not None:
            self._send("problems", self._problems.step(own_problems(snapshot), snapshot.monotonic_s))
        if self._waits is not None and leases is not None:
            self._send("commands that waited", self._waits.step(leases))

    def _send(self, subject: str, news: Iterable[str]) -> None:
        lines = list(news)
        if lines and self._outbox is not None:
            self._outbox.submit(Letter(f"{self._hostname}: {subject}", "\n".join((f"{self._hostname}:", *lines))))

    async def start(self) -> None:
        if self._outbox is not None:
            self._outbox.start()

    async def stop(self) -> None:
        if self._outbox is not None:
            await asyncio.to_thread(self._outbox.close)


def _forget(delivery: Delivery) -> None:
    """The outbox logs what it gives up."""
