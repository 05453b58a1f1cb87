"""The processes of a GPU: merged lists, unknown memory is missing, implausible utilisation is dropped."""

import ctypes
import struct
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fakes.nvml.control import GRAPHICS, MPS, process, usage
from fakes.nvml.rig import Rig
from gpucommons.base.processes import start_ticks
from gpucommons.model.gpu import GpuProcess
from gpucommons.model.process_identity import ProcessKey
from gpucommons.sources.nvml.processes import (
    FUTURE_AFTER_US,
    Entry,
    ProcessList,
    ProcessRows,
    ProcessSample,
    StartTimes,
    UsageWindow,
)

GIB = 2**30
UUID = "GPU-3ea3f955-c0e4-1497-8afd-c9836cb19860"


def processes(rig: Rig, after_s: float = 1.0) -> dict[int, GpuProcess]:
    found = rig.gpu(after_s=after_s).processes
    assert found is not None
    return {row.pid: row for row in found}


def test_the_recorded_process(rig: Rig) -> None:
    rig.fake.say("recording busy")
    rig.process(408, 777)
    row = processes(rig)[408]
    assert row.key == ProcessKey(408, 777)
    assert (row.kind, row.used_memory_bytes) == ("compute", 1413480448)
    assert (row.sm_percent, row.memory_percent, row.encoder_percent, row.decoder_percent) == (90, 27, 0, 0)
    assert (row.gpu_instance_id, row.compute_instance_id) == (None, None)


def test_the_lists_are_merged(rig: Rig) -> None:
    rig.fake.say(
        process(0, 10, GIB),
        process(0, 11, 2 * GIB),
        process(0, 11, 3 * GIB, kind=GRAPHICS),
        process(0, 12, GIB, kind=MPS),
        process(0, 13, GIB, kind=GRAPHICS),
    )
    found = processes(rig)
    assert {pid: row.kind for pid, row in found.items()} == {
        10: "compute",
        11: "compute+graphics",
        12: "mps",
        13: "graphics",
    }
    assert found[11].used_memory_bytes == 3 * GIB, "the same memory in two lists is not twice as much"


def rows_of(*lists: ProcessList, usage: dict[int, ProcessSample], rows: ProcessRows) -> tuple[GpuProcess, ...]:
    for one in lists:
        assert one.invoke() == 0
    found = rows.read([(1 << bit, one) for bit, one in enumerate(lists)], lambda: usage, None, lambda reason: None)
    assert found is not None
    return found


# pid, used memory, GPU instance, compute instance
entries = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2), st.integers(0, 1), st.just(0)), max_size=4)
usages = st.dictionaries(st.integers(1, 4), st.tuples(st.integers(0, 9), *[st.integers(0, 2)] * 4))


@given(st.lists(st.tuples(entries, entries, usages)))
def test_kept_rows_equal_new_ones_after_any_changes(
    passes: list[tuple[list[Entry], list[Entry], dict[int, ProcessSample]]],
) -> None:
    listed: tuple[list[Entry], list[Entry]] = ([], [])

    def function(handle: int, count: Any, buffer: Any) -> int:
        data = b"".join(struct.pack("=I4xQII", *entry) for entry in listed[handle])
        ctypes.memmove(buffer, data, len(data))
        count._obj.value = len(listed[handle])
        return 0

    lists, keys = [ProcessList(function, True, handle) for handle in (0, 1)], StartTimes(Path("/nowhere"))
    kept = ProcessRows(keys)
    for computing, drawing, used in passes:
        listed = computing, drawing
        found = rows_of(*lists, usage=used, rows=kept)
        assert found == rows_of(*lists, usage=used, rows=ProcessRows(keys))
        again = rows_of(*lists, usage=used, rows=kept)
        assert all(row is same for row, same in zip(found, again, strict=True)), "unchanged rows are the same objects"


def test_an_empty_list_differs_from_a_failed_one(rig: Rig) -> None:
    assert rig.gpu().processes == ()
    rig.fake.say("fail nvmlDeviceGetComputeRunningProcesses_v3 999")
    rig.fake.say("fail nvmlDeviceGetGraphicsRunningProcesses_v3 999")
    rig.fake.say("fail nvmlDeviceGetMPSComputeRunningProcesses_v3 999")
    assert rig.gpu().processes is None
    rig.fake.unsay("fail")
    assert rig.gpu().processes == ()


def test_memory_that_is_not_available_is_missing(rig: Rig) -> None:
    rig.fake.say(process(0, 10, 2**64 - 1))
    assert processes(rig)[10].used_memory_bytes is None
    assert not rig.read().samples_dropped


def test_implausible_entries_are_dropped(rig: Rig) -> None:
    """More memory than the GPU has, or a pid above the kernel's limit: driver and binding disagree on a struct."""
    rig.fake.say(process(0, 10, 2**50), process(0, 4294967295, GIB), process(0, 0, GIB))
    reading = rig.read()
    assert [(row.pid, row.used_memory_bytes) for row in reading.gpus[0].processes or ()] == [(10, None)]
    assert reading.samples_dropped == {(UUID, "memory"): 1, (UUID, "pid"): 2}


def test_many_processes_make_the_buffers_grow(rig: Rig) -> None:
    rig.fake.say(*(process(0, 100 + n, GIB) for n in range(200)))
    rig.fake.say(*(usage(0, 100 + n, n % 100) for n in range(200)))
    found = processes(rig)
    assert len(found) == 200
    assert found[150].sm_percent == 50
    before = rig.fake.calls("nvmlDeviceGetComputeRunningProcesses_v3")
    processes(rig)
    assert rig.fake.calls("nvmlDeviceGetComputeRunningProcesses_v3") == before + 1, "asked once now"


def test_the_newest_sample_counts(rig: Rig) -> None:
    rig.fake.say(process(0, 10, GIB), usage(0, 10, 80, age_us=900_000), usage(0, 10, 30, age_us=100_000))
    rig.fake.say(usage(0, 10, 60, age_us=500_000))
    assert processes(rig)[10].sm_percent == 30


def test_implausible_samples_are_dropped_and_counted(rig: Rig) -> None:
    rig.fake.say(*(process(0, pid, GIB) for pid in (10, 11, 12, 13)))
    rig.fake.say(
        usage(0, 10, 101),
        usage(0, 11, 50, age_us=-60_000_000),
        usage(0, 12, 50, dec=300),
        usage(0, 13, 50),
    )
    reading = rig.read()
    assert {row.pid: row.sm_percent for row in reading.gpus[0].processes or ()} == {
        10: None,
        11: None,
        12: None,
        13: 50,
    }
    assert reading.samples_dropped == {(UUID, "above_100"): 2, (UUID, "future"): 1}


def test_a_sample_from_the_future_does_not_hide_later_ones(rig: Rig) -> None:
    """If its time stamp were taken as the last one, no sample would be new for a minute."""
    rig.fake.say(process(0, 10, GIB), usage(0, 10, 50, age_us=-60_000_000))
    rig.read()
    rig.fake.unsay("usage")
    rig.fake.say(usage(0, 10, 70))
    assert processes(rig)[10].sm_percent == 70


def test_a_sample_holds_until_it_is_stale(rig: Rig) -> None:
    rig.fake.say(process(0, 10, GIB), usage(0, 10, 50))
    assert processes(rig)[10].sm_percent == 50
    rig.fake.unsay("usage")
    rig.fake.say("usage 1 99 0 0 0 0 0")
    assert processes(rig)[10].sm_percent == 50, "the driver samples a little less often than we read"
    rig.read_for(4)
    assert processes(rig)[10].sm_percent is None


def test_samples_continue_after_the_clock_is_set_back(rig: Rig) -> None:
    rig.fake.say(process(0, 10, GIB), usage(0, 10, 50))
    rig.read()
    rig.clock.elapsed_s -= 3600
    rig.fake.unsay("usage")
    rig.fake.say(usage(0, 10, 70))
    assert processes(rig)[10].sm_percent == 70


def test_utilisation_is_not_called_on_an_empty_gpu(rig: Rig) -> None:
    rig.read_for(3)
    assert rig.fake.calls("nvmlDeviceGetProcessUtilization") == 0
    rig.fake.say(process(0, 10, GIB))
    rig.read_for(2)
    assert rig.fake.calls("nvmlDeviceGetProcessUtilization") == 2


def test_a_call_without_a_new_sample_is_not_a_failure(rig: Rig) -> None:
    rig.fake.say(process(0, 10, GIB))
    reading = rig.read_for(3)
    assert not reading.call_failures
    assert processes(rig)[10].sm_percent is None


def test_a_start_time_is_read_once_and_a_reused_pid_is_another_process(rig: Rig) -> None:
    rig.process(10, 100)
    rig.fake.say("gpus 2", process(0, 10, GIB), process(1, 10, GIB))
    assert processes(rig)[10].key == ProcessKey(10, 100)
    rig.process(10, 200)
    assert processes(rig)[10].key == ProcessKey(10, 100)
    rig.fake.unsay("process")
    rig.fake.say("no_processes")
    rig.read()
    rig.fake.say(process(0, 10, GIB))
    assert processes(rig)[10].key == ProcessKey(10, 200)


def test_a_pid_that_is_not_in_our_proc_has_no_key(rig: Rig) -> None:
    (rig.procfs / "11").mkdir()
    (rig.procfs / "11" / "stat").write_text("garbage")
    rig.fake.say(process(0, 10, GIB), process(0, 11, GIB))
    assert [row.key for row in processes(rig).values()] == [None, None]


@given(st.text().filter(lambda name: "\0" not in name), st.integers(0, 2**63))
def test_the_start_time_is_read_whatever_the_name_is(name: str, ticks: int) -> None:
    line = f"10 ({name}) S {'0 ' * 18}{ticks} 0 0"
    assert start_ticks(line.encode("utf-8", "surrogatepass")) == ticks


# pid; time, SM, memory, encoder, decoder
samples = st.tuples(
    st.integers(1, 3),
    st.tuples(st.integers(-20_000_000, 20_000_000), st.integers(0, 130), st.integers(0, 130), st.just(0), st.just(0)),
)


def moved(sample: ProcessSample, by_us: int) -> ProcessSample:
    time_us, *percents = sample
    return (time_us + by_us, *percents)  # type: ignore[return-value]


@given(st.lists(st.tuples(st.integers(-3_000_000, 30_000_000), st.lists(samples))))
def test_the_window_contains_only_plausible_samples(passes: list[tuple[int, list[tuple[int, ProcessSample]]]]) -> None:
    """For any time stamps of the driver and any clock steps; sample times are relative to the pass."""
    window, now_us = UsageWindow(), 10**15
    added: set[tuple[int, ProcessSample]] = set()
    for step_us, batch in passes:
        now_us += step_us
        since = window.request_since(now_us)
        assert since <= now_us + FUTURE_AFTER_US, "never requests only samples from the future"
        for pid, sample in batch:
            added.add((pid, moved(sample, now_us)))
            window.add([(pid, *moved(sample, now_us))], now_us)
        for pid, sample in window.current(now_us).items():
            idle = not any(sample[1:]) and any(pid == other and sample[0] == one[0] for other, one in added)
            assert (pid, sample) in added or idle
            assert max(sample[1:]) <= 100
            assert sample[0] >= now_us - max(5_000_000, 2 * step_us)


@given(st.lists(samples, min_size=1))
def test_of_several_samples_the_newest_wins_in_any_order(batch: list[tuple[int, ProcessSample]]) -> None:
    now_us = 10**15
    window = UsageWindow()
    window.request_since(now_us)
    moved_batch = [(pid, moved(sample, now_us)) for pid, sample in batch]
    good = [(pid, sample) for pid, sample in moved_batch if not window.add([(pid, *sample)], now_us)]
    for pid, sample in window.current(now_us).items():
        assert sample[0] == max(other[0] for other_pid, other in good if other_pid == pid)
