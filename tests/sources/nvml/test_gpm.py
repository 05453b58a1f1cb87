"""GPM: two samples one pass apart; unsupported metrics are left out, implausible values are dropped."""

import pytest

from fakes.nvml.rig import Rig


def test_the_first_pass_has_no_gpm_and_the_second_has(rig: Rig) -> None:
    rig.fake.say("recording busy")
    assert rig.gpu().gpm is None
    gpm = rig.gpu().gpm
    assert gpm is not None
    assert gpm.graphics_ratio == pytest.approx(0.9999972528969624)
    assert gpm.sm_ratio == pytest.approx(0.9646873173884221)
    assert gpm.sm_occupancy_ratio == pytest.approx(0.19337317432435476)
    assert gpm.tensor_ratio == pytest.approx(0.861262979334778)
    assert gpm.dram_ratio == pytest.approx(0.22568568163289534)
    assert gpm.fp32_ratio == pytest.approx(0.001659577249254643, abs=1e-7)
    assert gpm.pcie_tx_bytes_per_s == pytest.approx(11.508561017448551 * 2**20, rel=1e-6)
    assert gpm.pcie_rx_bytes_per_s == pytest.approx(21.908164334979606 * 2**20, rel=1e-6)


def test_every_metric_fills_its_field(rig: Rig) -> None:
    metrics = (1, 2, 3, 5, 11, 12, 13, 4, 6, 7, 9, 10, 20, 21, 61, 60)
    rig.fake.say(*(f"set gpm.{metric} 0 {10 + place}" for place, metric in enumerate(metrics)))
    gpm = rig.read_for(3).gpus[0].gpm
    assert gpm is not None
    assert list(gpm[:12]) == pytest.approx([(10 + place) / 100 for place in range(12)])
    assert list(gpm[12:]) == pytest.approx([(10 + place) * 2**20 for place in range(12, 16)])


def test_sample_buffers_alternate(rig: Rig) -> None:
    """The fake rejects a comparison of a sample with itself, with another GPU's, or in the wrong order."""
    rig.fake.say("gpus 2")
    reading = rig.read_for(10)
    assert all(gpu.gpm is not None for gpu in reading.gpus)
    assert rig.fake.counter("misuses") == 0
    assert rig.fake.counter("gpm_samples") == 4
    assert rig.fake.calls("nvmlGpmSampleGet", gpu=1) == 10


def test_one_missing_metric_does_not_affect_the_others(rig: Rig) -> None:
    gpm = rig.read_for(4).gpus[0].gpm
    assert gpm is not None
    assert gpm.nvlink_tx_bytes_per_s is None
    assert gpm.graphics_ratio == 0.0


@pytest.mark.parametrize("value", ["150", "-3", "nan", "inf"])
def test_an_implausible_value_is_dropped_and_counted(rig: Rig, value: str) -> None:
    rig.fake.say(f"set gpm.2 0 {value}")
    reading = rig.read_for(2)
    gpm = reading.gpus[0].gpm
    assert gpm is not None
    assert gpm.sm_ratio is None
    assert gpm.graphics_ratio is not None
    assert reading.samples_dropped == {(reading.gpus[0].identity.uuid, "above_limit"): 1}


def test_rounding_above_one_is_one(rig: Rig) -> None:
    rig.fake.say("set gpm.2 0 100.0004")
    gpm = rig.read_for(2).gpus[0].gpm
    assert gpm is not None
    assert gpm.sm_ratio == 1.0


def test_after_a_failure_two_new_samples_are_taken(rig: Rig) -> None:
    rig.read_for(3)
    rig.fake.say("fail nvmlGpmSampleGet 999")
    assert rig.gpu().gpm is None
    rig.fake.unsay("fail")
    assert rig.gpu().gpm is None
    assert rig.gpu().gpm is not None
    assert rig.fake.counter("misuses") == 0


def test_gpm_is_not_called_on_a_gpu_without_it(rig: Rig) -> None:
    rig.fake.say("set nvmlGpmQueryDeviceSupport 0 0")
    assert rig.read_for(3).gpus[0].gpm is None
    assert rig.fake.calls("nvmlGpmSampleGet") == 0
    assert rig.fake.calls("nvmlGpmSampleAlloc") == 0


def test_unsupported_gpm_is_not_called_again_and_pcie_throughput_is_read_directly(rig: Rig) -> None:
    rig.fake.say("fail nvmlGpmSampleGet 3")
    gpu = rig.read_for(5).gpus[0]
    assert rig.fake.calls("nvmlGpmSampleGet") == 1
    assert rig.fake.counter("gpm_samples") == 0
    assert gpu.pcie_tx_bytes_per_s == 1614000
