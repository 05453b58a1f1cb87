"""The parts of the agent that run by themselves, and the log of problems, which reads every snapshot as they do."""

import logging
import socket
import sys
from typing import TYPE_CHECKING, Protocol

from gpucommons.agent.accounts import Accounts
from gpucommons.agent.idle.watch import IdleWatch
from gpucommons.agent.idle.webhook_news import WebhookNews
from gpucommons.agent.kubernetes import kubernetes_part
from gpucommons.agent.leases.leasing import Leasing
from gpucommons.agent.sharing.settings import check_parking, check_slurm, enforces_leases
from gpucommons.config.settings import Settings
from gpucommons.model.problems import HealthLevel, Problem
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.problems import problems_of
from gpucommons.simulation.scenario import Scenario
from gpucommons.sources.source import Source

# Imported where they are used: an agent that does not share GPUs has the scheduler neither in memory nor in its start.
if TYPE_CHECKING:
    from gpucommons.agent.sharing.pausing import Enforcer, Enforcing
    from gpucommons.agent.sharing.sharing import Sharing
    from gpucommons.base.process_starts import ProcessStarts
    from gpucommons.simulation.shared_lab import SharedLab
    from gpucommons.sources.nvml.gpm import GpmAccess


class Part(Protocol):
    """`observe` gets every snapshot, on the event loop. `start` raises an OSError or ListenError of one line."""

    def sources(self) -> list[Source]: ...
    def observe(self, snapshot: Snapshot) -> None: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class Parts:
    """All parts, by the settings. A part that is not used is None.

    - `accounts`: the ledger and the event log.
    - `sharing`: the scheduler, for programs and for clients of nvshare. It borrows the reader's session with the driver
      from `gpm`.
    - `enforcing`: pauses programs on GPUs that are leased to others, where the scheduler has no pauser that could.
    - `leasing`: leases, their queue and their socket.
    - `idle`: messages to holders of idle GPUs. It parks programs and ends leases.
    - `kubernetes`: the device plugin and the reports of GPU faults.
    - problems as messages to the webhook.

    `starts` is for the scheduler: the record of starts of processes, which only a privileged process can open.
    `scenario` is what is simulated: in a lab that shares GPUs, its programs are paused as the scheduler decides.
    """

    def __init__(self, settings: Settings, scenario: Scenario | None, starts: "ProcessStarts | None" = None) -> None:
        """Raises ConfigError if settings contradict each other."""
        check_parking(settings.parking, settings.scheduler)
        check_slurm(settings)
        name = None if scenario is None else scenario.name
        lab = _shared_lab(settings, scenario)
        self.scenario = scenario if lab is None else lab.scenario
        self.gpm = _gpm_access(settings, scenario)
        self.accounts = Accounts(settings, name)
        self.sharing = _sharing(settings, lab, self.gpm, starts)
        self.enforcing = _enforcing(settings, scenario, self.sharing)
        self.leasing = self._leasing(settings, lab)
        self.idle = self._idle(settings, name)
        self.kubernetes = kubernetes_part(settings) if scenario is None else None
        # The news of a simulation is not sent.
        news = WebhookNews(settings, socket.gethostname()) if scenario is None else None
        optional: tuple[Part | None, ...] = (self.enforcing, self.sharing, self.leasing, self.kubernetes, news)
        # In the order in which they start, and stop.
        self.in_order: list[Part] = [self.accounts, *(part for part in optional if part is not None), self.idle]

    def sources(self) -> list[Source]:
        return [source for part in self.in_order for source in part.sources()]

    def _leasing(self, settings: Settings, lab: "SharedLab | None") -> Leasing | None:
        if not _has_leases(settings):
            return None
        enforcer = self._enforcer() if self.scenario is None and enforces_leases(settings) else None
        users = None if lab is None else lab.lease_users
        jobs = self.accounts.job if settings.ledger.enabled else None
        return Leasing(settings, self.scenario, enforcer, users, jobs)

    def _enforcer(self) -> "Enforcer | None":
        if self.enforcing is not None:
            return self.enforcing.thread
        return None if self.sharing is None else self.sharing.scheduler

    def _idle(self, settings: Settings, scenario: str | None) -> IdleWatch:
        park = self.sharing.park if self.sharing is not None and self.sharing.shares_programs else None
        end_lease = None if self.leasing is None else self.leasing.end_lease
        return IdleWatch(settings, scenario, socket.gethostname(), park, end_lease)


def _has_leases(settings: Settings) -> bool:
    # Elsewhere the kernel does not report the user of a connection as Linux does.
    return settings.leases.enabled != "false" and sys.platform == "linux"


def _shared_lab(settings: Settings, scenario: Scenario | None) -> "SharedLab | None":
    if scenario is None or not settings.scheduler.shares_programs:
        return None
    # Imported here: it has all of the simulation, which a real agent does not need.
    from gpucommons.simulation.shared_lab import shared_lab

    return shared_lab(scenario.name)


def _sharing(
    settings: Settings, lab: "SharedLab | None", gpm: "GpmAccess | None", starts: "ProcessStarts | None"
) -> "Sharing | None":
    if lab is None and gpm is None:
        return None
    from gpucommons.agent.sharing.sharing import sharing_part, simulated_sharing

    if lab is not None:
        return simulated_sharing(settings, lab)
    return None if gpm is None else sharing_part(settings, gpm, starts)


def _gpm_access(settings: Settings, scenario: Scenario | None) -> "GpmAccess | None":
    """None where no scheduler measures real GPUs."""
    if scenario is not None or not settings.scheduler.is_used:
        return None
    from gpucommons.sources.nvml.gpm import GpmAccess

    return GpmAccess()


def _enforcing(settings: Settings, scenario: Scenario | None, sharing: "Sharing | None") -> "Enforcing | None":
    if scenario is not None or not _has_leases(settings) or not enforces_leases(settings):
        return None
    if sharing is not None and sharing.shares_programs:
        return None
    from gpucommons.agent.sharing.pausing import Enforcing

    return Enforcing(settings)


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
