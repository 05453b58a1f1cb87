"""Accounts in the agent: the ledger and the agent's own events, fed with every snapshot.

Only a started agent writes the ledger and the event log. A command that takes one sample writes nothing.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from gpucommons.agent.setting_rules import prices_of
from gpucommons.base.threads import in_daemon_thread
from gpucommons.config.settings import Settings
from gpucommons.config.state_directory import ledger_file, own_event_log
from gpucommons.faces.documents.job import BilledJob, JobQuery
from gpucommons.faces.documents.report import LedgerUnreadable, ReportQuery
from gpucommons.ledger.errors import LedgerError
from gpucommons.ledger.events import EventLog, detect_events
from gpucommons.ledger.integrate import NS, Integrator, Moment, usage_of
from gpucommons.ledger.query import PeriodUsage, accounts_of, read_accounts, read_job, read_period
from gpucommons.ledger.schema import Retention
from gpucommons.ledger.writer import LedgerWriter
from gpucommons.model.accounts import AccountsReading, Amounts, HoldingQuota, LedgerReading, OwnerKey, PeriodAccounts
from gpucommons.model.allocations import UsageSample
from gpucommons.model.events import EventLogReading
from gpucommons.model.snapshot import Snapshot
from gpucommons.model.words import By
from gpucommons.sources.source import Source

# The longest interval between two snapshots that is billed, in sampling intervals.
_LONGEST_GAP = 5
# The accounts of 30 days are summed this often. Before the first row there is nothing to sum: then at each flush.
_ACCOUNTS_EVERY_S = 30.0
# Counters of an owner that was not seen for this long are not published. They continue when it returns.
_RECENT_S = 3600.0
_STOP_TIMEOUT_S = 2.0
# A report does not wait longer for the disk: then it has what is on it.
_WRITE_TIMEOUT_S = 0.5

log = logging.getLogger(__name__)


class Accounts:
    """Bills each snapshot to the ledger, records events, and serves what the ledger and the event log have."""

    def __init__(self, settings: Settings, scenario: str | None, wall: Callable[[], float] = time.time) -> None:
        ledger, interval_s = settings.ledger, settings.sampling.interval_s
        self._file = ledger_file(settings, scenario)
        self._enabled = ledger.enabled
        self._wall = wall
        self._interval_s, self._flush_s = interval_s, ledger.flush_s
        self._prices = prices_of(settings.accounts)
        self._job_url = settings.fleet.job_url
        self._quotas = {user: HoldingQuota(quota.gpu_equivalents) for user, quota in settings.quotas.items()}
        self._integrator = Integrator(_LONGEST_GAP * interval_s)
        self._writer = LedgerWriter(
            self._file, Retention(ledger.keep_minutes_d, ledger.keep_hours_d, ledger.keep_days_d)
        )
        self._event_log = EventLog(own_event_log(settings, scenario))
        self._detector_state = self._event_log.detector_state
        self._started = False
        self._latest: Moment | None = None
        self._flushed_ns = 0
        self._accounts = AccountsReading()
        self._accounts_wall_s = 0.0
        self._one_report = asyncio.Lock()

    def sources(self) -> list[Source]:
        if not self._enabled:
            return []
        interval_s, log_reading = self._interval_s, self._event_log.reading
        return [
            Source("ledger", "ledger", LedgerReading, self.ledger_reading, interval_s, runs_on="loop"),
            Source("event_log", "event_log", EventLogReading, log_reading, interval_s, runs_on="loop"),
            Source("accounts", "accounts", AccountsReading, self._read_accounts, self._flush_s, 10.0),
        ]

    async def start(self) -> None:
        self._started = self._enabled

    def observe(self, snapshot: Snapshot) -> None:
        """Called with every snapshot, on the event loop; does not block."""
        sample = usage_of(snapshot)
        # A machine without GPUs keeps no accounts and no files.
        if not self._started or (self._latest is None and not sample.slots):
            return
        if self._latest is None:
            self._event_log.start()
        self.bill(sample)
        self._detector_state = self._detector_state or self._event_log.detector_state
        if self._detector_state is not None:
            self._detector_state, events = detect_events(self._detector_state, snapshot, self._quotas)
            self._event_log.record(events)

    def bill(self, sample: UsageSample) -> None:
        """Bill the time since the last sample, and flush when it is due."""
        now = Moment(sample.monotonic_ns, sample.wall_s)
        self._integrator.step(sample)
        if self._latest is None:
            self._writer.start(now)
            self._flushed_ns = now.monotonic_ns
        self._latest = now
        if now.monotonic_ns - self._flushed_ns >= self._flush_s * NS:
            self._flush(now)

    async def stop(self) -> None:
        """Write what is pending, off the event loop. A disk that hangs delays the stop by 2 seconds."""
        self._started = False
        if self._latest is None:
            return
        self._flush(self._latest)
        log_written = await asyncio.to_thread(self._event_log.close, _STOP_TIMEOUT_S / 4)
        ledger_written = await asyncio.to_thread(self._writer.close, _STOP_TIMEOUT_S)
        if not (log_written and ledger_written):
            log.warning("ledger: the last flush was not written within 2 s")

    def _flush(self, now: Moment) -> None:
        self._flushed_ns = now.monotonic_ns
        self._writer.submit(self._integrator.take(), now)

    def ledger_reading(self) -> LedgerReading:
        state, totals = self._writer.published
        recent: dict[OwnerKey, Amounts] | None = None
        if totals is not None:
            since_s = self._latest.wall_s - _RECENT_S if self._latest else 0.0
            recent = {key: total.amounts for key, total in totals.items() if total.last_wall_s >= since_s}
        return LedgerReading(state, recent, self._quotas, self._event_log.writing)

    async def report(self, query: ReportQuery) -> PeriodAccounts:
        """One at a time and off the event loop: a long period takes a while."""
        async with self._one_report:
            self._flush_newest()
            return await in_daemon_thread(lambda: self._report(query))

    async def job(self, query: JobQuery) -> BilledJob | None:
        """As `report`: the figures are complete up to the last snapshot."""
        async with self._one_report:
            self._flush_newest()
            return await in_daemon_thread(lambda: self._job(query))

    def _flush_newest(self) -> None:
        """So that a report has what was billed since the last flush, at most once for each snapshot."""
        if self._started and self._latest is not None and self._latest.monotonic_ns > self._flushed_ns:
            self._flush(self._latest)

    def _job(self, query: JobQuery) -> BilledJob | None:
        self._writer.wait_written(_WRITE_TIMEOUT_S)
        try:
            job = read_job(self._file, query.id, query.user) if self._file.exists() else None
        except LedgerError as error:
            raise LedgerUnreadable(str(error)) from error
        return None if job is None else BilledJob(job, self._prices, self._job_url)

    def _report(self, query: ReportQuery) -> PeriodAccounts:
        """Empty while there is no ledger file: nothing was held yet."""
        self._writer.wait_written(_WRITE_TIMEOUT_S)
        try:
            usage = PeriodUsage(*query.period)
            if self._file.exists():
                usage = read_period(self._file, *query.period, by_day=query.by is By.DAY)
            return accounts_of(usage, query.by, query.user, self._prices)
        except LedgerError as error:
            raise LedgerUnreadable(str(error)) from error

    def _read_accounts(self) -> AccountsReading:
        now_wall_s = self._wall()
        has_rows = any(period.rows for period in self._accounts.by_period.values())
        if not has_rows or abs(now_wall_s - self._accounts_wall_s) >= _ACCOUNTS_EVERY_S:
            self._accounts = read_accounts(self._file, now_wall_s, self._prices)
            self._accounts_wall_s = now_wall_s
        return self._accounts
