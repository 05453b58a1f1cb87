"""Accounts of a period: exact sums, the same total whatever the rows are, over exactly the requested period."""

import random
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.faces.documents.accounts import period_document, rows, total
from gpucommons.ledger.errors import LedgerError
from gpucommons.ledger.integrate import NS, Batch, Gap
from gpucommons.ledger.query import NONE, PeriodUsage, accounts_of, read_period
from gpucommons.ledger.schema import DAY_S, Retention
from gpucommons.ledger.store import Store
from gpucommons.model.accounts import Amounts, Prices, SlotTime, sum_amounts
from gpucommons.model.allocations import Account, Slot
from gpucommons.model.names import account_name
from gpucommons.model.words import By
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
    models=st.dictionaries(st.sampled_from(["GPU-0", "GPU-1", "GPU-2"]), st.sampled_from(["NVIDIA H100", "Tesla T4"])),
)
price = st.integers(0, 10**12)
prices = st.builds(
    Prices,
    st.lists(st.tuples(st.sampled_from(["*h100*", "tesla*", "*", "A*"]), price), max_size=3).map(tuple),
    st.none() | price,
    st.sampled_from(["", "EUR"]),
    st.none() | price,
)


def by_days(period: PeriodUsage) -> PeriodUsage:
    """As it is read by day: each amount on a day of its own, or divided between two."""
    days: dict[int, dict[tuple[Slot, Account], Amounts]] = {}
    for number, (key, what) in enumerate(period.usage.items()):
        half = Amounts(*(value // 2 for value in what))
        days.setdefault(number % 3 * DAY_S, {})[key] = half
        days.setdefault(3 * DAY_S, {})[key] = Amounts(*(all - part for all, part in zip(what, half, strict=True)))
    return replace(period, days=days)


@unhurried(50)
@given(periods.map(by_days), st.none() | words, prices)
def test_the_total_is_the_same_whatever_the_rows_are(period: PeriodUsage, user: str | None, prices: Prices) -> None:
    chosen = [amounts for (_, account), amounts in period.usage.items() if user in (None, account_name(account))]
    expected = sum_amounts(chosen) if chosen else Amounts()
    documents = []
    for by in By:
        accounts = accounts_of(period, by, user, prices)
        assert accounts.total == expected
        held_ns = accounts.total_charge.priced_ns + accounts.total_charge.unpriced_ns
        assert held_ns == (expected.held_ns if prices.per_gpu_hour else 0), "held time has a price or has none"
        document = {**total(accounts)}
        for column in ("free_gpu_hours", "unknown_gpu_hours"):
            assert (document.pop(column, None) is not None) == (by is By.GPU and user is None)
        documents.append(document)
        for row in rows(accounts).values():
            parts = [row[f"{part}_gpu_hours"] for part in ("active", "idle", "unjudged")]
            assert row["held_gpu_hours"] == pytest.approx(sum(float(str(part or 0)) for part in parts), abs=2e-6)
        for column in ("gpu_cost", "energy_cost", "cost", "unpriced_gpu_hours", "co2_g"):
            of_rows = [row[column] for row in rows(accounts).values() if column in row]
            known = [float(str(value)) for value in of_rows if value is not None]
            assert (document.get(column) or 0) == pytest.approx(sum(known), abs=1e-6 * (len(known) + 1)), column
    assert all(document == documents[0] for document in documents)


def usage(**seconds: int) -> PeriodUsage:
    """Users on one GPU, for so many seconds each."""
    return PeriodUsage(
        0, 3600, {(GPU, Account("user", name, user=name)): Amounts(s * NS, s * NS) for name, s in seconds.items()}
    )


def test_thirds_of_an_hour_are_one_hour() -> None:
    accounts = accounts_of(usage(alice=1200, bob=1200, carol=1200), By.USER)
    assert [row["held_gpu_hours"] for row in rows(accounts).values()] == [0.333333] * 3
    assert total(accounts)["held_gpu_hours"] == 1.0


def test_idle_time_efficiency_energy_and_memory() -> None:
    hour = 3600 * NS
    what = Amounts(10 * hour, 6 * hour, 3 * hour, 5 * hour, 4 * hour, 36_000 << 20, 36_000_000 * 10**6)
    assert rows(accounts_of(PeriodUsage(0, 1, {(GPU, ALICE): what}), By.GROUP)) == {
        "lab": {
            "held_gpu_hours": 10,
            "active_gpu_hours": 6,
            "idle_gpu_hours": 3,
            "unjudged_gpu_hours": 1,
            "gpu_equivalent_hours": 5,
            "memory_gib_hours": 10,
            "energy_kwh": 10,
            "sm_gpu_hours": 4,
            "efficiency_ratio": 0.4,
        }
    }


def test_an_owner_that_uses_the_share_of_another_is_at_most_fully_efficient() -> None:
    """Two owners hold a half each for two hours. One uses the whole GPU for 90 minutes, the other nothing."""
    hour = 3600 * NS
    greedy, idle = (Amounts(hour, active, hour - active, sm_ns=sm) for active, sm in ((hour, 3 * hour // 2), (0, 0)))
    accounts = accounts_of(PeriodUsage(0, 1, {(GPU, ALICE): greedy, (GPU, BOB): idle}), By.USER)
    found = rows(accounts)
    assert found["alice"]["efficiency_ratio"] == 1.0
    assert found["alice"]["sm_gpu_hours"] == 1.5, "all of its use"
    assert found["bob"]["efficiency_ratio"] == 0.0
    assert total(accounts)["efficiency_ratio"] == 0.75


def test_usage_without_such_a_name_is_one_row() -> None:
    assert list(accounts_of(usage(alice=3600), By.JOB).rows) == [NONE]
    assert total(accounts_of(PeriodUsage(0, 1), By.USER))["efficiency_ratio"] is None


def test_a_pod_has_one_name_in_every_row() -> None:
    pods = [Account("pod", "worker-0", space, f"uid-{space}", pod="worker-0") for space in ("blue", "red")]
    site = Account("site", "team-x", "red", "team-x", pod="worker-1")
    period = PeriodUsage(0, 1, {(GPU, account): Amounts(NS) for account in (*pods, site)})
    names = {"blue/worker-0", "red/worker-0", "red/worker-1"}
    assert set(accounts_of(period, By.USER).rows) == set(accounts_of(period, By.POD).rows) == names
    assert accounts_of(period, By.GPU, "red/worker-0").total == Amounts(NS)


def test_a_gpu_without_a_holder_is_in_the_report() -> None:
    period = PeriodUsage(0, 3600, {}, {GPU: SlotTime(0, 3600 * NS, 0)}, (Gap(0, "", "restart", 1800 * NS),))
    accounts = accounts_of(period, By.GPU)
    ((name, row),) = rows(accounts).items()
    assert (name, row["held_gpu_hours"], row["free_gpu_hours"]) == ("0 GPU-0", 0, 1)
    document = period_document(accounts)
    assert isinstance(document, dict)
    assert document["gap_hours"] == {"restart": 0.5}


def written(path: Path, batches: list[Batch]) -> Store:
    store = Store(path, "run", "boot")
    store.begin(moment(0))
    for number, each in enumerate(batches, 1):
        store.write(number, each, moment(number))
    return store


def test_any_period_is_the_plain_sum_of_its_minutes(tmp_path: Path) -> None:
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
        period = read_period(path, since_s, until_s, by_day=True)
        expected: dict[tuple[Slot, Account], int] = {}
        days: dict[str, int] = {}
        for each in all_of_it:
            for (minute, slot, account), what in each.usage.items():
                if since_s <= minute * 60 < until_s:
                    expected[slot, account] = expected.get((slot, account), 0) + what.held_ns
                    day = time.strftime("%Y-%m-%d", time.gmtime(minute * 60))
                    days[day] = days.get(day, 0) + what.held_ns
        assert {key: what.held_ns for key, what in period.usage.items()} == expected
        by_day = accounts_of(period, By.DAY)
        assert {day: what.held_ns for day, what in by_day.rows.items()} == days
        assert list(rows(by_day)) == sorted(days), "in their order"
        assert replace(period, days={}) == read_period(path, since_s, until_s)
        assert sum(each.held_ns for each in period.slot_time.values()) == sum(expected.values())
    store.close()


def test_where_minutes_were_pruned_the_period_is_widened_to_hours(tmp_path: Path) -> None:
    path, hour_s = tmp_path / "ledger.sqlite", int(WALL_S) // 3600 * 3600
    store = written(path, [batch(10, wall_s=hour_s + 60 * n) for n in range(60)])
    store.prune(Retention(minutes_d=1), hour_s + 10 * DAY_S)
    store.close()
    period = read_period(path, hour_s + 600, hour_s + 1200)
    assert (period.since_s, period.until_s) == (hour_s, hour_s + 3600)
    assert sum(what.held_ns for what in period.usage.values()) == 600 * NS


def test_reading_creates_no_file(tmp_path: Path) -> None:
    """A WAL file that root's report created would lock out an agent that is not root."""
    path = tmp_path / "ledger.sqlite"
    written(path, [batch(10)]).close()
    before = sorted(file.name for file in tmp_path.iterdir())
    assert sum(what.held_ns for what in read_period(path, 0, int(WALL_S) + DAY_S).usage.values()) == 10 * NS
    assert sorted(file.name for file in tmp_path.iterdir()) == before


def test_the_ledger_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    store = written(tmp_path / "ledger.sqlite", [batch(10)])
    period = read_period(tmp_path / "ledger.sqlite", 0, int(WALL_S) + DAY_S)
    assert sum(what.held_ns for what in period.usage.values()) == 10 * NS
    store.write(2, batch(10), moment(20))
    store.close()


@pytest.mark.parametrize("content", [None, b"garbage" * 500])
def test_a_missing_or_damaged_ledger_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "ledger.sqlite"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LedgerError) as refused:
        read_period(path, 0, 1)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_damaged_row_does_not_hide_another(tmp_path: Path) -> None:
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


def test_another_database_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "x.sqlite") as other:
        other.execute("CREATE TABLE x (y)")
    with pytest.raises(LedgerError, match="not a gpucommons ledger"):
        read_period(tmp_path / "x.sqlite", 0, 1)
