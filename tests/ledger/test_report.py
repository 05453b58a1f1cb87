"""Reports: rows that sum to their totals to the last printed digit, over exactly the period asked for."""

import random
import sqlite3
from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.ledger.batch import NS, Batch, Gap
from gpucommons.ledger.errors import LedgerError
from gpucommons.ledger.period import Period, month, parse_since
from gpucommons.ledger.query import PeriodUsage, read_period
from gpucommons.ledger.report import NONE, By, ReportRow, report
from gpucommons.ledger.rollups import DAY_S, Retention
from gpucommons.ledger.store import Store
from gpucommons.model.accounts import Amounts, SlotTime
from gpucommons.model.usage import Account, Slot
from ledger.builders import ALICE, BOB, GPU, MIG, WALL_S, batch, moment
from unhurried import unhurried

words = st.sampled_from(["", "a", "b", "c"])
accounts = st.builds(Account, st.sampled_from(["user", "pod"]), words, words, words, words, words, words, words)
slots = st.sampled_from([GPU, MIG, Slot("GPU-2", "GPU-2", "2")])


@st.composite
def amounts(draw: st.DrawFn) -> Amounts:
    active, idle, unjudged, equivalent, sm, memory, energy = draw(
        st.tuples(*[st.integers(0, 10**15)] * 5, st.integers(0, 10**13), st.integers(0, 10**15))
    )
    return Amounts(active + idle + unjudged, active, idle, equivalent, sm, memory, energy)


periods = st.builds(
    PeriodUsage,
    st.just(0),
    st.just(3600),
    st.dictionaries(st.tuples(slots, accounts), amounts(), max_size=12),
    st.dictionaries(slots, st.builds(SlotTime, *[st.integers(0, 10**15)] * 3)),
)
NUMBERS = [item.name for item in fields(ReportRow) if item.name != "name"]


@unhurried(50)
@given(periods, st.sampled_from(By), st.none() | words)
def test_rows_sum_to_the_totals_exactly(period: PeriodUsage, by: By, user: str | None) -> None:
    result = report(period, by, user)
    for number in NUMBERS:
        values = [getattr(row, number) for row in result.rows]
        shown = [Decimal(str(value)) for value in values if value is not None]
        total = getattr(result.total, number)
        assert total is None or sum(shown, Decimal(0)) == Decimal(str(total)), number
    for row in (*result.rows, result.total):
        assert row.held_hours == row.active_hours + row.wasted_hours + row.unjudged_hours
    assert len({row.name for row in result.rows}) == len(result.rows)
    held = sum(a.held_ns for (_, account), a in period.usage.items() if user in (None, account.user))
    assert abs(float(result.total.held_hours) * 3600 * NS - held) <= 3600 * NS * 0.0002 * (len(period.usage) + 1)


def usage(**seconds: int) -> PeriodUsage:
    """alice and bob on one GPU, for so many seconds each."""
    return PeriodUsage(
        0, 3600, {(GPU, Account("user", name, user=name)): Amounts(s * NS, s * NS) for name, s in seconds.items()}
    )


def test_thirds_of_an_hour_add_up_as_printed() -> None:
    result = report(usage(alice=1200, bob=1200, carol=1200), By.USER)
    assert [str(row.held_hours) for row in result.rows] == ["0.3333"] * 3
    assert str(result.total.held_hours) == "0.9999", "what a reader gets who adds up the page"


def test_waste_efficiency_energy_and_memory() -> None:
    hour = 3600 * NS
    what = Amounts(10 * hour, 6 * hour, 3 * hour, 5 * hour, 4 * hour, 36_000 << 20, 36_000_000 * 10**6)
    (row,) = report(PeriodUsage(0, 1, {(GPU, ALICE): what}), By.GROUP).rows
    assert row.name == "lab"
    assert [row.held_hours, row.active_hours, row.wasted_hours, row.unjudged_hours] == [*map(Decimal, (10, 6, 3, 1))]
    assert [row.equivalent_hours, row.memory_gib_hours, row.energy_kwh] == [*map(Decimal, (5, 10, 10))]
    assert row.efficiency == Decimal("0.400")


def test_what_has_no_such_name_is_a_row_of_its_own() -> None:
    rows = report(usage(alice=3600), By.JOB).rows
    assert [row.name for row in rows] == [NONE]
    assert report(PeriodUsage(0, 1), By.USER).total.efficiency is None


def test_a_gpu_that_nobody_held_is_in_the_report() -> None:
    period = PeriodUsage(0, 3600, {}, {GPU: SlotTime(0, 3600 * NS, 0)}, (Gap(0, "", "restart", 1800 * NS),))
    result = report(period, By.GPU)
    assert [(row.name, row.held_hours, row.free_hours) for row in result.rows] == [("0 GPU-0", Decimal(0), Decimal(1))]
    assert result.gap_hours == {"restart": Decimal("0.5")}


def written(path: Path, batches: list[Batch]) -> Store:
    store = Store(path, "run", "boot")
    store.begin(moment(0))
    for number, each in enumerate(batches, 1):
        store.write(number, each, moment(number))
    return store


def test_any_period_by_the_minute_is_what_a_plain_sum_says(tmp_path: Path) -> None:
    luck = random.Random(7)
    path, spread = tmp_path / "ledger.sqlite", 6 * DAY_S
    all_of_it = [
        batch(
            luck.randrange(1, 60), luck.choice([ALICE, BOB]), WALL_S + luck.randrange(spread), luck.choice([GPU, MIG])
        )
        for _ in range(400)
    ]
    store = written(path, all_of_it)
    for _ in range(200):
        since_s, until_s = sorted(int(WALL_S) // 60 * 60 + 60 * luck.randrange(spread // 60) for _ in range(2))
        period = read_period(path, since_s, until_s)
        expected: dict[tuple[Slot, Account], int] = {}
        for each in all_of_it:
            for (minute, slot, account), what in each.usage.items():
                if since_s <= minute * 60 < until_s:
                    expected[slot, account] = expected.get((slot, account), 0) + what.held_ns
        assert {key: what.held_ns for key, what in period.usage.items()} == expected
        assert sum(time.held_ns for time in period.slot_time.values()) == sum(expected.values())
    store.close()


def test_where_minutes_are_gone_whole_hours_are_told_and_the_period_says_so(tmp_path: Path) -> None:
    path, hour_s = tmp_path / "ledger.sqlite", int(WALL_S) // 3600 * 3600
    store = written(path, [batch(10, wall_s=hour_s + 60 * n) for n in range(60)])
    store.prune(Retention(minutes_d=1), hour_s + 10 * DAY_S)
    store.close()
    period = read_period(path, hour_s + 600, hour_s + 1200)
    assert (period.since_s, period.until_s) == (hour_s, hour_s + 3600)
    assert sum(what.held_ns for what in period.usage.values()) == 600 * NS


def test_reading_leaves_nothing_behind(tmp_path: Path) -> None:
    """A log that root's report left would lock out an agent that is not root."""
    path = tmp_path / "ledger.sqlite"
    written(path, [batch(10)]).close()
    before = sorted(file.name for file in tmp_path.iterdir())
    assert sum(what.held_ns for what in read_period(path, 0, int(WALL_S) + DAY_S).usage.values()) == 10 * NS
    assert sorted(file.name for file in tmp_path.iterdir()) == before


def test_a_report_is_read_beside_the_writer(tmp_path: Path) -> None:
    store = written(tmp_path / "ledger.sqlite", [batch(10)])
    period = read_period(tmp_path / "ledger.sqlite", 0, int(WALL_S) + DAY_S)
    assert sum(what.held_ns for what in period.usage.values()) == 10 * NS
    store.write(2, batch(10), moment(20))
    store.close()


@pytest.mark.parametrize("content", [None, b"garbage" * 500])
def test_no_ledger_is_one_clear_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "ledger.sqlite"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LedgerError) as refused:
        read_period(path, 0, 1)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_one_bad_row_never_silences_another(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    written(path, [batch(10, ALICE), batch(10, BOB, slot=MIG)]).close()
    with sqlite3.connect(path) as damaged:
        damaged.execute("DELETE FROM accounts WHERE owner = 'alice'")
        damaged.execute("DELETE FROM slots WHERE uuid = ?", (MIG.uuid,))
        damaged.execute("UPDATE usage_day SET held_ns = 'nonsense' WHERE account = 2")
    found = read_period(path, int(WALL_S) // 60 * 60, int(WALL_S) + 60).usage
    assert {(slot.name, account.owner): amounts.held_ns for (slot, account), amounts in found.items()} == {
        ("0", "unattributed"): 10 * NS,
        ("?", "bob"): 10 * NS,
    }


def test_another_database_is_no_ledger(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "x.sqlite") as other:
        other.execute("CREATE TABLE x (y)")
    with pytest.raises(LedgerError, match="not a ledger"):
        read_period(tmp_path / "x.sqlite", 0, 1)


NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "ago"),
    [("30d", timedelta(days=30)), ("12h", timedelta(hours=12)), ("90m", timedelta(minutes=90)), ("2w", timedelta(14))],
)
def test_so_long_ago(text: str, ago: timedelta) -> None:
    assert parse_since(text, NOW.timestamp(), UTC) == (NOW - ago).timestamp()


def test_since_a_date() -> None:
    vienna = timezone(timedelta(hours=1))
    assert parse_since("2026-11-01", NOW.timestamp(), vienna) == datetime(2026, 10, 31, 23, tzinfo=UTC).timestamp()
    assert parse_since("2026-11-01T00:00:00Z", NOW.timestamp(), vienna) == datetime(2026, 11, 1, tzinfo=UTC).timestamp()


def test_months_are_local_and_know_summer_time() -> None:
    vienna = ZoneInfo("Europe/Vienna")
    march = month("2026-03", NOW.timestamp(), vienna)
    assert (march.until_s - march.since_s) / 3600 == 31 * 24 - 1
    december = month("2025-12", NOW.timestamp(), vienna)
    assert december == Period(
        int(datetime(2025, 11, 30, 23, tzinfo=UTC).timestamp()), int(datetime(2025, 12, 31, 23, tzinfo=UTC).timestamp())
    )
    assert month("2026-11", NOW.timestamp(), vienna).until_s == NOW.timestamp(), "as far as it has come"


@pytest.mark.parametrize("text", ["", "yesterday", "30", "-3d", "3.5h", "2026-13-01", "30 d"])
def test_what_is_no_period_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no period"):
        parse_since(text, NOW.timestamp(), UTC)


@pytest.mark.parametrize("text", ["", "2026", "2026-00", "2026-13", "November", "2026-1"])
def test_what_is_no_month_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no month"):
        month(text, NOW.timestamp(), UTC)
