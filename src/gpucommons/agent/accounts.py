"""Accounts in the agent: allocations at each snapshot, and what is billed for them.

Only a started agent writes the ledger and the event log. A command that takes one sample writes nothing.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from gpucommons.agent.owners import owner_rules
from gpucommons.agent.parts import Parts
from gpucommons.config.settings import Settings
from gpucommons.config.state_directory import events_position_file, ledger_file, own_event_log
from gpucommons.holding.ds01_rules import slice_owner
from gpucommons.holding.stage import AllocationStage
from gpucommons.ledger.accounts import read_accounts
from gpucommons.ledger.batch import NS, Moment
from gpucommons.ledger.event_detector import detect_events
from gpucommons.ledger.event_log import EventLog
from gpucommons.ledger.integrate import Integrator
from gpucommons.ledger.rollups import Retention
from gpucommons.ledger.usage import usage_of
from gpucommons.ledger.writer import LedgerWriter
from gpucommons.model.accounts import AccountsReading, Amounts, HoldingQuota, LedgerReading, OwnerKey
from gpucommons.model.containers import Container, all_containers
from gpucommons.model.events import EventLogReading
from gpucommons.model.snapshot import Snapshot
from gpucommons.model.usage import UsageSample
from gpucommons.sources.ds01.events import EventsSource
from gpucommons.sources.ds01.state import Ds01Source
from gpucommons.sources.people.users import UsersSource, host_root
from gpucommons.sources.source import Source

_USERS_CADENCE_S = 10.0
_DS01_CADENCE_S = 5.0
# The longest interval between two snapshots that is billed, in sampling intervals.
_LONGEST_GAP = 5
# The accounts of 30 days are summed this often. Before the first row there is nothing to sum: then at each flush.
_ACCOUNTS_EVERY_S = 30.0
# Counters of an owner that was not seen for this long are not published. They continue when it returns.
_RECENT_S = 3600.0
_STOP_TIMEOUT_S = 2.0

log = logging.getLogger(__name__)


def with_accounts(parts: Parts, settings: Settings, scenario: str | None) -> Parts:
    """Add allocations to what the parts derive, and keep accounts of them."""
    stage = AllocationStage(owner_rules(settings.owners), settings.ledger.active_ratio)
    derive, containers = parts.derive, _Containers()
    is_machine = scenario is None and sys.platform == "linux"
    parts = replace(
        parts,
        sources=[*parts.sources, *(_machine_sources(settings, containers) if is_machine else ())],
        derive=lambda readings: stage(derive(readings)),
        observers=[*parts.observers, containers.observe],
    )
    if not settings.ledger.enabled:
        return parts
    accounts = Accounts(settings, scenario)
    return replace(
        parts,
        sources=[*parts.sources, *accounts.sources()],
        services=[*parts.services, accounts],
        observers=[*parts.observers, accounts.observe],
    )


class _Containers:
    """The containers of the latest snapshot, in which the users source looks up processes."""

    def __init__(self) -> None:
        self.latest: Mapping[str, Container] = {}

    def observe(self, snapshot: Snapshot) -> None:
        self.latest = all_containers(snapshot.readings.docker, snapshot.readings.podman)


def _machine_sources(settings: Settings, containers: _Containers) -> list[Source]:
    procfs = Path(settings.path.procfs)
    return [
        UsersSource(
            host_root(procfs),
            procfs,
            Path(settings.path.cgroupfs),
            _USERS_CADENCE_S,
            slice_owner,
            Path(settings.ds01.groups_directory),
            lambda: containers.latest,
        ),
        Ds01Source(Path(settings.ds01.state_file), _DS01_CADENCE_S),
        EventsSource(Path(settings.events.file), events_position_file(), settings.sampling.interval_s),
    ]


@dataclass(slots=True)
class _FunctionSource:
    """A source that is one function."""

    name: str
    feeds: str
    produces: type
    cadence_s: float
    read: Callable[[], object]
    runs_on: Literal["thread", "loop"] = "loop"
    deadline_s: float = 10.0
    essential: bool = False


class Accounts:
    """Bills each snapshot to the ledger, records events, and serves what the ledger and the event log have."""

    def __init__(self, settings: Settings, scenario: str | None, wall: Callable[[], float] = time.time) -> None:
        ledger, interval_s = settings.ledger, settings.sampling.interval_s
        self._file = ledger_file(settings, scenario)
        self._wall = wall
        self._interval_s, self._flush_s = interval_s, ledger.flush_s
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

    def sources(self) -> list[Source]:
        return [
            _FunctionSource("ledger", "ledger", LedgerReading, self._interval_s, self.ledger_reading),
            _FunctionSource("event_log", "event_log", EventLogReading, self._interval_s, self._event_log.reading),
            _FunctionSource("accounts", "accounts", AccountsReading, self._flush_s, self._read_accounts, "thread"),
        ]

    async def start(self) -> None:
        self._started = True

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
            recent = {key: known.amounts for key, known in totals.items() if known.last_wall_s >= since_s}
        return LedgerReading(state, recent, self._quotas, self._event_log.writing)

    def _read_accounts(self) -> AccountsReading:
        now_wall_s = self._wall()
        has_rows = any(period.rows for period in self._accounts.by_period.values())
        if not has_rows or abs(now_wall_s - self._accounts_wall_s) >= _ACCOUNTS_EVERY_S:
            self._accounts = read_accounts(self._file, now_wall_s)
            self._accounts_wall_s = now_wall_s
        return self._accounts
