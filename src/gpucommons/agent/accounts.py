"""Accounts in the agent: allocations after attribution, and the ledger and event log over every snapshot."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from gpucommons.agent.owners import owner_rules
from gpucommons.agent.parts import Parts
from gpucommons.attribution.allocation_stage import AllocationStage
from gpucommons.attribution.ds01_rules import slice_owner
from gpucommons.config.settings import Settings
from gpucommons.config.state_directory import events_position_file, ledger_file, own_event_log
from gpucommons.ledger.rollups import Retention
from gpucommons.model.accounts import Quota
from gpucommons.model.containers import Container
from gpucommons.model.snapshot import Readings
from gpucommons.sampling.accounting import Accounting, AccountingSettings
from gpucommons.sources.ds01 import Ds01Source
from gpucommons.sources.events import EventsSource
from gpucommons.sources.source import Source
from gpucommons.sources.users import UsersSource

_USERS_CADENCE_S = 10.0
_DS01_CADENCE_S = 5.0
_EVENTS_CADENCE_S = 5.0


def people_sources(settings: Settings, containers: Callable[[], Mapping[str, Container]]) -> list[Source]:
    """What is read of this machine for the accounts alone."""
    procfs = Path(settings.path.procfs)
    return [
        UsersSource(
            Path(settings.path.rootfs),
            procfs,
            Path(settings.path.cgroupfs),
            _USERS_CADENCE_S,
            slice_owner,
            containers,
        ),
        Ds01Source(Path(settings.ds01.state_file), _DS01_CADENCE_S),
        EventsSource(Path(settings.events.file), events_position_file(), _EVENTS_CADENCE_S),
    ]


def with_allocations(parts: Parts, settings: Settings) -> Parts:
    """The same parts; who holds which slot is derived once it is known who uses what."""
    attribute, allocate = (
        parts.derive,
        AllocationStage(owner_rules(settings.owners), settings.ledger.active_ratio),
    )

    def derive(readings: Readings) -> Readings:
        return allocate(attribute(readings))

    return replace(parts, derive=derive)


def with_accounts(parts: Parts, settings: Settings, scenario: str | None) -> Parts:
    """The same parts and the ledger: only for the agent that runs, not for a command that looks once."""
    ledger = settings.ledger
    accounting = Accounting(
        AccountingSettings(
            ledger_file(settings, scenario),
            own_event_log(settings, scenario),
            settings.sampling.interval_s,
            ledger.flush_s,
            Retention(ledger.keep_minutes_d, ledger.keep_hours_d, ledger.keep_days_d),
            {user: Quota(quota.gpu_equivalents) for user, quota in settings.quotas.items()},
        )
    )
    return replace(
        parts,
        sources=[*parts.sources, *accounting.sources()],
        services=[*parts.services, _Closing(accounting)],
        observers=[*parts.observers, accounting.observe],
    )


class _Closing:
    """Writes what is pending when the agent ends, off the event loop: a slow disk must not hold it up."""

    def __init__(self, accounting: Accounting) -> None:
        self._accounting = accounting

    async def start(self) -> None:
        """Nothing to open: the files are opened with the first GPU that is seen."""

    async def stop(self) -> None:
        await asyncio.to_thread(self._accounting.close, 1.0)
