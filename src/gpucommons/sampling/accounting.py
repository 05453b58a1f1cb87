"""The accounts put together: each snapshot is billed and looked at for what happened; what the ledger knows is read.

One object for whoever composes the agent: `sources` go to the sampler, `observe` is called with every snapshot,
`close` when it ends. Only the agent that runs keeps accounts: a command that looks once must not call `observe`.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpucommons.ledger.happenings import happened
from gpucommons.ledger.ledger import Ledger
from gpucommons.ledger.own_events import OwnEvents
from gpucommons.ledger.rollups import Retention
from gpucommons.ledger.statements import read_statements
from gpucommons.ledger.usage import usage_of
from gpucommons.ledger.writer import LedgerWriter
from gpucommons.model.accounts import AccountsReading, HoldingQuota, StatementReading
from gpucommons.model.events import JournalReading
from gpucommons.model.snapshot import Snapshot
from gpucommons.sources.source import Source

# The most time between two snapshots that still counts as having watched, in intervals.
_LONGEST_GAP = 5
# Weeks of accounts are summed up this often only. While nobody is in them, at each flush: then it costs nothing.
_STATEMENT_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class AccountingSettings:
    ledger_file: Path
    event_log: Path
    interval_s: float
    flush_s: float = 10.0
    retention: Retention = field(default_factory=Retention)
    quotas: Mapping[str, HoldingQuota] = field(default_factory=dict)


class Accounting:
    def __init__(self, settings: AccountingSettings, wall: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._wall = wall
        self._ledger = Ledger(
            LedgerWriter(settings.ledger_file, settings.retention),
            longest_gap_s=_LONGEST_GAP * settings.interval_s,
            flush_s=settings.flush_s,
            quotas=settings.quotas,
        )
        self._events = OwnEvents(settings.event_log)
        self._standing = self._events.standing
        self._begun = False
        self._statement = StatementReading({}, {})
        self._statement_wall_s = 0.0

    def sources(self) -> list[Source]:
        interval_s = self._settings.interval_s
        return [
            Source("accounts", "accounts", AccountsReading, self._accounts, interval_s, runs_on="loop"),
            Source("journal", "journal", JournalReading, self._events.journal, interval_s, runs_on="loop"),
            Source("statement", "statement", StatementReading, self._statements, self._settings.flush_s, 10.0),
        ]

    def observe(self, snapshot: Snapshot) -> None:
        """Call with every snapshot, on the event loop; does not block."""
        sample = usage_of(snapshot)
        if not self._begun:
            # A machine without GPUs keeps no accounts, and no file for them.
            if not sample.slots:
                return
            self._begun = True
            self._events.start()
        self._ledger.observe(sample)
        self._standing = self._standing or self._events.standing
        if self._standing is not None:
            self._standing, events = happened(self._standing, snapshot, self._settings.quotas)
            self._events.record(events)

    def close(self, timeout_s: float = 2.0) -> bool:
        """Write what is pending; blocks for up to the timeout. False if the disk did not take it in time."""
        if not self._begun:
            return True
        ended = self._events.close(timeout_s / 4)
        return self._ledger.close(timeout_s) and ended

    def _accounts(self) -> AccountsReading:
        return replace(self._ledger.reading(), event_log_writing=self._events.writing)

    def _statements(self) -> StatementReading:
        now_wall_s = self._wall()
        settled = any(statement.rows for statement in self._statement.by_period.values())
        if not settled or abs(now_wall_s - self._statement_wall_s) >= _STATEMENT_EVERY_S:
            self._statement = read_statements(self._settings.ledger_file, now_wall_s)
            self._statement_wall_s = now_wall_s
        return self._statement
