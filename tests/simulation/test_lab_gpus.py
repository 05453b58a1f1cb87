"""The simulated GPUs are deterministic, amounts add up, and counters only grow."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucommons.model.gpu import Gpu, GpuReading
from gpucommons.model.problems import HealthLevel
from gpucommons.rules.health import gpu_health_of
from gpucommons.simulation.day import DAY_S
from gpucommons.simulation.lab_gpus import GPUS, LabGpus
from gpucommons.simulation.lab_host import LabProcesses
from gpucommons.simulation.lab_jobs import JOBS
from gpucommons.simulation.scenarios import HOT_GPU, LOST_FROM_S, LOST_GPU, LOST_UNTIL_S, XID_BURST, XID_GPU, FaultyGpus
from unhurried import costly

START = 1_700_000_000.0
times = st.floats(0, 3 * DAY_S)


def by_index(reading: GpuReading) -> dict[int, Gpu]:
    return {gpu.identity.index: gpu for gpu in reading.gpus}


def test_eight_gpus_two_of_them_split_and_thirteen_processes() -> None:
    reading = LabGpus(START).at(100.0)
    assert (len(reading.gpus), reading.expected, reading.present) == (GPUS, 8, 8)
    assert [gpu.identity.index for gpu in reading.gpus if gpu.mig] == [6, 7]
    assert [len(gpu.mig) for gpu in reading.gpus if gpu.mig] == [4, 7]
    assert sum(len(gpu.processes or ()) for gpu in reading.gpus) == 13
    uuids = [gpu.identity.uuid for gpu in reading.gpus] + [one.uuid for gpu in reading.gpus for one in gpu.mig]
    assert len(set(uuids)) == len(uuids) == 8 + 11


@given(times, times)
@settings(max_examples=5)
def test_readings_depend_only_on_seed_and_time(elapsed_s: float, before_s: float) -> None:
    once, twice = LabGpus(START), LabGpus(START)
    twice.at(before_s)
    assert once.at(elapsed_s) == twice.at(elapsed_s)
    assert once.at(elapsed_s) != LabGpus(START, seed=21).at(elapsed_s)


@given(times)
@costly(8)
def test_memory_adds_up_and_instances_fit(elapsed_s: float) -> None:
    for gpu in LabGpus(START).at(elapsed_s).gpus:
        r = gpu.readings
        assert r.memory_used_bytes is not None
        assert r.memory_free_bytes is not None
        assert r.memory_reserved_bytes is not None
        assert r.memory_used_bytes + r.memory_free_bytes + r.memory_reserved_bytes == r.memory_total_bytes
        assert r.memory_free_bytes >= 0
        processes = gpu.processes or ()
        assert sum(p.used_memory_bytes or 0 for p in processes) < r.memory_used_bytes, "and a remainder"
        for instance in gpu.mig:
            assert instance.memory is not None
            assert 0 <= instance.memory.used_bytes <= instance.memory.total_bytes
        assert sum(p.sm_percent or 0 for p in processes) <= 150
        assert r.power_watts is not None
        assert 70 <= r.power_watts <= 700


def test_placements_are_within_the_gpu_and_do_not_overlap() -> None:
    for gpu in LabGpus(START).at(1.0).gpus:
        taken = [
            place
            for one in gpu.mig
            if one.placement_start is not None and one.placement_size is not None
            for place in range(one.placement_start, one.placement_start + one.placement_size)
        ]
        assert len(set(taken)) == len(taken)
        assert set(taken) <= set(range(8))


def test_counters_never_decrease_over_a_day() -> None:
    lab = LabGpus(START)
    readings = [by_index(lab.at(float(second))) for second in range(0, int(DAY_S) + 60, 7)]
    for index in range(GPUS):
        for field in ("energy_millijoules", "power_violation_ns"):
            values = [getattr(reading[index].readings, field) for reading in readings]
            assert all(later >= earlier for earlier, later in pairwise(values)), (index, field)
    first, last = (reading[0].readings.energy_millijoules for reading in (readings[0], readings[-1]))
    assert first is not None
    assert last is not None
    assert last > first + 600 * 300 * 1000, "a training GPU draws hundreds of watts"


def test_the_day_is_busy_and_the_night_is_not() -> None:
    lab = LabGpus(START)
    afternoon, night = by_index(lab.at(0.15 * DAY_S))[4], by_index(lab.at(0.65 * DAY_S))[4]
    assert (afternoon.readings.utilization_percent or 0) > 70
    assert (night.readings.utilization_percent or 0) < 25


def test_a_gpu_with_mig_has_no_utilisation_but_its_instances_have_gpm() -> None:
    gpu = by_index(LabGpus(START).at(60.0))[6]
    assert gpu.readings.utilization_percent is None
    assert {process.sm_percent for process in gpu.processes or ()} == {None}
    assert all(one.gpm is not None for one in gpu.mig)


def test_the_jobs_are_also_processes_of_the_host() -> None:
    table = LabProcesses(100).at(30.0)
    assert all(table.by_pid[job.key.pid].key == job.key for job in JOBS)


def test_faults_lose_a_gpu_and_restore_it() -> None:
    faulty = FaultyGpus(LabGpus(START))
    before, lost, back = (
        by_index(faulty.at(t))[LOST_GPU] for t in (LOST_FROM_S - 1, LOST_FROM_S + 1, LOST_UNTIL_S + 1)
    )
    assert (before.up, before.xid.counts) == (True, {})
    assert (lost.up, lost.down_reason, lost.since_wall_s) == (False, "gpu_is_lost", START + LOST_FROM_S)
    assert lost.identity == before.identity
    assert lost.readings.power_watts is None
    assert lost.xid.counts == {79: 1}
    assert (back.up, back.since_wall_s, back.xid.counts) == (True, START + LOST_UNTIL_S, {79: 1})
    reading = faulty.at(LOST_FROM_S + 1)
    assert (reading.expected, reading.present, reading.gpus[-1].identity.index) == (8, 7, LOST_GPU)


@pytest.mark.long
def test_faults_have_a_burst_of_xids_every_day() -> None:
    faulty = FaultyGpus(LabGpus(START))
    counts = [sum(by_index(faulty.at(float(t)))[XID_GPU].xid.counts.values()) for t in range(0, 1300, 5)]
    assert counts[0] == 0
    assert all(later >= earlier for earlier, later in pairwise(counts))
    assert counts[100 // 5] == XID_BURST
    assert counts[-1] == 3 * XID_BURST


def test_faults_overheat_a_gpu_and_health_reports_each_fault() -> None:
    gpus = by_index(FaultyGpus(LabGpus(START)).at(30.0))
    levels = {index: gpu_health_of(gpu, START + 30).level for index, gpu in gpus.items()}
    assert levels[HOT_GPU] is HealthLevel.WARNING
    assert levels[LOST_GPU] is HealthLevel.LOST
    assert levels[XID_GPU] is HealthLevel.WARNING
    assert {levels[index] for index in (0, 2, 4, 6, 7)} == {HealthLevel.OK}
