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


def main() -> None:
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        whole = directory / "whole.sqlite"
        write_days(whole)
        content, expected, times = whole.read_bytes(), sums(whole), []
        for kind in KINDS:
            parts: list[list[float]] = []
            for seed in range(FILES):
                path = directory / f"{seed}.sqlite"
                path.write_bytes(damaged(content, kind, seed))
                if not is_corrupt(path):
                    continue
                begun_s = time.monotonic()
                try:
                    recover(path, directory / f"{seed}.new", directory / f"{seed}.copy")
                    found = sums(directory / f"{seed}.new")
                except LedgerError:
                    found = [0] * len(TABLES)
                times.append(time.monotonic() - begun_s)
                parts.append([have / full for have, full in zip(found, expected, strict=True)])
            means = [f"{statistics.mean(min(1.0, part[at]) for part in parts):.2%}" for at in range(len(TABLES))]
            equal = sum(part[2] == 1.0 for part in parts)
            rows.append([kind, FILES, len(parts), *means, equal, sum(part[2] > 1.0 for part in parts)])
    header = ["damage", "files", "corrupt", "minutes", "hours", "days", "counters", "days equal", "days too high"]
    show("Recovered of damaged ledgers", header, rows)
    print(f"one recovery: {statistics.median(times):.2f} s (median), at most {max(times):.2f} s")


if __name__ == "__main__":
    main()
