"""Attacks on the ledger: kills, a full disk, a jumping clock, damaged files."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

from adversary.budget import Budget
from gpucommons.ledger.backup import back_up, replace_damaged
from gpucommons.ledger.integrate import NS, Batch, Integrator, Moment
from gpucommons.ledger.query import read_period, read_totals
from gpucommons.ledger.writer import LedgerWriter
from gpucommons.model.allocations import UsageSample
from ledger import crash_rounds
from ledger.builders import ALICE, BOB, batch, moment, sample
from ledger.damage import damaged_at_random
from ledger.test_backup import held_ns, is_corrupt, write_days
from ledger.test_writer import fill, tmpfs
from running import running_agent
from waiting import until

_LAYERS = ("usage_minute", "usage_hour", "usage_day", "totals")


def kills_of_the_writer(directory: Path, budget: Budget) -> Counter[str]:
    """kill -9 of a process that bills as fast as it can; the file is checked after each."""
    counts: Counter[str] = Counter()
    source = Path(__file__).resolve().parents[2] / "src"
    for number in budget:
        seed = str(budget.dice.getrandbits(30))
        done = subprocess.run(
            [sys.executable, crash_rounds.__file__, directory / f"{number}.sqlite", "30", seed],
            env={**os.environ, "PYTHONPATH": str(source)},
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        counts["kills"] += found["rounds"]
        counts["kills during writes"] += found["rounds_that_wrote"]
    return counts


def kills_of_the_agent(directory: Path, budget: Budget) -> Counter[str]:
    """kill -9 of the whole agent, which flushes each second; its next start continues the same ledger."""
    counts: Counter[str] = Counter()
    ledger, before = directory / "ledger-lab.sqlite", 0
    environment = {"STATE_DIRECTORY": str(directory), "GPUCOMMONS_LEDGER_FLUSH_S": "1"}
    for _ in budget:
        with running_agent("--simulate", "lab", environment=environment) as agent:
            until(ledger.exists, "a ledger")
            until(lambda before=before: _billed_ns(ledger) > before, "a flush")  # type: ignore[misc]
            agent.process.send_signal(signal.SIGKILL)
            agent.process.wait()
        assert not [line for line in agent.lines if "error" in line]
        before = _billed_ns(ledger)
        assert_layers_agree(ledger)
        counts["kills"] += 1
    return counts


def _billed_ns(path: Path) -> int:
    try:
        with closing(sqlite3.connect(path)) as connection:
            return int(connection.execute("SELECT ifnull(sum(held_ns), 0) FROM totals").fetchone()[0])
    except sqlite3.Error:
        return 0


def assert_layers_agree(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        sums = {connection.execute(f"SELECT sum(held_ns), sum(energy_uj) FROM {name}").fetchone() for name in _LAYERS}
    assert len(sums) == 1, sums


def full_disks(directory: Path, budget: Budget) -> Counter[str]:
    """A disk of 8 MB that is filled and freed at random; in the end everything is on it, once.

    It has room for the write-ahead log, which SQLite lets grow to 4 MB.
    """
    counts: Counter[str] = Counter()
    with tmpfs(directory / "disk", "size=8m") as disk:
        path, ballast = disk / "ledger.sqlite", disk / "ballast"
        writer = LedgerWriter(path)
        writer.start(moment(0))
        for number in budget:
            if budget.dice.random() < 0.2:
                fill(ballast) if not ballast.exists() else ballast.unlink()
                counts["fills and frees"] += 1
            _flush(writer, batch(1, budget.dice.choice((ALICE, BOB))), moment(number + 1))
            counts["flushes"] += 1
        ballast.unlink(missing_ok=True)
        for _ in range(3):
            _flush(writer, batch(0), moment(counts["flushes"] + 1))
        assert writer.state.writing
        assert writer.close(20)
        counts["refused by the disk"] = sum(writer.state.failures.values())
        assert set(writer.state.failures) <= {"full", "io_error"}
        assert_layers_agree(path)
        billed_ns = sum(totals.amounts.held_ns for totals in read_totals(path).values())
        assert billed_ns == (counts["flushes"] - writer.state.lost_s) * NS
    return counts


def _flush(writer: LedgerWriter, billed: Batch, at: Moment) -> None:
    """Submit a batch and wait until the thread has tried to write it."""
    before = writer.published
    writer.submit(billed, at)
    until(lambda: writer.published is not before, "the flush is tried")


def clock_jumps(directory: Path, budget: Budget) -> Counter[str]:
    """A wall clock that jumps by up to 20 years, both ways: every second is billed once, and nothing is pruned."""
    counts: Counter[str] = Counter()
    dice, path = budget.dice, directory / "ledger.sqlite"
    integrator, writer = Integrator(longest_gap_s=5.0), LedgerWriter(path)
    offset_s, after_s = 0, 0
    writer.start(moment(0))
    integrator.step(sample(0, ALICE))
    for number in budget:
        if dice.random() < 0.2:
            offset_s = dice.choice((0, 3600, -3600, 86_400 * 365 * 20, -86_400 * 365 * 20))
            counts["jumps"] += 1
        after_s += 1
        now = sample(after_s, ALICE)
        integrator.step(UsageSample(now.monotonic_ns, now.wall_s + offset_s, now.slots))
        if number % 10 == 9:
            # One after the other: what waits for an hour of this clock would be dropped.
            _flush(writer, integrator.take(), moment(after_s, now.wall_s + offset_s))
    writer.submit(integrator.take(), moment(after_s))
    assert writer.close(60)
    counts["seconds"] = after_s
    assert writer.state.failures == {}
    assert_layers_agree(path)
    assert sum(totals.amounts.held_ns for totals in read_totals(path).values()) == after_s * NS
    assert sum(amounts.held_ns for amounts in read_period(path, 0, 10**10).usage.values()) == after_s * NS
    return counts


def damaged_ledgers(directory: Path, budget: Budget) -> Counter[str]:
    """Random damage to a ledger: it opens, or it is set aside and its backup takes its place."""
    counts: Counter[str] = Counter()
    whole, path = directory / "whole.sqlite", directory / "ledger.sqlite"
    write_days(whole)
    content, expected = whole.read_bytes(), held_ns(whole)
    path.write_bytes(content)
    back_up(path, 0.0)
    for _ in budget:
        path.write_bytes(damaged_at_random(content, budget.dice.getrandbits(60)))
        counts["files"] += 1
        if not is_corrupt(path):
            counts["usable as they are"] += 1
            path.unlink()
            continue
        aside, _ = replace_damaged(path, 0.0)
        assert held_ns(path) == expected
        counts["restored"] += 1
        aside.unlink()
        path.unlink()
    return counts
