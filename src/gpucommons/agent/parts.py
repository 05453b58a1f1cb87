"""Parts of the agent that run by themselves, and the log of problems, which reads every snapshot as they do."""

import logging
from typing import Protocol

from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.health import HealthLevel
from gpucommons.rules.problems import Problem, problems_of
from gpucommons.sources.source import Source


class Part(Protocol):
    """`observe` gets every snapshot, on the event loop. `start` raises an OSError or ListenError of one line."""

    def sources(self) -> list[Source]: ...
    def observe(self, snapshot: Snapshot) -> None: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


# A reading that varies around its limit must not fill the log: a problem has ended once it was absent for this long.
_GONE_FOR_S = 60.0

log = logging.getLogger(__name__)


class ProblemLog:
    def __init__(self) -> None:
        self._last_seen_s: dict[str, float] = {}
        self._problems: dict[str, Problem] = {}

    def observe(self, snapshot: Snapshot) -> None:
        """Called with every snapshot, on the event loop."""
        now_s = snapshot.monotonic_s
        for problem in problems_of(snapshot):
            if problem.key not in self._problems:
                level = logging.ERROR if problem.level >= HealthLevel.CRITICAL else logging.WARNING
                log.log(level, "problem: %s %s", problem.sentence, problem.remedy)
            self._problems[problem.key] = problem
            self._last_seen_s[problem.key] = now_s
        for key, seen_s in list(self._last_seen_s.items()):
            if now_s - seen_s > _GONE_FOR_S:
                log.info("problem ended: %s", self._problems.pop(key).sentence)
                del self._last_seen_s[key]
