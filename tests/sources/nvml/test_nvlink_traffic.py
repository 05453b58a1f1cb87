"""NVLink traffic: a rate by link from the driver's counters and time stamps."""

from fakes.nvml.rig import Rig

SENT, RECEIVED = 138, 139


def counters(link: str, sent_kib: int, received_kib: int) -> tuple[str, str]:
    return (
        f"set nvmlDeviceGetFieldValues.{SENT}.{link} 0 {sent_kib}",
        f"set nvmlDeviceGetFieldValues.{RECEIVED}.{link} 0 {received_kib}",
    )


def test_rates_are_computed_from_two_readings_by_the_drivers_time(rig: Rig) -> None:
    rig.fake.say(*counters("all", 1000, 500), *counters("0", 600, 500), *counters("1", 400, 0))
    first = rig.gpu()
    assert first.nvlink_rates is not None
    assert first.nvlink_rates.total_kibibytes_per_s is None, "one reading has no rate, and none is not 0"
    assert first.nvlink_rates.link_kibibytes_per_s == {}
    assert (first.readings.nvlink_tx_kibibytes, first.readings.nvlink_rx_kibibytes) == (1000, 500)

    rig.fake.replace(*counters("all", 31_000, 15_500), *counters("0", 30_600, 15_500), *counters("1", 400, 0))
    rates = rig.gpu(after_s=15).nvlink_rates
    assert rates is not None
    assert rates.total_kibibytes_per_s == 3000, "45,000 KiB in 15 s, both directions"
    assert rates.link_kibibytes_per_s == {0: 3000, 1: 0}


def test_a_missing_link_is_requested_once(rig: Rig) -> None:
    rig.fake.say(*counters("all", 1, 1), *counters("0", 1, 1), *counters("17", 1, 1))
    rig.read()
    before = rig.fake.calls("nvmlDeviceGetFieldValues")
    rig.read_for(14)
    rates = rig.gpu().nvlink_rates
    assert rates is not None
    assert set(rates.link_kibibytes_per_s) == {0, 17}
    # Each field is a call of the fake: the memory temperature every second, and in the slow lane three scopes in two
    # directions and the other fields of this GPU.
    slow = rig.fake.calls("nvmlDeviceGetFieldValues") - before - 15
    assert slow == 6 + 4 + 1


def test_nvlink_is_requested_once_on_a_gpu_without_it(rig: Rig) -> None:
    gpu = rig.gpu()
    assert gpu.nvlink_rates is None
    assert gpu.readings.nvlink_tx_kibibytes is None
    rig.fake.say(*counters("all", 1, 1))
    assert rig.read_for(40).gpus[0].nvlink_rates is None
    assert rig.read().call_failures == {}


def test_a_counter_that_decreased_has_no_rate_until_the_next_reading(rig: Rig) -> None:
    rig.fake.say(*counters("all", 9000, 0))
    rig.read()
    rig.fake.replace(*counters("all", 100, 0))
    rates = rig.gpu(after_s=15).nvlink_rates
    assert rates is not None
    assert rates.total_kibibytes_per_s is None
    rig.fake.replace(*counters("all", 1600, 0))
    rates = rig.gpu(after_s=15).nvlink_rates
    assert rates is not None
    assert rates.total_kibibytes_per_s == 100


def test_a_failed_reading_is_missing_and_the_next_has_no_rate(rig: Rig) -> None:
    rig.fake.say(*counters("all", 0, 0))
    rig.read()
    rig.fake.say("fail nvmlDeviceGetFieldValues.138.all 999")
    failing = rig.read(after_s=15)
    assert failing.gpus[0].nvlink_rates is None
    assert failing.gpus[0].readings.nvlink_tx_kibibytes is None
    assert failing.call_failures == {("nvlink_traffic", "unknown"): 1}
    rig.fake.replace(*counters("all", 3000, 0))
    rates = rig.gpu(after_s=15).nvlink_rates
    assert rates is not None
    assert rates.total_kibibytes_per_s is None
