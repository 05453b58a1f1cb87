"""Every NVSHARE_* variable keeps its meaning: through the configuration, into the scheduler's settings."""

import pytest

from gpucommons.agent.sharing import nvshare_listener, scheduler_settings
from gpucommons.config.load import load
from gpucommons.config.option import ConfigError
from gpucommons.scheduler.settings import GIB, Mode, SchedulerSettings, SwitchTime


def told(**variables: str) -> SchedulerSettings:
    return scheduler_settings(load(None, variables, {}).settings.scheduler)


def test_the_defaults_are_the_schedulers_own() -> None:
    assert told() == SchedulerSettings()


def test_every_variable() -> None:
    settings = told(
        NVSHARE_DEBUG="1",
        NVSHARE_SCHEDULING_MODE="serial",
        NVSHARE_SWITCH_TIME_MODE="fixed",
        NVSHARE_SWITCH_TIME_FIXED="30",
        NVSHARE_SWITCH_TIME_MULTIPLIER="2",
        NVSHARE_MEMORY_RESERVE_PERCENT="20",
        NVSHARE_DEFAULT_GPU_MEMORY_GB="80",
        NVSHARE_QUOTA_SAMPLE_INTERVAL_MS="100",
        NVSHARE_COMPUTE_WINDOW_MS="4000",
        NVSHARE_QUOTA_CARRYOVER_PERCENT="50",
        NVSHARE_DROP_TAIL_BILLING_PERCENT="70",
        NVSHARE_METRICS_DEBUG_LABELS="0",
        NVSHARE_METRICS_STALE_TTL_SEC="300",
    )
    assert settings.debug is True
    assert settings.mode is Mode.SERIAL
    assert settings.switch_time_mode is SwitchTime.FIXED
    assert settings.switch_time_fixed_s == 30
    assert settings.switch_time_s_per_gib == 2
    assert settings.memory_reserve_percent == 20
    assert settings.default_gpu_memory_bytes == 80 * GIB
    assert settings.quota_sample_interval_s == 0.1
    assert settings.compute_window_s == 4
    assert settings.quota_carryover_percent == 50
    assert settings.drop_tail_billing_percent == 70
    assert settings.metrics_debug_labels is False
    assert settings.metrics_stale_ttl_s == 300


def test_a_bad_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="NVSHARE_SCHEDULING_MODE"):
        told(NVSHARE_SCHEDULING_MODE="sometimes")
    with pytest.raises(ConfigError, match="NVSHARE_COMPUTE_WINDOW_MS"):
        told(NVSHARE_COMPUTE_WINDOW_MS="soon")


def listener(**variables: str) -> list[tuple[str, str]]:
    return nvshare_listener(load(None, variables, {}).settings.scheduler)


def test_the_listener_opens_where_its_users_expect_it(caplog: pytest.LogCaptureFixture) -> None:
    assert listener() == []
    assert listener(NVSHARE_METRICS_ENABLE="1") == [("0.0.0.0:9402", "nvshare")]
    assert "open to the network" in caplog.text
    assert listener(NVSHARE_METRICS_ENABLE="true", NVSHARE_METRICS_ADDR="9500") == [("0.0.0.0:9500", "nvshare")]
    assert listener(NVSHARE_METRICS_ENABLE="1", NVSHARE_METRICS_ADDR="127.0.0.1:1") == [("127.0.0.1:1", "nvshare")]
