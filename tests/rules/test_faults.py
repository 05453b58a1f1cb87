"""Which GPUs should get no new work: a fault begins after two readings and ends after a minute without it."""

from gpucommons.model.gpu import Gpu, GpuIdentity, GpuReading, GpuReadings, XidRecord
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.rules.faults import GpuFaults

_HEALTHY = Gpu(GpuIdentity("GPU-0", 0, "NVIDIA H200", "0000:00"), True, 0.0)
_LOST = Gpu(_HEALTHY.identity, False, 5.0, "gpu_is_lost")


def at(second: float, gpu: Gpu | None) -> Snapshot:
    """A snapshot with a reading of its own, or with none."""
    reading = None if gpu is None else GpuReading("570", "12", "12.8", (gpu,), 1, int(gpu.up))
    return Snapshot(1, second, 1e9 + second, "node", readings=Readings(gpus=reading))


def test_a_fault_needs_two_readings() -> None:
    faults = GpuFaults()
    first = at(1, _LOST)
    assert not faults.observe(first)
    assert not faults.observe(first), "the same reading in a later snapshot is not a second look"
    assert faults.observe(at(2, _LOST))
    assert faults.gpu_uuids == {"GPU-0"}


def test_one_bad_reading_between_good_ones_is_no_fault() -> None:
    faults = GpuFaults()
    for second in range(1, 20):
        assert not faults.observe(at(second, _LOST if second % 2 else _HEALTHY))


def test_it_ends_after_a_minute_without_it() -> None:
    faults = GpuFaults()
    for second in (1, 2):
        faults.observe(at(second, _LOST))
    assert not faults.observe(at(61, _HEALTHY))
    assert not faults.observe(at(500, None)), "what cannot be read has not ended"
    assert faults.observe(at(501, _HEALTHY))
    assert not faults.by_key


def test_it_stays_one_fault_while_it_is_shown() -> None:
    faults = GpuFaults()
    for second in (1, 2):
        faults.observe(at(second, _LOST))
    assert not any(faults.observe(at(second, _LOST)) for second in range(3, 200, 30))
    assert [problem.key for problem in faults.by_key.values()] == ["gpu_lost/GPU-0"]


def test_heat_and_errors_of_programs_take_no_gpu_away() -> None:
    hot = _HEALTHY._replace(
        readings=GpuReadings(temperature_celsius=95, throttle_mask=0x40, remapped_rows_pending=True),
        xid=XidRecord(True, last_code=31, last_wall_s=1e9, recent={(10**9, 31): 1}),
    )
    faults = GpuFaults()
    assert not any(faults.observe(at(second, hot)) for second in range(1, 10))


def test_a_gpu_that_must_be_reset_and_one_with_faulty_memory_are_faults() -> None:
    for readings in (GpuReadings(recovery_action=1), GpuReadings(remapped_rows_failed=True)):
        faults = GpuFaults()
        faults.observe(at(1, _HEALTHY._replace(readings=readings)))
        assert faults.observe(at(2, _HEALTHY._replace(readings=readings)))
