"""How much of a randomly damaged ledger is in the new one: held time by layer, for each kind of damage."""

import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

from bench.table import show
from gpucommons.ledger.errors import LedgerError
from gpucommons.ledger.recovery import recover
from ledger.damage import KINDS, damaged
from ledger.test_recovery import is_corrupt, write_days

FILES = 200
TABLES = ("usage_minute", "usage_hour", "usage_day", "totals")


def sums(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        return [connection.execute(f"SELECT ifnull(sum(held_ns), 0) FROM {name}").fetchone()[0] for name in TABLES]


def recovered_part(content: bytes, expected: list[int]) -> tuple[list[float], float] | None:
    """The part of each table's sum that is in the new ledger, and the seconds; None if the file is not set aside."""
    with tempfile.TemporaryDirectory() as name:
        path, new = Path(name) / "ledger.sqlite", Path(name) / "new"
        path.write_bytes(content)
        if not is_corrupt(path):
            return None
        begun_s = time.monotonic()
        try:
            recover(path, new, Path(name) / "copy")
            found = sums(new)
        except LedgerError:
            found = [0] * len(TABLES)
        taken_s = time.monotonic() - begun_s
        return [have / full for have, full in zip(found, expected, strict=True)], taken_s


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        whole = Path(name) / "whole.sqlite"
        write_days(whole)
        content, expected = whole.read_bytes(), sums(whole)
    rows: list[list[object]] = []
    times: list[float] = []
    for kind in KINDS:
        tried = [recovered_part(damaged(content, kind, seed), expected) for seed in range(FILES)]
        parts = [each[0] for each in tried if each is not None]
        times += [each[1] for each in tried if each is not None]
        means = [f"{statistics.mean(min(1.0, part[at]) for part in parts):.2%}" for at in range(len(TABLES))]
        equal, too_high = sum(part[2] == 1.0 for part in parts), sum(part[2] > 1.0 for part in parts)
        rows.append([kind, FILES, len(parts), *means, equal, too_high])
    header = ["damage", "files", "set aside", "minutes", "hours", "days", "counters", "days equal", "days too high"]
    show("Recovered of damaged ledgers", header, rows)
    print(f"one recovery: {statistics.median(times):.2f} s (median), at most {max(times):.2f} s")


if __name__ == "__main__":
    main()
