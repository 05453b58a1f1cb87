"""Accounts in the agent: the ledger and the agent's own events, fed with every snapshot.

Only an agent that was started keeps accounts: a command that looks once reads them and writes nothing.
"""

import asyncio
import logging

from gpucommons.config.settings import Settings
from gpucommons.config.state_directory import ledger_file, own_event_log
from gpucommons.ledger.rollups import Retention
from gpucommons.model.accounts import HoldingQuota
from gpucommons.model.snapshot import Snapshot
from gpucommons.sampling.accounting import Accounting, AccountingSettings
from gpucommons.sources.source import Source

log = logging.getLogger(__name__)


class Books:
    """The accounts as a part of the agent: a service, sources, and an observer of snapshots."""

    def __init__(self, settings: Settings, scenario: str | None) -> None:
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
        return self._accounting.sources() if self._accounting else []

    def observe(self, snapshot: Snapshot) -> None:
        if self._started and self._accounting is not None:
            self._accounting.observe(snapshot)

    async def start(self) -> None:
        self._started = True

    async def stop(self) -> None:
        """Write what is pending, off the event loop; a disk that hangs holds it up for 2 seconds."""
        self._started = False
        if self._accounting is not None and not await asyncio.to_thread(self._accounting.close):
            log.warning("ledger: the last flush was not written within 2 s")
