"""The accounts over snapshots: billed, recorded and reported, also over a restart."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from attribution.builders import gpu
from gpucommons.agent.accounts import Accounts
from gpucommons.config.accounts import EventsSettings, LedgerSettings, QuotaSettings
from gpucommons.config.settings import Settings
from gpucommons.ledger.events import read_events
from gpucommons.ledger.integrate import NS
from gpucommons.ledger.query import accounts_of, read_period
from gpucommons.model.accounts import AccountsReading, HeldKey, LedgerReading, OwnerKey
from gpucommons.model.events import EventLogReading
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.model.words import By
from gpucommons.owners.holding_stage import AllocationStage
from gpucommons.sources.source import Source
from holding.test_allocations import managed, process, readings
from ledger.builders import ALICE, BOB, WALL_S, sample
from waiting import until

KEY = OwnerKey("user", "alice", "")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(
        Settings(),
        ledger=LedgerSettings(file=str(tmp_path / "ledger.sqlite")),
        events=EventsSettings(own_file=str(tmp_path / "events.jsonl")),
        quotas={"alice": QuotaSettings(0.5)},
    )


def started(settings: Settings, now_s: float = WALL_S + 30) -> Accounts:
    accounts = Accounts(settings, None, wall=lambda: now_s)
    asyncio.run(accounts.start())
    return accounts


def stop(accounts: Accounts) -> None:
    asyncio.run(accounts.stop())


def snapshot(second: int, given: Readings) -> Snapshot:
    return Snapshot(second, 1000.0 + second, WALL_S + second, "host", readings=AllocationStage()(given))


def by_name(sources: list[Source]) -> dict[str, Source]:
    return {source.name: source for source in sources}


def test_snapshots_are_billed_recorded_and_reported(settings: Settings, tmp_path: Path) -> None:
    idle, busy = managed("idle", "alice", "0"), managed("busy", "bob", "1")
    given = readings(idle, busy, gpus=(gpu(0), gpu(1)), processes=[process(busy, gpu_index=1)])
    accounts = started(settings)
    sources = by_name(accounts.sources())
    accounts.observe(snapshot(0, given))
    until(lambda: accounts._event_log.detector_state is not None, "the log is read")
    for second in range(1, 31):
        accounts.observe(snapshot(second, given))
    stop(accounts)
    ledger = sources["ledger"].read()
    assert isinstance(ledger, LedgerReading)
    assert ledger.totals is not None
    alice, bob = (ledger.totals[OwnerKey("label", name, "")] for name in ("alice", "bob"))
    assert (alice.held_ns, alice.active_ns, alice.idle_ns) == (30 * NS, 0, 30 * NS)
    assert (bob.active_ns, bob.sm_ns, bob.energy_uj) == (30 * NS, 15 * NS, 30 * 100 * 10**6)
    period = read_period(tmp_path / "ledger.sqlite", int(WALL_S), int(WALL_S) + 60)
    assert accounts_of(period, By.USER).rows == {"alice": alice, "bob": bob}
    events = sources["event_log"].read()
    assert isinstance(events, EventLogReading)
    assert sorted((event.type, event.user) for event in events.events) == [
        ("allocation.seen", "alice"),
        ("allocation.seen", "bob"),
        ("quota.exceeded", "alice"),
    ]
    assert len(list(read_events(tmp_path / "events.jsonl"))) == 3
    reading = sources["accounts"].read()
    assert isinstance(reading, AccountsReading)
    assert reading.by_period["7d"].rows == {"alice": alice, "bob": bob}
    gpus = given.gpus.gpus if given.gpus else ()
    assert reading.held_today_ns == {
        HeldKey(OwnerKey("label", name, ""), name, gpus[index].identity.uuid): 30 * NS
        for index, name in enumerate(("alice", "bob"))
    }


def test_accounts_are_summed_at_the_first_flush_and_then_every_30_s(settings: Settings) -> None:
    now_s = WALL_S + 20
    accounts = Accounts(settings, None, lambda: now_s)
    asyncio.run(accounts.start())
    source = by_name(accounts.sources())["accounts"]
    assert source.cadence_s == 10.0
    assert source.read() == AccountsReading()
    given = readings(managed("one", "alice", "0"))
    for second in range(20):
        accounts.observe(snapshot(second, given))
    stop(accounts)
    first = source.read()
    assert isinstance(first, AccountsReading)
    assert set(first.by_period["today"].rows) == {"alice"}
    now_s += 29
    assert source.read() is first
    now_s += 1
    assert source.read() is not first


def test_a_machine_without_gpus_keeps_no_accounts_and_no_files(settings: Settings, tmp_path: Path) -> None:
    accounts = started(settings)
    for second in range(30):
        accounts.observe(snapshot(second, Readings()))
    stop(accounts)
    assert list(tmp_path.iterdir()) == []
    assert by_name(accounts.sources())["accounts"].read() == AccountsReading()


def test_an_agent_that_was_not_started_writes_nothing(settings: Settings, tmp_path: Path) -> None:
    accounts = Accounts(settings, None)
    for second in range(30):
        accounts.observe(snapshot(second, readings(managed("one", "alice", "0"))))
    stop(accounts)
    assert list(tmp_path.iterdir()) == []


def test_time_in_which_the_driver_does_not_answer_is_a_gap(settings: Settings, tmp_path: Path) -> None:
    given = readings(managed("one", "alice", "0"))
    accounts = started(settings)
    for second in range(30):
        blind = 10 <= second < 20
        accounts.observe(snapshot(second, given._replace(gpus=None, attribution=None) if blind else given))
    stop(accounts)
    period = read_period(tmp_path / "ledger.sqlite", int(WALL_S), int(WALL_S) + 60)
    assert sum(amounts.held_ns for amounts in period.usage.values()) == 18 * NS
    assert [(gap.reason, gap.ns) for gap in period.gaps] == [("unread", 11 * NS)]


def test_counters_continue_over_a_restart_and_show_only_what_is_on_the_disk(settings: Settings, tmp_path: Path) -> None:
    readings: list[LedgerReading] = []
    for begin_s in (0, 100):
        accounts = Accounts(settings, None)
        assert accounts.ledger_reading().totals is None, "absent, not 0, until the ledger was read"
        for second in range(26):
            accounts.bill(sample(begin_s + second, ALICE, BOB))
            readings.append(accounts.ledger_reading())
        until(lambda of=accounts: of.ledger_reading().ledger.backlog_s == 0 and of.ledger_reading().totals, "flushed")  # type: ignore[misc]
        stop(accounts)
        readings.append(accounts.ledger_reading())
    published = [(reading.totals or {}).get(KEY) for reading in readings]
    held = [amounts.held_ns for amounts in published if amounts is not None]
    assert held == sorted(held)
    assert held[-1] == 25 * NS, "two runs of 25 s, shared by two owners"
    period = read_period(tmp_path / "ledger.sqlite", int(WALL_S), int(WALL_S) + 200)
    assert sum(amounts.held_ns for amounts in period.usage.values()) == 50 * NS


def test_counters_of_an_owner_who_left_end_and_continue_on_return(settings: Settings) -> None:
    accounts = Accounts(settings, None)

    def published() -> dict[OwnerKey, int]:
        return {key: amounts.held_ns for key, amounts in (accounts.ledger_reading().totals or {}).items()}

    for second in range(11):
        accounts.bill(sample(second, ALICE))
    until(lambda: KEY in published(), "alice's counters are published")
    for second in range(5000, 5011):
        accounts.bill(sample(second, BOB))
    until(lambda: list(published()) == [OwnerKey("user", "bob", "")], "alice's counters ended")
    for second in range(5011, 5022):
        accounts.bill(sample(second, ALICE))
    until(lambda: KEY in published(), "alice's counters are back")
    stop(accounts)
    assert published()[KEY] == 20 * NS
