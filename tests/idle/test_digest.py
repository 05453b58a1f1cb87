"""The weekly digest: when it is due, and that its numbers are those of the accounts."""

import asyncio
import json
import math
import time
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attribution.builders import gpu
from gpucommons.agent.accounts import Accounts
from gpucommons.agent.idle.holders import weekly_digest
from gpucommons.config.accounts import EventsSettings, LedgerSettings
from gpucommons.config.settings import SamplingSettings, Settings
from gpucommons.idle.messages import DigestSchedule, LostGpu, digest_due, digest_text
from gpucommons.model.accounts import Amounts, PeriodAccounts, SlotTime
from gpucommons.model.events import Event, format_line
from gpucommons.model.words import By
from gpucommons.owners.holding_stage import AllocationStage
from holding.test_allocations import managed, process, readings
from played import snapshot_of
from running import command

MONDAY_8 = DigestSchedule(0, 8)
HOUR_NS = 3600 * 10**9


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_it_is_due_once_at_its_hour_and_late_if_no_agent_ran() -> None:
    """16 November 2026 is a Monday."""
    week, due = digest_due("", at("2026-11-11 12:00"), MONDAY_8)
    assert (week, due) == ("2026-11-09", False), "no whole week has been seen"
    assert digest_due(week, at("2026-11-16 07:59"), MONDAY_8) == (week, False)
    assert digest_due(week, at("2026-11-16 08:00"), MONDAY_8) == ("2026-11-16", True)
    assert digest_due("2026-11-16", at("2026-11-16 08:01"), MONDAY_8) == ("2026-11-16", False)
    assert digest_due(week, at("2026-11-18 23:00"), MONDAY_8) == ("2026-11-16", True), "late"


def test_a_clock_that_was_set_back_neither_repeats_nor_stops_it() -> None:
    assert digest_due("2026-11-16", at("2026-11-12 12:00"), MONDAY_8) == ("2026-11-16", False)
    week, due = digest_due("2036-11-17", at("2026-11-16 12:00"), MONDAY_8)
    assert (week, due) == ("2026-11-16", False)
    assert digest_due(week, at("2026-11-23 09:00"), MONDAY_8)[1]


@given(
    st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1)),
    st.lists(st.integers(1, 5000), max_size=100),
    st.integers(0, 6),
    st.integers(0, 23),
)
def test_one_digest_for_each_week(start: datetime, minutes: list[int], weekday: int, hour: int) -> None:
    schedule, now = DigestSchedule(weekday, hour), start
    last, _ = digest_due("", now, schedule)
    sent = []
    for step in minutes:
        now += timedelta(minutes=step)
        last, due = digest_due(last, now, schedule)
        if due:
            sent.append(now)
    whole_weeks = (now - start).total_seconds() / (7 * 86_400)
    assert whole_weeks - 1 <= len(sent) <= whole_weeks + 1
    assert len({digest_due("", each, schedule)[0] for each in sent}) == len(sent)


def accounts(rows: dict[str, Amounts], by: By = By.USER, time: SlotTime | None = None) -> PeriodAccounts:
    slots = None if time is None else {"0 GPU-0": time}
    return PeriodAccounts(by, 1_794_000_000, 1_794_604_800, rows, slots)


def test_the_text_has_the_sums_and_the_most_wasteful_first() -> None:
    rows = {
        f"user{number}": Amounts(held_ns=20 * HOUR_NS, active_ns=(20 - number) * HOUR_NS, idle_ns=number * HOUR_NS)
        for number in range(8)
    }
    rows["hostile\x1b[2J\nname"] = Amounts(held_ns=100 * HOUR_NS, idle_ns=90 * HOUR_NS)
    by_gpu = accounts({}, By.GPU, SlotTime(260 * HOUR_NS, 76 * HOUR_NS, HOUR_NS))
    lost = [LostGpu("3", 1_794_100_000), LostGpu("3", 1_794_200_000), LostGpu("1", 1_794_300_000)]
    text = digest_text("gpu1", accounts(rows), by_gpu, lost, Counter({"idle.notified": 12, "idle.acted": 1}))
    lines = text.splitlines()
    assert lines[1] == "held 260.0 h, active 132.0 h, wasted (held and idle) 118.0 h (45%), not judged 10.0 h"
    assert lines[2] == "free 76.0 h, not known 1.0 h"
    assert lines[3] == "Most wasted:"
    assert lines[4] == "  hostile\\x1b[2J\\nname: 90.0 h of 100.0 h held (90%)"
    assert [line.split(":")[0].strip() for line in lines[5:9]] == ["user7", "user6", "user5", "user4"]
    assert lines[9].startswith("GPUs lost: GPU 1 (")
    assert "GPU 3 (2 times, last " in lines[9]
    assert lines[10] == "Idle holders: 12 messages, 0 reminders, 1 actions, 0 failures."


def test_a_week_without_use() -> None:
    text = digest_text("gpu1", accounts({}), accounts({}, By.GPU), [], Counter())
    assert "held 0.0 h, active 0.0 h, wasted (held and idle) 0.0 h\n" in text
    assert "Nothing was wasted.\nNo GPU was lost." in text


def test_events_of_other_weeks_do_not_count_and_a_damaged_ledger_is_said(tmp_path: Path) -> None:
    now_s, log, ledger = 1_794_604_800.0, tmp_path / "events.jsonl", tmp_path / "ledger.sqlite"
    days = {"2": 8, "3": 2, "4": -1}
    log.write_bytes(
        b"".join(
            format_line(Event(now_s - ago * 86_400, "gpu.lost", details={"gpu": gpu})) for gpu, ago in days.items()
        )
    )
    text = weekly_digest(ledger, log, "gpu1", now_s)
    assert "GPUs lost: GPU 3 (" in text
    assert "GPU 2" not in text
    assert "GPU 4" not in text
    ledger.write_bytes(b"not a ledger" * 100)
    assert weekly_digest(ledger, log, "gpu1", now_s).startswith("The accounts of gpu1 cannot be read: ")


def test_its_figures_are_those_of_the_report(tmp_path: Path) -> None:
    """Half an hour on two GPUs, by snapshots: alice holds one idle, bob uses the other. Then the report itself."""
    ledger, log = tmp_path / "ledger.sqlite", tmp_path / "events.jsonl"
    settings = replace(
        Settings(),
        ledger=LedgerSettings(file=str(ledger)),
        events=EventsSettings(own_file=str(log)),
        sampling=SamplingSettings(interval_s=60.0),
    )
    idle, busy = managed("idle", "alice", "0"), managed("busy", "bob", "1")
    given = readings(idle, busy, gpus=(gpu(0), gpu(1)), processes=[process(busy, gpu_index=1)])
    now_s = math.floor(time.time())
    billed = Accounts(settings, None)
    asyncio.run(billed.start())
    stage = AllocationStage()
    for second in range(0, 1801, 60):
        billed.observe(snapshot_of(stage(given), float(second), wall_s=now_s - 1800.0))
    asyncio.run(billed.stop())
    lines = weekly_digest(ledger, log, "gpu1", now_s).splitlines()
    assert lines[1] == "held 1.0 h, active 0.5 h, wasted (held and idle) 0.5 h (50%)"
    assert lines[4] == "  alice: 0.5 h of 0.5 h held (100%)"
    files = {"GPUCOMMONS_LEDGER_FILE": str(ledger), "GPUCOMMONS_EVENTS_OWN_FILE": str(log)}
    report = json.loads(command("report", "--since", "7d", "--json", environment=files).stdout)["accounts"]["7d"]
    hours = {kind: report["total"][f"{kind}_gpu_hours"] for kind in ("held", "active", "idle")}
    assert hours == pytest.approx({"held": 1.0, "active": 0.5, "idle": 0.5})
