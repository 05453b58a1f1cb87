"""Accounts end to end over snapshots: billed, told, reported, and the same after a restart."""

from dataclasses import replace
from pathlib import Path

from attribution.builders import gpu
from gpucommons.holding.stage import AllocationStage
from gpucommons.ledger.event_log import read_events
from gpucommons.ledger.query import read_period
from gpucommons.ledger.report import By, report
from gpucommons.model.accounts import AccountsReading, HoldingQuota, LedgerReading, OwnerKey
from gpucommons.model.events import EventLogReading
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.sampling.accounting import Accounting, AccountingSettings
from gpucommons.sources.source import Source
from holding.test_allocations import managed, process, readings
from ledger.builders import WALL_S
from waiting import until


def accounting(tmp_path: Path, now_s: float = WALL_S + 30) -> Accounting:
    settings = AccountingSettings(
        tmp_path / "ledger.sqlite", tmp_path / "events.jsonl", 1.0, quotas={"alice": HoldingQuota(0.5)}
    )
    return Accounting(settings, wall=lambda: now_s)


def snapshot(second: int, given: Readings) -> Snapshot:
    return Snapshot(second, 1000.0 + second, WALL_S + second, "host", readings=AllocationStage()(given))


def by_name(sources: list[Source]) -> dict[str, Source]:
    return {source.name: source for source in sources}


def test_a_node_is_billed_told_and_reported(tmp_path: Path) -> None:
    idle, busy = managed("idle", "alice", "0"), managed("busy", "bob", "1")
    given = readings(idle, busy, gpus=(gpu(0), gpu(1)), processes=[process(busy, gpu_index=1)])
    accounts = accounting(tmp_path)
    sources = by_name(accounts.sources())
    accounts.observe(snapshot(0, given))
    until(lambda: accounts._events.standing is not None, "the log is read")
    for second in range(1, 31):
        accounts.observe(snapshot(second, given))
    assert accounts.close()
    read = sources["ledger"].read()
    assert isinstance(read, LedgerReading)
    assert read.totals is not None
    alice, bob = (read.totals[OwnerKey("label", name, "")] for name in ("alice", "bob"))
    assert (alice.held_ns, alice.active_ns, alice.idle_ns) == (30 * 10**9, 0, 30 * 10**9)
    assert (bob.active_ns, bob.sm_ns, bob.energy_uj) == (30 * 10**9, 15 * 10**9, 30 * 100 * 10**6)
    told = report(read_period(tmp_path / "ledger.sqlite", int(WALL_S), int(WALL_S) + 60), By.USER)
    assert [(row.name, str(row.held_hours), str(row.wasted_hours)) for row in told.rows] == [
        ("alice", "0.0083", "0.0083"),
        ("bob", "0.0083", "0.0000"),
    ]
    journal = sources["event_log"].read()
    assert isinstance(journal, EventLogReading)
    assert sorted((entry.type, entry.user) for entry in journal.entries) == [
        ("allocation.seen", "alice"),
        ("allocation.seen", "bob"),
        ("quota.exceeded", "alice"),
    ]
    assert len(list(read_events(tmp_path / "events.jsonl"))) == 3
    statement = sources["accounts"].read()
    assert isinstance(statement, AccountsReading)
    assert [(row.user, row.held_gpu_s) for row in statement.by_period["7d"].rows] == [("alice", 30.0), ("bob", 30.0)]
    assert statement.owner_gpu_s_today == {"label/alice": 30.0, "label/bob": 30.0}


def test_the_first_statement_comes_with_the_first_flush_and_the_next_ones_when_it_is_their_time(tmp_path: Path) -> None:
    now_s = WALL_S + 20
    accounts = Accounting(AccountingSettings(tmp_path / "ledger.sqlite", tmp_path / "events.jsonl", 1.0), lambda: now_s)
    source = by_name(accounts.sources())["accounts"]
    assert source.cadence_s == 10.0
    assert source.read() == AccountsReading({}, {})
    given = readings(managed("one", "alice", "0"))
    for second in range(20):
        accounts.observe(snapshot(second, given))
    assert accounts.close()
    first = source.read()
    assert isinstance(first, AccountsReading)
    assert [row.user for row in first.by_period["today"].rows] == ["alice"]
    now_s += 29
    assert source.read() is first
    now_s += 1
    assert source.read() is not first


def test_a_machine_without_gpus_keeps_no_accounts_and_no_files(tmp_path: Path) -> None:
    accounts = accounting(tmp_path)
    for second in range(30):
        accounts.observe(snapshot(second, Readings()))
    assert accounts.close()
    assert list(tmp_path.iterdir()) == []
    statement = by_name(accounts.sources())["accounts"].read()
    assert statement == AccountsReading({}, {})


def test_a_driver_that_does_not_answer_is_a_gap(tmp_path: Path) -> None:
    given = readings(managed("one", "alice", "0"))
    accounts = accounting(tmp_path)
    for second in range(30):
        blind = 10 <= second < 20
        accounts.observe(snapshot(second, replace(given, gpus=None, attribution=None) if blind else given))
    assert accounts.close()
    period = read_period(tmp_path / "ledger.sqlite", int(WALL_S), int(WALL_S) + 60)
    assert sum(amounts.held_ns for amounts in period.usage.values()) == 18 * 10**9
    assert [(gap.reason, gap.ns) for gap in period.gaps] == [("unread", 11 * 10**9)]
