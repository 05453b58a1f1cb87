"""The NVSHARE_* variables keep their names and meaning; a bad value is refused by name."""

import pytest

from gpucommons.scheduler.settings import (
    GIB,
    SETTING_NAMES,
    VARIABLES,
    Fence,
    Mode,
    SchedulerSettings,
    SwitchTime,
    from_environment,
)


def test_every_variable() -> None:
    settings = from_environment(
        {
            "NVSHARE_DEBUG": "1",
            "NVSHARE_SCHEDULING_MODE": "serial",
            "NVSHARE_SWITCH_TIME_MODE": "fixed",
            "NVSHARE_SWITCH_TIME_FIXED": "30",
            "NVSHARE_SWITCH_TIME_MULTIPLIER": "7",
            "NVSHARE_MEMORY_RESERVE_PERCENT": "5",
            "NVSHARE_DEFAULT_GPU_MEMORY_GB": "24",
            "NVSHARE_QUOTA_SAMPLE_INTERVAL_MS": "20",
            "NVSHARE_COMPUTE_WINDOW_MS": "1000",
            "NVSHARE_QUOTA_CARRYOVER_PERCENT": "50",
            "NVSHARE_DROP_TAIL_BILLING_PERCENT": "70",
            "NVSHARE_METRICS_ENABLE": "true",
            "NVSHARE_METRICS_ADDR": "9999",
            "NVSHARE_METRICS_NVML_INTERVAL_MS": "500",
            "NVSHARE_METRICS_DEBUG_LABELS": "0",
            "NVSHARE_METRICS_STALE_TTL_SEC": "300",
            "NVSHARE_SOMETHING_ELSE": "x",
        }
    )
    assert settings == SchedulerSettings(
        debug=True,
        mode=Mode.SERIAL,
        switch_time_mode=SwitchTime.FIXED,
        switch_time_fixed_s=30.0,
        switch_time_s_per_gib=7.0,
        memory_reserve_percent=5.0,
        default_gpu_memory_bytes=24 * GIB,
        quota_sample_interval_s=0.02,
        compute_window_s=1.0,
        quota_carryover_percent=50.0,
        drop_tail_billing_percent=70.0,
        metrics_enable=True,
        metrics_address="0.0.0.0:9999",
        nvml_interval_s=0.5,
        metrics_debug_labels=False,
        metrics_stale_ttl_s=300.0,
    )
    assert len(VARIABLES) == 16
    assert {variable.setting for variable in VARIABLES} <= SETTING_NAMES


def test_an_empty_environment_changes_nothing() -> None:
    base = SchedulerSettings(mode=Mode.CONCURRENT)
    assert from_environment({}, base) == base


@pytest.mark.parametrize(
    ("variable", "text", "wants"),
    [
        ("NVSHARE_SCHEDULING_MODE", "fast", "auto, serial or concurrent"),
        ("NVSHARE_SWITCH_TIME_MODE", "", "auto or fixed"),
        ("NVSHARE_SWITCH_TIME_FIXED", "-1", "seconds"),
        ("NVSHARE_MEMORY_RESERVE_PERCENT", "ten", "percentage"),
        ("NVSHARE_DEFAULT_GPU_MEMORY_GB", "nan", "gigabytes"),
        ("NVSHARE_METRICS_ADDR", "localhost", "host:port"),
        ("NVSHARE_METRICS_ADDR", "host:99999", "host:port"),
        ("NVSHARE_METRICS_ADDR", ":9402", "host:port"),
        ("NVSHARE_METRICS_ENABLE", "maybe", "0 or 1"),
    ],
)
def test_a_bad_value_names_the_variable_and_what_it_wants(variable: str, text: str, wants: str) -> None:
    with pytest.raises(ValueError, match=f"^{variable}=.*wants .*{wants}"):
        from_environment({variable: text})


def test_addresses() -> None:
    for text, address in (("127.0.0.1:9402", "127.0.0.1:9402"), ("[::1]:80", "[::1]:80"), ("80", "0.0.0.0:80")):
        assert from_environment({"NVSHARE_METRICS_ADDR": text}).metrics_address == address


def test_words_of_a_config_file_are_taken_or_refused() -> None:
    assert SchedulerSettings(fence="disconnect").fence is Fence.DISCONNECT  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="fast"):
        SchedulerSettings(mode="fast")  # type: ignore[arg-type]
