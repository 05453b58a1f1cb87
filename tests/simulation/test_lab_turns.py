"""The turns of the lab: one client at a time, every client eventually, and counters that never decrease."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucommons.model.sharing import HistogramReading, SharingReading
from gpucommons.simulation.day import DAY_S
from gpucommons.simulation.lab_gpus import LabGpus
from gpucommons.simulation.lab_jobs import JOBS
from gpucommons.simulation.lab_sharing import SHARED_GPUS, LabSharing

GPUS = LabGpus(1.7e9)
SHARING = LabSharing(GPUS)
times = st.floats(0, 3 * DAY_S)


@given(times)
def test_one_client_runs_and_the_others_have_a_reason(elapsed_s: float) -> None:
    reading = SHARING.at(elapsed_s)
    assert reading == LabSharing(GPUS).at(elapsed_s)
    for gpu in reading.gpus:
        clients = [client for client in reading.clients if client.gpu_uuid == gpu.uuid]
        running = [client for client in clients if client.standing == "running"]
        assert [client.client_id for client in running] == list(gpu.running)
        assert len(running) == 1
        assert {*gpu.running, *gpu.request_queue} == {client.client_id for client in clients}
        assert gpu.running_memory_bytes == running[0].allocated_bytes <= gpu.running_managed_peak_bytes
        for client in clients:
            assert (client.wait is None) == (client.standing == "running") == (client.turn_s is not None)
            assert client.wait is None or client.wait.reason == ("quota" if client.throttled else "turn")
            assert client.wait is None or min(client.wait.waited_s, client.wait.expected_s or 0.0) >= 0
            assert 0 <= client.window_usage_s <= client.window_limit_s + 1e-6
            assert client.memory_quota_bytes == 0 or client.allocated_bytes <= client.memory_quota_bytes
        waiting = sorted(client.wait.ahead for client in clients if client.wait and not client.throttled)
        assert waiting == list(range(len(waiting)))


def test_the_turns_change_and_a_quota_is_spent_now_and_then() -> None:
    readings = [SHARING.at(float(second)) for second in range(40)]
    assert {gpu.index for gpu in readings[0].gpus} == set(SHARED_GPUS)
    assert {id for reading in readings for gpu in reading.gpus for id in gpu.running} == {
        client.client_id for client in readings[0].clients
    }
    assert 0 < sum(any(client.throttled for client in reading.clients) for reading in readings) < len(readings)


def counters(reading: SharingReading) -> Iterator[float]:
    for client in reading.clients:
        yield from (client.turns, client.billed_s)
    for gpu in reading.gpus:
        yield gpu.busy_seconds
        yield from gpu.drop_lock.values()
        for each in (gpu.wait_seconds, gpu.turn_seconds, gpu.drain_seconds):
            yield from cumulative(each)
    yield from cumulative(reading.handoff_seconds)
    for counts in (reading.messages, reading.disconnects, reading.refusals):
        yield from counts.values()


def cumulative(reading: HistogramReading) -> Iterator[float]:
    assert list(reading.counts) == sorted(reading.counts)
    assert len(reading.counts) == len(reading.bounds) + 1
    yield from (*reading.counts, reading.sum)


@given(st.lists(times, min_size=2, max_size=20))
def test_counters_never_go_back(instants: list[float]) -> None:
    readings = [list(counters(SHARING.at(elapsed_s))) for elapsed_s in sorted(instants)]
    for earlier, later in pairwise(readings):
        assert all(new >= old for old, new in zip(earlier, later, strict=True))


@pytest.mark.long
@given(times)
@settings(max_examples=10)
def test_a_waiting_client_is_idle_and_the_driver_shows_what_it_reports(elapsed_s: float) -> None:
    seen = {p.pid: p for gpu in GPUS.at(elapsed_s).gpus for p in gpu.processes or ()}
    jobs = {job.key.pid: job for job in JOBS}
    for client in SHARING.at(elapsed_s).clients:
        assert client.nvml_bytes == seen[client.pid].used_memory_bytes
        assert client.standing == "running" or jobs[client.pid].activity(elapsed_s) == 0.0
        assert client.gpu_index == jobs[client.pid].gpu
