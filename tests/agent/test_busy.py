"""What the scheduler hears of how busy a GPU was: each measurement once, with its time, and one measure alone."""

from gpucommons.agent.busy import BusyMeter
from gpucommons.model.gpu import GpmReading, Gpu, GpuIdentity, GpuReading, GpuReadings
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.model.source_state import SourceState
from gpucommons.scheduler.policy.devices import Busy

UUID = "GPU-0"


def pass_over(percent: int | None = 99, gpm: GpmReading | None = None) -> GpuReading:
    gpu = Gpu(GpuIdentity(UUID, 0, "H200", "0:0"), True, 0.0, readings=GpuReadings(percent), gpm=gpm)
    return GpuReading("580", "12.580", "13.0", (gpu,), 1, 1)


def told(news: BusyMeter, reading: GpuReading | None, at_s: float, took_s: float = 0.0) -> Busy | None:
    state = SourceState("nvml", up=True, duration_s=took_s, last_success_monotonic_s=at_s)
    snapshot = Snapshot(0, at_s, 0.0, "node", None, Readings(gpus=reading), {"nvml": state})
    return news.of(snapshot).get(UUID)


def test_gpm_is_of_the_time_since_the_pass_before() -> None:
    news = BusyMeter()
    assert told(news, pass_over(gpm=GpmReading(0.3)), 10.0) is None, "since when, nobody knows"
    assert told(news, pass_over(gpm=GpmReading(0.4)), 11.0, took_s=0.25) == Busy(0.4, 9.75)
    assert told(news, pass_over(gpm=GpmReading(0.5)), 14.0, took_s=0.25) == Busy(0.5, 10.75)


def test_what_was_told_is_not_told_again() -> None:
    news = BusyMeter()
    told(news, pass_over(gpm=GpmReading(0.3)), 10.0)
    reading = pass_over(gpm=GpmReading(0.4))
    assert told(news, reading, 11.0) is not None
    assert told(news, reading, 11.0) is None, "the driver hangs, and the last pass stands"
    same = reading.gpus[0].gpm
    assert told(news, pass_over(gpm=same), 12.0) is None, "a new pass without a new sample"
    assert told(news, pass_over(gpm=GpmReading(0.4)), 13.0) == Busy(0.4, 11.0), "an equal figure is a new one"


def test_utilisation_stands_in_only_where_there_never_was_gpm() -> None:
    news = BusyMeter()
    told(news, pass_over(80), 10.0)
    assert told(news, pass_over(80), 11.0) == Busy(0.8, 10.0)
    assert told(news, pass_over(80), 11.2) == Busy(0.8, 10.2), "it is of the last second, however often it is asked"
    told(news, pass_over(99, GpmReading(0.3)), 12.0)
    assert told(news, pass_over(99), 13.0) is None
    assert told(news, pass_over(99, GpmReading(None)), 14.0) is None


def test_nothing_is_told_of_what_is_not_there() -> None:
    news = BusyMeter()
    for at_s in (10.0, 11.0):
        assert told(news, None, at_s) is None
        assert told(news, pass_over(None), at_s) is None
