"""Kills a process that writes the ledger, repeatedly, and checks the file after each. A separate program: it forks.

    python crash_rounds.py FILE ROUNDS SEED

The child bills samples one virtual second apart through the real Accounts and its writer thread, and records its
progress in shared memory. It is never ahead of the writer by more than one flush, as in real time.

Each record is one aligned number of 8 bytes: a kill leaves the old value or the new one. `struct.pack_into` zeroes the
bytes before it writes them.
"""

import json
import mmap
import os
import random
import signal
import sqlite3
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from gpucommons.agent.accounts import Accounts
from gpucommons.base.processes import boot_id
from gpucommons.config.accounts import LedgerSettings
from gpucommons.config.settings import Settings
from gpucommons.ledger.integrate import NS
from gpucommons.model.accounts import OwnerKey
from gpucommons.model.allocations import WHOLE_SHARE, Account, Holding, Slot, SlotUsage, UsageSample

FLUSH_S = 10
EPOCH_S = 1_800_000_000
ALICE, BOB = Account("user", "alice", user="alice", group="lab"), Account("user", "bob", user="bob")
SLOTS = [Slot("GPU-0", "GPU-0", "0"), Slot("MIG-0", "GPU-1", "1.0", 3, 7)]
USAGE = (
    SlotUsage(SLOTS[0], (Holding(ALICE, WHOLE_SHARE, True, 500_000, 1 << 30, 300_000),)),
    SlotUsage(SLOTS[1], tuple(Holding(a, WHOLE_SHARE // 2, False, 0, 1 << 20, 50_000) for a in (ALICE, BOB))),
)


class Progress(NamedTuple):
    """The last time that the child billed, and the value of alice's counter that it published."""

    observed_ns: int
    served_ns: int


OBSERVED, SERVED = range(2)


def play(path: Path, begin_s: int, shared: "memoryview[int]") -> None:
    accounts = Accounts(replace(Settings(), ledger=LedgerSettings(file=str(path), flush_s=FLUSH_S)), None)
    now_s = begin_s
    while True:
        # Recorded first: the writer may be faster than this thread.
        shared[OBSERVED] = now_s * NS
        accounts.bill(UsageSample(now_s * NS, EPOCH_S + now_s, USAGE))
        served = (accounts.ledger_reading().totals or {}).get(OwnerKey("user", "alice", ""))
        shared[SERVED] = served.held_ns if served else 0
        if (now_s - begin_s) % FLUSH_S == 0 and now_s > begin_s:
            while accounts.ledger_reading().ledger.last_flush_wall_s != EPOCH_S + now_s:
                time.sleep(0.0002)
        now_s += 1


def one_round(path: Path, begin_s: int, delay_s: float, shared: "memoryview[int]") -> Progress:
    shared[OBSERVED], shared[SERVED] = begin_s * NS, 0
    child = os.fork()
    if child == 0:
        try:
            play(path, begin_s, shared)
        finally:
            os._exit(1)
    time.sleep(delay_s)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the child ended by itself"
    return Progress(shared[OBSERVED], shared[SERVED])


class Durable(NamedTuple):
    alice_ns: int
    watched_ns: int
    gap_ns: int
    last_ns: int


def checked(path: Path) -> Durable:
    """The sums of the file, after checking that its tables agree."""
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    if not connection.execute("PRAGMA user_version").fetchone()[0]:
        return Durable(0, 0, 0, 0)
    columns = "sum(held_ns), sum(active_ns), sum(idle_ns), sum(equivalent_ns), sum(sm_ns), sum(energy_uj)"
    sums = {
        tuple(connection.execute(f"SELECT {columns} FROM {table}").fetchone())
        for table in ("usage_minute", "usage_hour", "usage_day", "totals")
    }
    assert len(sums) == 1, f"the layers differ: {sums}"
    times = {
        tuple(connection.execute(f"SELECT sum(held_ns), sum(free_ns) FROM time_{layer}").fetchone())
        for layer in ("minute", "hour", "day")
    }
    assert len(times) == 1, f"the layers differ: {times}"
    held, free = times.pop()
    assert held == sums.pop()[0], "what the slots were held is what the accounts hold"
    assert not free, "both slots are always held in full"
    (alice,) = connection.execute("SELECT ifnull(sum(held_ns), 0) FROM totals WHERE owner = 'alice'").fetchone()
    (gaps,) = connection.execute("SELECT ifnull(sum(ns), 0) FROM gaps WHERE reason = 'restart'").fetchone()
    (last,) = connection.execute("SELECT ifnull(max(last_monotonic_ns), 0) FROM runs").fetchone()
    connection.close()
    return Durable(alice, (held or 0) // 2, gaps, last)


def main(path: Path, rounds: int, seed: int) -> None:
    assert boot_id(), "needs a system with a boot id"
    luck = random.Random(seed)
    shared = memoryview(mmap.mmap(-1, 16)).cast("q")
    virtual_s, first_s, max_lost_s, wrote, before = 1000, None, 0.0, 0, Durable(0, 0, 0, 0)
    for _ in range(rounds):
        progress = one_round(path, virtual_s, luck.uniform(0.0, 0.06), shared)
        after = checked(path) if path.exists() else before
        observed_ns = progress.observed_ns - virtual_s * NS
        durable_ns = after.watched_ns - before.watched_ns
        assert durable_ns % (FLUSH_S * NS) == 0, "half a flush is on the disk"
        assert 0 <= durable_ns <= observed_ns, "an interval is counted twice"
        lost_s = (observed_ns - durable_ns) / NS
        assert lost_s <= FLUSH_S, f"{lost_s} s are lost, a flush is {FLUSH_S} s"
        assert after.alice_ns >= progress.served_ns, "a counter that was served went back"
        if after.last_ns:
            first_s = virtual_s if first_s is None else first_s
            assert after.watched_ns + after.gap_ns == after.last_ns - first_s * NS, "time is missing or made"
        max_lost_s, wrote = max(max_lost_s, lost_s), wrote + bool(durable_ns)
        before = after
        virtual_s = max(virtual_s, progress.observed_ns // NS) + luck.randrange(1, 100)
    json.dump({"rounds": rounds, "rounds_that_wrote": wrote, "max_lost_s": max_lost_s}, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
