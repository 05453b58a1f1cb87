"""Samples of the throttle mask: one every 30 s for an hour, also across sessions with the driver."""

import pytest

from fakes.nvml.rig import START_WALL_S, Rig
from gpucommons.model.gpu import ClockSample
from gpucommons.sources.nvml.reader_state import ClockHistory
from gpucommons.sources.source import SourceError


@pytest.mark.long
def test_the_mask_is_sampled_every_30_s(rig: Rig) -> None:
    rig.fake.say("set nvmlDeviceGetCurrentClocksEventReasons 0 4")
    assert rig.gpu().clock_samples == (ClockSample(START_WALL_S + 1, 4),)
    rig.fake.replace("set nvmlDeviceGetCurrentClocksEventReasons 0 72")
    assert len(rig.read_for(29).gpus[0].clock_samples) == 1
    assert rig.gpu().clock_samples == (ClockSample(START_WALL_S + 1, 4), ClockSample(START_WALL_S + 31, 72))


def test_a_mask_that_cannot_be_read_is_not_sampled(rig: Rig) -> None:
    rig.fake.say("fail nvmlDeviceGetCurrentClocksEventReasons 3", "fail nvmlDeviceGetCurrentClocksThrottleReasons 3")
    assert rig.read_for(3).gpus[0].clock_samples == ()


def test_samples_outlive_the_session_with_the_driver(rig: Rig) -> None:
    rig.read()
    rig.fake.say("fail nvmlDeviceGetPowerUsage 1")
    with pytest.raises(SourceError):
        rig.read()
    rig.fake.unsay("fail")
    assert len(rig.gpu(after_s=30).clock_samples) == 2


def test_no_more_than_an_hour_is_kept() -> None:
    history = ClockHistory()
    for number in range(500):
        samples = history.see("a", 30.0 * number, 1000.0 + 30.0 * number, number)
    assert len(samples) == 120
    assert [sample.throttle_mask for sample in samples] == list(range(380, 500))
    assert history.see("b", 0.0, 1.0, None) == ()
