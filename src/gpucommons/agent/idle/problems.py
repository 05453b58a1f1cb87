"""The node's problems as messages to the webhook: when one has lasted for a minute, and when it is over.

Idle holders have messages of their own, and Alertmanager sends its alerts itself.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

from gpucommons.config.settings import Settings
from gpucommons.idle.channels import Delivery, Letter, Outbox, Webhook
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


class ProblemMessages:
    """A part of the agent. `start` begins the thread of the webhook, where one is configured."""

    def __init__(self, settings: Settings, hostname: str) -> None:
        webhook = settings.webhook
        self._hostname = hostname
        self._news = ProblemNews()
        self._outbox: Outbox | None = None
        if webhook.problems and (webhook.url or webhook.url_file):
            self._outbox = Outbox(Webhook(webhook), _forget)

    def sources(self) -> list[Source]:
        return []

    def observe(self, snapshot: Snapshot) -> None:
        """Called with every snapshot, on the event loop; does not block."""
        if self._outbox is None:
            return
        lines = list(self._news.step(own_problems(snapshot), snapshot.monotonic_s))
        if lines:
            self._outbox.submit(Letter(f"{self._hostname}: problems", "\n".join((f"{self._hostname}:", *lines))))

    async def start(self) -> None:
        if self._outbox is not None:
            self._outbox.start()

    async def stop(self) -> None:
        if self._outbox is not None:
            await asyncio.to_thread(self._outbox.close)


def _forget(delivery: Delivery) -> None:
    """The outbox logs what it gives up."""
