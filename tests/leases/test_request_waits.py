"""Which slots a waiting request waits for, and the line that `gpucommons run` shows meanwhile."""

import pytest

from gpucommons.base.text import memory_text, parse_gpu_memory
from gpucommons.cli.lease_view import waiting_line
from gpucommons.leases.policy.plan import blockers_of
from gpucommons.model.allocations import (
    WHOLE_SHARE,
    Account,
    Allocation,
    AllocationState,
    Slot,
    SlotState,
    SlotStatus,
    WorkloadKind,
)
from gpucommons.model.leases import Lease, LeaseRequest, LeaseWait, WaitCause


def _held(name: str, user: str, idle_s: float | None, kind: WorkloadKind = WorkloadKind.PROCESS) -> SlotStatus:
    slot = Slot(f"GPU-{name}", f"GPU-{name}", name)
    account = Account("user", user, user=user)
    state = AllocationState.RUNNING
    holder = Allocation(account, kind, "x", "x", slot, "", WHOLE_SHARE, state, "", kind is WorkloadKind.LEASE)
    busy = SlotState.BUSY if idle_s is None else SlotState.HELD_IDLE
    return SlotStatus(slot, int(name), "", busy, holders=(holder,), idle_s=idle_s)


def test_a_request_waits_for_the_slots_that_fit_and_are_held_with_or_without_a_lease() -> None:
    statuses = {
        "GPU-0": _held("0", "ann", None),
        "GPU-3": _held("3", "emeka", 120.0),
        "GPU-5": _held("5", "bob", 40.0),
        "GPU-6": SlotStatus(Slot("GPU-6", "GPU-6", "6"), 6, "", SlotState.FREE),
    }
    fitting = {"GPU-0": "0", "GPU-3": "3", "GPU-6": "6", "GPU-7": "7"}
    granted = Lease(LeaseRequest(1, "farah", 0.0, id="1"), ("GPU-7",), 1.0, 0.0)
    found = blockers_of(fitting, statuses, [granted])
    assert [(each.slot, each.users, each.idle_s, each.leased) for each in found] == [
        ("3", ("emeka",), 120.0, False),
        ("0", ("ann",), None, False),
        ("7", ("farah",), None, True),
    ], "GPU 5 does not fit, GPU 6 is free; the longest idle comes first"
    wait = LeaseWait(1, WaitCause.BUSY, blockers=found)
    assert wait.sentence == "GPU 3 is held by emeka, idle for 2 min; 2 more that fit are in use"
    assert LeaseWait(1, WaitCause.BUSY).sentence == "every GPU that fits is in use"
    assert LeaseWait(1, WaitCause.KEPT, blockers=found).sentence.startswith("the free GPUs are kept")


@pytest.mark.parametrize("width", [40, 60, 79, 120])
@pytest.mark.parametrize("waited_s", [0.0, 42.0, 7200.0])
@pytest.mark.parametrize("expected_s", [None, 25.0, 90_000.0])
def test_the_line_of_a_waiting_run_fits_the_terminal_and_says_how_to_leave(
    width: int, waited_s: float, expected_s: float | None
) -> None:
    sentence = "GPU 3 is held by a-long-user-name, idle for 2 min; 12 more that fit are in use"
    line = {"position": 12, "of": 15, "sentence": sentence, "expected_s": expected_s}
    text = waiting_line(line, waited_s, width)
    assert text.endswith("(Ctrl-C leaves)")
    assert len(text) <= width or ":" not in text, "the place and how to leave stay"
    if width >= 79:
        assert len(text) <= width
    if expected_s == 25.0 and width == 120:
        assert "start in about 25 s: GPU 3 is held by" in text


def test_the_line_names_the_holder_and_the_idle_time_in_80_columns() -> None:
    sentence = "GPU 6.1 is held by chen, idle for 1 h 1 min; 16 more that fit are in use"
    line = {"position": 3, "of": 3, "sentence": sentence, "expected_s": 81.0}
    text = waiting_line(line, 9.0, 79)
    assert text == "waiting 9 s, 3 of 3, about 81 s: GPU 6.1: chen, idle 1 h 1 min (Ctrl-C leaves)"


def test_memory_without_a_unit_is_refused() -> None:
    assert parse_gpu_memory("1T") == 10**12
    assert parse_gpu_memory("1.5Ti") == 3 << 39
    with pytest.raises(ValueError, match="'20' is 20 bytes: add a unit, such as 20G for 20 GB"):
        parse_gpu_memory("20")


def test_an_amount_is_shown_in_the_unit_that_was_asked_for() -> None:
    assert memory_text(20 * 10**9) == "20 GB"
    assert memory_text(20 << 30) == "20 GiB"
    assert memory_text(140 << 30, 200 * 10**9) == "150.3 GB"
    assert memory_text(1500 * 10**6) == "1.5 GB"
    assert memory_text(parse_gpu_memory("1T")) == "1 TB"
    assert memory_text(parse_gpu_memory("1Ti")) == "1 TiB"
    assert memory_text(150 * 10**9, 10**12) == "150 GB"


@pytest.mark.parametrize(
    ("asked", "shown", "of_the_gpu", "used"),
    [
        ("512M", "512 MB", "150.3 GB", "300 MB"),
        ("512Mi", "512 MiB", "140 GiB", "286.1 MiB"),
        ("1500M", "1.5 GB", "150.3 GB", "0.3 GB"),
        ("20.25G", "20.25 GB", "150.3 GB", "0.3 GB"),
        ("24Gi", "24 GiB", "140 GiB", "0.3 GiB"),
        ("1.5T", "1.5 TB", "150.3 GB", "0.3 GB"),
        ("1.5Ti", "1.5 TiB", "140 GiB", "0.3 GiB"),
        ("40960Mi", "40 GiB", "140 GiB", "0.3 GiB"),
    ],
)
def test_what_was_measured_has_the_unit_of_what_was_asked_for(
    asked: str, shown: str, of_the_gpu: str, used: str
) -> None:
    asked_bytes = parse_gpu_memory(asked)
    assert memory_text(asked_bytes) == shown
    assert memory_text(140 << 30, asked_bytes) == of_the_gpu
    assert memory_text(300 * 10**6, asked_bytes) == used
