"""Accounts in the agent: who holds what at each snapshot, the people and events of this machine, and the ledger.

Only an agent that was started keeps accounts: a command that looks once reads them and writes nothing.
"""

import asyncio
import logging
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gpucommons.agent.owners import owner_rules
from gpucommons.agent.parts import Parts
from gpucommons.config.settings import Settings
from gpucommons.config.state_directory import events_position_file, ledger_file, own_event_log
from gpucommons.holding.ds01_rules import slice_owner
from gpucommons.holding.stage import AllocationStage
from gpucommons.ledger.rollups import Retention
from gpucommons.model.accounts import HoldingQuota
from gpucommons.model.containers import Container, all_containers
from gpucommons.model.snapshot import Snapshot
from gpucommons.sampling.accounting import Accounting, AccountingSettings
from gpucommons.sources.ds01.events import EventsSource
from gpucommons.sources.ds01.state import Ds01Source
from gpucommons.sources.people.users import UsersSource, host_root
from gpucommons.sources.source import Source

_PEOPLE_CADENCE_S = 10.0
_STATE_CADENCE_S = 5.0

log = logging.getLogger(__name__)


def with_accounts(parts: Parts, settings: Settings, scenario: str | None) -> Parts:
    """The same parts, allocations derived after whatever they derive, and the books kept of them."""
    stage = AllocationStage(owner_rules(settings.owners), settings.ledger.active_ratio)
    derive = parts.derive
    books = Books(settings, scenario)
    return replace(
        parts,
        sources=[*parts.sources, *books.sources()],
        derive=lambda readings: stage(derive(readings)),
        services=[*parts.services, books],
        observers=[*parts.observers, books.observe],
    )


class Books:
    """The accounts as a part of the agent: a service, sources, and an observer of snapshots."""

    def __init__(self, settings: Settings, scenario: str | None) -> None:
        self._settings = settings
        self._is_machine = scenario is None and sys.platform == "linux"
        self._containers: Mapping[str, Container] = {}
        self._started = False
        self._accounting = (
            Accounting(
                AccountingSettings(
                    ledger_file(settings, scenario),
                    own_event_log(settings, scenario),
                    settings.sampling.interval_s,
                    settings.ledger.flush_s,
                    Retention(
                        settings.ledger.keep_minutes_d, settings.ledger.keep_hours_d, settings.ledger.keep_days_d
                    ),
                    {user: HoldingQuota(quota.gpu_equivalents) for user, quota in settings.quotas.items()},
                )
            )
            if settings.ledger.enabled
            else None
        )

    def sources(self) -> list[Source]:
        kept = self._accounting.sources() if self._accounting else []
        return [*self._of_this_machine(), *kept] if self._is_machine else kept

    def observe(self, snapshot: Snapshot) -> None:
        readings = snapshot.readings
        self._containers = all_containers(readings.docker, readings.podman)
        if self._started and self._accounting is not None:
            self._accounting.observe(snapshot)

    async def start(self) -> None:
        self._started = True

    async def stop(self) -> None:
        """Write what is pending, off the event loop; a disk that hangs holds it up for 2 seconds."""
        self._started = False
        if self._accounting is not None and not await asyncio.to_thread(self._accounting.close):
            log.warning("ledger: the last flush was not written within 2 s")

    def _of_this_machine(self) -> list[Source]:
        path = self._settings.path
        procfs = Path(path.procfs)
        return [
            UsersSource(
                host_root(procfs),
                procfs,
                Path(path.cgroupfs),
                _PEOPLE_CADENCE_S,
                slice_owner,
                Path(self._settings.ds01.groups_directory),
                lambda: self._containers,
            ),
            Ds01Source(Path(self._settings.ds01.state_file), _STATE_CADENCE_S),
            EventsSource(Path(self._settings.events.file), events_position_file(), self._settings.sampling.interval_s),
        ]
