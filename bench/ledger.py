"""The ledger with 200 owners on each of 16 GPUs: a step, a flush, a 90-day report, and the growth of the file.

The peer is the simplest design: a row for every owner, GPU and flush, and reports that sum all rows.
"""

import os
import resource
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path

from bench.table import show
from gpucommons.ledger.integrate import NS, Batch, Integrator, Moment
from gpucommons.ledger.query import accounts_of, read_period
from gpucommons.ledger.store import Store
from gpucommons.model.accounts import Amounts
from gpucommons.model.allocations import WHOLE_SHARE, Account, Holding, Slot, SlotUsage, UsageSample
from gpucommons.model.words import By

OWNERS, GPUS = 200, 16
USUAL_PAIRS = 3 * GPUS
STEPS, FLUSHES = 60, 12
DAYS = 90
WALL_S = 1_800_000_000 // 86_400 * 86_400

ACCOUNTS = [Account("user", f"user{n}", "", str(1000 + n), f"user{n}", f"group{n % 8}") for n in range(OWNERS)]
SLOTS = [Slot(f"GPU-{n:08x}", f"GPU-{n:08x}", str(n)) for n in range(GPUS)]


def sample(second: float) -> UsageSample:
    return UsageSample(
        round(second * NS),
        WALL_S + second,
        tuple(
            SlotUsage(
                slot,
                tuple(
                    Holding(account, WHOLE_SHARE // OWNERS, True, 4000, (1 << 30) + round(second), 3000)
                    for account in ACCOUNTS
                ),
            )
            for slot in SLOTS
        ),
    )


def steps() -> tuple[list[float], list[float], list[Batch]]:
    integrator = Integrator(5.0)
    step_ms, take_ms, batches = [], [], []
    for second in range(STEPS + 1):
        now = sample(1000 + second)
        begun = time.perf_counter()
        integrator.step(now)
        step_ms.append((time.perf_counter() - begun) * 1e3)
        if second and second % 10 == 0:
            begun = time.perf_counter()
            batches.append(integrator.take())
            take_ms.append((time.perf_counter() - begun) * 1e3)
    return step_ms[1:], take_ms, batches


def raw_table(path: Path) -> sqlite3.Connection:
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute("PRAGMA journal_mode = WAL")
    raw.execute("PRAGMA synchronous = FULL")
    raw.execute(f"CREATE TABLE raw (at REAL, gpu TEXT, owner TEXT, {', '.join(Amounts._fields)})")
    return raw


def raw_flush(raw: sqlite3.Connection, batch: Batch, at: float) -> None:
    raw.execute("BEGIN IMMEDIATE")
    raw.executemany(
        f"INSERT INTO raw VALUES (?, ?, ?{', ?' * len(Amounts._fields)})",
        [(at, slot.uuid, account.owner, *amounts) for (_, slot, account), amounts in batch.usage.items()],
    )
    raw.execute("COMMIT")


def flushes(directory: Path, batches: list[Batch]) -> tuple[list[float], list[float], int]:
    """Interleaved; the last value is the growth of the peer's table in one flush."""
    store, raw = Store(directory / "flush.sqlite", "run", "boot"), raw_table(directory / "raw.sqlite")
    store.begin(Moment(0, WALL_S))
    ours, theirs = [], []
    for number in range(FLUSHES):
        batch = batches[number % len(batches)]
        begun = time.perf_counter()
        store.write(number + 1, batch, Moment(number, WALL_S))
        ours.append((time.perf_counter() - begun) * 1e3)
        begun = time.perf_counter()
        raw_flush(raw, batch, float(number))
        theirs.append((time.perf_counter() - begun) * 1e3)
    store.close()
    raw.close()
    return ours, theirs, os.path.getsize(directory / "raw.sqlite") // FLUSHES


def ninety_days(path: Path) -> None:
    """A ledger as the agent writes it: days, hours of the recent days, and minutes of the last hour."""
    Store(path, "run", "boot").close()
    amounts = Amounts(3600 * NS, 1800 * NS, 1800 * NS, 3600 * NS, 900 * NS, 3600 << 20, 10**9)
    file = sqlite3.connect(path, isolation_level=None)
    file.execute("BEGIN")
    file.executemany(
        'INSERT INTO accounts (kind, owner, namespace, id, user, "group", pod, job) VALUES (?, ?, ?, ?, ?, ?, ?, ?)',
        ACCOUNTS,
    )
    file.executemany('INSERT INTO slots (uuid, gpu_uuid, name, slices, "of") VALUES (?, ?, ?, ?, ?)', SLOTS)
    pairs = [(slot, account) for slot in range(1, GPUS + 1) for account in range(1, OWNERS + 1)]
    buckets = {
        "day": [WALL_S - day * 86_400 for day in range(DAYS + 1)],
        "hour": [WALL_S - edge + hour * 3600 for edge in (0, DAYS * 86_400) for hour in range(24)],
        "minute": [WALL_S + 82_800 + minute * 60 for minute in range(60)],
    }
    for layer, starts in buckets.items():
        file.executemany(
            f"INSERT INTO usage_{layer} VALUES (?, ?, ?{', ?' * len(Amounts._fields)})",
            ((start, *pair, *amounts) for start in sorted(starts) for pair in pairs),
        )
    file.execute("COMMIT")
    file.close()


def reported(path: Path) -> float:
    until_s = WALL_S + 86_340
    begun = time.perf_counter()
    made = accounts_of(read_period(path, until_s - DAYS * 86_400, until_s), By.USER)
    assert len(made.rows) == OWNERS
    return time.perf_counter() - begun


def bytes_a_row(path: Path, layer: str) -> float:
    with sqlite3.connect(path) as file:
        (rows,) = file.execute(f"SELECT count(*) FROM usage_{layer}").fetchone()
        (size,) = file.execute("SELECT sum(pgsize) FROM dbstat WHERE name = ?", (f"usage_{layer}",)).fetchone()
    return float(size) / float(rows)


def growth(pairs: int, day_row: float, hour_row: float, minute_row: float) -> tuple[str, str]:
    """The permanent growth per day, and the maximum size of the minutes."""
    kept_mb = pairs * (day_row + 24 * hour_row) / 1e6
    return f"{kept_mb:.2f} MB a day", f"{pairs * 1440 * 2 * minute_row / 1e6:.0f} MB"


def main() -> None:
    pairs = OWNERS * GPUS
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        step_ms, take_ms, batches = steps()
        ours, theirs, raw_bytes = flushes(directory, batches)
        ninety_days(directory / "report.sqlite")
        report_s = min(reported(directory / "report.sqlite") for _ in range(3))
        sizes = [bytes_a_row(directory / "report.sqlite", layer) for layer in ("day", "hour", "minute")]
    ours_ms, theirs_ms = statistics.median(ours), statistics.median(theirs)
    show(
        f"Accounts of {OWNERS} owners on each of {GPUS} GPUs ({pairs} pairs)",
        ("what", "measured", "bar"),
        [
            ("one integration step, median", f"{statistics.median(step_ms):.2f} ms", "5 ms"),
            ("one integration step, worst", f"{max(step_ms):.2f} ms", ""),
            ("making a batch of 10 s", f"{statistics.median(take_ms):.2f} ms", ""),
            ("one flush, median of three layers and totals", f"{ours_ms:.1f} ms", "100 ms"),
            ("one flush, worst", f"{max(ours):.1f} ms", ""),
            ("the same as plain rows, interleaved", f"{theirs_ms:.1f} ms ({ours_ms / theirs_ms:.1f}x)", ""),
            (f"a {DAYS}-day report by user", f"{report_s:.2f} s", "2 s"),
            ("memory of this program, peak", f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB", ""),
        ],
    )
    raw_mb = raw_bytes * 86_400 / 10 / 1e6
    usual, widest = growth(USUAL_PAIRS, *sizes), growth(pairs, *sizes)
    show(
        "Growth of the file",
        ("node", "days and hours add", "minutes hold, at most", "plain rows would add"),
        [
            (f"three owners a GPU ({USUAL_PAIRS} pairs)", *usual, f"{raw_mb * USUAL_PAIRS / pairs:.0f} MB a day"),
            (f"{OWNERS} owners a GPU ({pairs} pairs)", *widest, f"{raw_mb:.0f} MB a day"),
        ],
    )


if __name__ == "__main__":
    main()
