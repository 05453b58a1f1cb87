"""How busy a GPU was, for the scheduler: each measurement once, with its time span, from one kind of measurement."""

from gpucommons.agent.sharing.sharing import BusyMeter
from gpucommons.model.gpu import GpmReading, Gpu, GpuIdentity, GpuReading, GpuReadings
from gpucommons.model.snapshot import Readings, Snapshot, SourceState
from gpucommons.scheduler.policy.devices import Busy

UUID = "GPU-0"


def pass_over(percent: int | None = 99, gpm: GpmReading | None = None) -> GpuReading:
    gpu = Gpu(GpuIdentity(UUID, 0, "H200", "0:0"), True, 0.0, readings=GpuReadings(percent), gpm=gpm)
    return GpuReading("580", "12.580", "13.0", (gpu,), 1, 1)


def measured(meter: BusyMeter, reading: GpuReading | None, at_s: float, took_s: float = 0.0) -> Busy | None:
    state = SourceState("nvml", up=True, duration_s=took_s, last_success_monotonic_s=at_s)
    snapshot = Snapshot(0, at_s, 0.0, "node", None, Readings(gpus=reading), {"nvml": state})
    return meter.of(snapshot).get(UUID)


def test_gpm_spans_the_time_since_the_last_pass() -> None:
    meter = BusyMeter()
    assert measured(meter, pass_over(gpm=GpmReading(0.3)), 10.0) is None, "its time span is not known"
    assert measured(meter, pass_over(gpm=GpmReading(0.4)), 11.0, took_s=0.25) == Busy(0.4, 9.75)
    assert measured(meter, pass_over(gpm=GpmReading(0.5)), 14.0, took_s=0.25) == Busy(0.5, 10.75)


def test_a_measurement_is_returned_once() -> None:
    meter = BusyMeter()
    measured(meter, pass_over(gpm=GpmReading(0.3)), 10.0)
    reading = pass_over(gpm=GpmReading(0.4))
    assert measured(meter, reading, 11.0) is not None
    assert measured(meter, reading, 11.0) is None, "the driver hangs, and the last pass is old"
    same = reading.gpus[0].gpm
    assert measured(meter, pass_over(gpm=same), 12.0) is None, "a new pass without a new sample"
    assert measured(meter, pass_over(gpm=GpmReading(0.4)), 13.0) == Busy(0.4, 11.0), (
        "an equal value is a new measurement"
    )


def test_utilisation_is_used_only_on_a_gpu_without_gpm() -> None:
    meter = BusyMeter()
    measured(meter, pass_over(80), 10.0)
    assert measured(meter, pass_over(80), 11.0) == Busy(0.8, 10.0)
    assert measured(meter, pass_over(80), 11.2) == Busy(0.8, 10.2), "it spans the last second, however often it is read"
    measured(meter, pass_over(99, GpmReading(0.3)), 12.0)
    assert measured(meter, pass_over(99), 13.0) is None
    assert measured(meter, pass_over(99, GpmReading(None)), 14.0) is None


def test_without_a_reading_there_is_no_measurement() -> None:
    meter = BusyMeter()
    for at_s in (10.0, 11.0):
        assert measured(meter, None, at_s) is None
        assert measured(meter, pass_over(None), at_s) is None
