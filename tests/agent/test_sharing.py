"""Every NVSHARE_* and XPUSHARE_* variable keeps its meaning, from the configuration to the scheduler."""

from enum import StrEnum
from pathlib import Path

import pytest

from fakes.nvml.build import build
from fakes.nvml.control import FakeNvml, mig_device
from gpucommons.agent.agent import Agent
from gpucommons.agent.sharing.settings import check_scheduler, metrics_listeners, nvml_cadence_s
from gpucommons.agent.sources import agent_sources
from gpucommons.config.load import keys, load
from gpucommons.config.option import ConfigError
from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.model.sharing import WaitReason
from gpucommons.scheduler.policy import evaluation
from gpucommons.scheduler.policy.policy import Policy
from gpucommons.scheduler.policy.state import GIB, Client, Fence, Mode, SwitchTime
from gpucommons.scheduler.protocol.client import NvshareClient
from needs import needs_program
from running import command, running_agent
from waiting import until


def scheduler(**variables: str) -> SchedulerSettings:
    return load(None, variables, {}).settings.scheduler


# Each variable without its prefix, and a value that is not the default.
VARIABLES = {
    "DEBUG": "1",
    "SCHEDULING_MODE": "serial",
    "SWITCH_TIME_MODE": "fixed",
    "SWITCH_TIME_FIXED": "30",
    "SWITCH_TIME_MULTIPLIER": "2",
    "MEMORY_RESERVE_PERCENT": "20",
    "DEFAULT_GPU_MEMORY_GB": "80",
    "QUOTA_SAMPLE_INTERVAL_MS": "100",
    "COMPUTE_WINDOW_MS": "4000",
    "QUOTA_CARRYOVER_PERCENT": "50",
    "DROP_TAIL_BILLING_PERCENT": "70",
    "METRICS_NVML_INTERVAL_MS": "500",
    "METRICS_DEBUG_LABELS": "0",
    "METRICS_STALE_TTL_SEC": "300",
}
# These open one program's listener, so they have a key for each program.
LISTENER_VARIABLES = {"METRICS_ENABLE", "METRICS_ADDR"}
# Of the device plugins: each resource has its own number of shares.
PLUGIN_VARIABLES = {"VIRTUAL_DEVICES"}


def test_the_table_has_every_variable() -> None:
    aliases = {alias for key in keys() for alias in key.guards["aliases"]}
    for prefix in ("NVSHARE_", "XPUSHARE_"):
        found = {alias.removeprefix(prefix) for alias in aliases if alias.startswith(prefix)}
        assert found == VARIABLES.keys() | LISTENER_VARIABLES | PLUGIN_VARIABLES, prefix


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_of_xpushare_means_what_its_nvshare_twin_means(name: str) -> None:
    def with_only(prefix: str, value: str) -> object:
        return load(None, {f"{prefix}_{name}": value}, {}).settings

    assert (
        with_only("XPUSHARE", VARIABLES[name]) == with_only("NVSHARE", VARIABLES[name]) != load(None, {}, {}).settings
    )
    both = load(None, {f"NVSHARE_{name}": VARIABLES[name], f"XPUSHARE_{name}": VARIABLES[name]}, {})
    assert both.warnings == (), "the same value twice is not a conflict"


def test_xpushares_variable_wins_and_the_conflict_is_one_warning() -> None:
    environment = {"XPUSHARE_SWITCH_TIME_FIXED": "20", "NVSHARE_SWITCH_TIME_FIXED": "30"}
    for given in (environment, dict(reversed(environment.items()))):
        loaded = load(None, given, {})
        assert loaded.settings.scheduler.switch_time_fixed_s == 20
        assert loaded.origins["scheduler.switch_time_fixed_s"] == "environment XPUSHARE_SWITCH_TIME_FIXED"
        (warning,) = loaded.warnings
        assert "NVSHARE_SWITCH_TIME_FIXED=30 and XPUSHARE_SWITCH_TIME_FIXED=20" in warning
        assert "XPUSHARE_SWITCH_TIME_FIXED is in force" in warning
    own = load(None, {**environment, "GPUCOMMONS_SCHEDULER_SWITCH_TIME_FIXED_S": "10"}, {})
    assert own.settings.scheduler.switch_time_fixed_s == 10
    assert "GPUCOMMONS_SCHEDULER_SWITCH_TIME_FIXED_S is in force" in own.warnings[0]


@pytest.mark.parametrize("variable", ["NVSHARE_MAX_RUNTIME_SEC", "XPUSHARE_MAX_RUNTIME_SEC"])
@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60", 60), (" 45s", 45), ("3", 10), ("-7", 10), ("", 10), ("soon", 10), ("9" * 99, 999_999_999)],
)
def test_the_longest_runtime_is_logged_as_the_original_does_and_has_no_effect(
    variable: str, text: str, seconds: int
) -> None:
    loaded = load(None, {variable: text}, {})
    (line,) = loaded.warnings
    assert line.startswith(f"{variable}: Max runtime per task: {seconds} seconds; without effect")
    assert loaded.settings == load(None, {}, {}).settings


def test_one_path_for_both_sockets_is_refused() -> None:
    both = scheduler(GPUCOMMONS_SCHEDULER_SOCKET="/run/s", GPUCOMMONS_SCHEDULER_XPUSHARE_SOCKET="/run/s")
    with pytest.raises(ConfigError, match=r"scheduler\.xpushare_socket are both /run/s"):
        check_scheduler(both)


@pytest.mark.parametrize("mode", ["serial", "concurrent"])
@pytest.mark.parametrize("share", ["own", "all"])
def test_programs_are_shared_in_mode_auto_only(tmp_path: Path, mode: str, share: str) -> None:
    file = tmp_path / "gpucommons.toml"
    file.write_text(f'[scheduler]\nmode = "{mode}"\nshare_programs = "{share}"\n')
    settings = load(file, {}, {}).settings
    with pytest.raises(ConfigError, match=f"share_programs = {share} needs scheduler.mode = auto, not {mode}"):
        Agent(settings)
    refused = command("check-config", str(file))
    assert refused.returncode != 0
    assert f"share_programs = {share} needs scheduler.mode = auto, not {mode}" in refused.stderr
    file.write_text(f'[scheduler]\nshare_programs = "{share}"\n')
    assert command("check-config", str(file)).returncode == 0


def test_every_variable_sets_its_key() -> None:
    settings = scheduler(**{f"NVSHARE_{name}": value for name, value in VARIABLES.items()})
    assert settings.debug is True
    assert settings.mode == "serial"
    assert settings.switch_time_mode == "fixed"
    assert settings.switch_time_fixed_s == 30
    assert settings.switch_time_multiplier == 2
    assert settings.memory_reserve_percent == 20
    assert settings.default_gpu_memory_gb == 80
    assert settings.quota_sample_interval_ms == 100
    assert settings.compute_window_ms == 4000
    assert settings.quota_carryover_percent == 50
    assert settings.drop_tail_billing_percent == 70
    assert settings.metrics_nvml_interval_ms == 500
    assert settings.metrics_debug_labels is False
    assert settings.metrics_stale_ttl_s == 300


def test_the_policy_uses_the_keys_in_their_units() -> None:
    policy = Policy(scheduler(**{f"NVSHARE_{name}": value for name, value in VARIABLES.items()}))
    gpu = policy.add_gpu("GPU-0", 0, 0.0)
    assert (gpu.memory.total_bytes, gpu.memory.safe_limit_bytes) == (80 * GIB, 64 * GIB)
    assert gpu.turns.clock.window_s == 4.0
    assert (policy.terms.mode, policy.terms.fixed_switch_time) == (Mode.SERIAL, True)
    first, second = Client(1, gpu), Client(2, gpu)
    assert evaluation.quantum_s(policy.terms, first, second, WaitReason.TURN) == 30


@pytest.mark.parametrize("choices", [Mode, SwitchTime, Fence])
def test_the_words_of_the_configuration_are_those_of_the_policy(choices: type[StrEnum]) -> None:
    name = {Mode: "mode", SwitchTime: "switch_time_mode", Fence: "fence"}[choices]
    key = next(key for key in keys() if key.path == f"scheduler.{name}")
    assert set(key.guards["choices"]) == {choice.value for choice in choices}


@pytest.mark.parametrize(
    ("enabled", "interval_s", "nvml_ms", "cadence_s"),
    [("0", "1", "5000", 1.0), ("1", "1", "5000", 5.0), ("1", "2", "500", 2.0), ("1", "0.5", "1000", 1.0)],
)
def test_nvml_is_read_at_most_at_its_interval_while_the_scheduler_is_enabled(
    enabled: str, interval_s: str, nvml_ms: str, cadence_s: float
) -> None:
    variables = {
        "GPUCOMMONS_SCHEDULER_ENABLED": enabled,
        "GPUCOMMONS_SAMPLING_INTERVAL_S": interval_s,
        "NVSHARE_METRICS_NVML_INTERVAL_MS": nvml_ms,
    }
    settings = load(None, variables, {}).settings
    assert nvml_cadence_s(settings) == cadence_s
    (source,) = [source for source in agent_sources(settings, None)[0] if source.name == "nvml"]
    assert source.cadence_s == cadence_s


def test_a_bad_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="NVSHARE_SCHEDULING_MODE"):
        scheduler(NVSHARE_SCHEDULING_MODE="sometimes")
    with pytest.raises(ConfigError, match="NVSHARE_COMPUTE_WINDOW_MS"):
        scheduler(NVSHARE_COMPUTE_WINDOW_MS="soon")


def listener(**variables: str) -> list[tuple[str, str]]:
    return metrics_listeners(load(None, variables, {}).settings.scheduler)


def test_the_listener_opens_at_nvshares_address(caplog: pytest.LogCaptureFixture) -> None:
    assert listener() == []
    assert listener(NVSHARE_METRICS_ENABLE="1") == [("0.0.0.0:9402", "nvshare")]
    assert "open to the network" in caplog.text
    assert listener(NVSHARE_METRICS_ENABLE="true", NVSHARE_METRICS_ADDR="9500") == [("0.0.0.0:9500", "nvshare")]
    assert listener(NVSHARE_METRICS_ENABLE="1", NVSHARE_METRICS_ADDR="127.0.0.1:1") == [("127.0.0.1:1", "nvshare")]


def test_nvshare_and_xpushare_have_separate_listeners(caplog: pytest.LogCaptureFixture) -> None:
    assert listener(XPUSHARE_METRICS_ENABLE="1") == [("0.0.0.0:9402", "xpushare")]
    assert "xpushare metrics on 0.0.0.0:9402 are open to the network (XPUSHARE_METRICS_ADDR)" in caplog.text
    both = listener(NVSHARE_METRICS_ENABLE="1", XPUSHARE_METRICS_ENABLE="1", XPUSHARE_METRICS_ADDR="9403")
    assert both == [("0.0.0.0:9402", "nvshare"), ("0.0.0.0:9403", "xpushare")]


@pytest.mark.parametrize(
    "variables",
    [
        {"NVSHARE_METRICS_ENABLE": "1", "XPUSHARE_METRICS_ENABLE": "1"},
        {"NVSHARE_METRICS_ENABLE": "1", "XPUSHARE_METRICS_ENABLE": "1", "XPUSHARE_METRICS_ADDR": "127.0.0.1:9402"},
        {"NVSHARE_METRICS_ENABLE": "1", "GPUCOMMONS_LISTENERS_XPUSHARE": ":9402"},
        {"GPUCOMMONS_LISTENERS_NVSHARE": "127.0.0.1:9402", "GPUCOMMONS_LISTENERS_XPUSHARE": "127.0.0.1:9402"},
    ],
)
def test_two_listeners_on_one_port_are_refused_before_any_is_open(variables: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as refused:
        Agent(load(None, variables, {}).settings)
    message = str(refused.value)
    assert "9402" in message
    assert "the same port" in message
    assert "listeners.xpushare or XPUSHARE_METRICS_ADDR" in message
    assert "\n" not in message


def test_two_addresses_or_free_ports_are_accepted() -> None:
    for nvshare, xpushare in (("127.0.0.1:9402", "127.0.0.2:9402"), ("127.0.0.1:0", "127.0.0.1:0")):
        variables = {"GPUCOMMONS_LISTENERS_NVSHARE": nvshare, "GPUCOMMONS_LISTENERS_XPUSHARE": xpushare}
        Agent(load(None, variables, {}).settings)


@pytest.mark.long
def test_the_queue_of_a_mig_device_shows_its_measured_memory(tmp_path: Path) -> None:
    needs_program("cc")
    fake = FakeNvml(tmp_path / "driver", build(tmp_path / "library"))
    fake.say("gpus 1", "mig_mode 0 1 1", mig_device(0, 3, memory_mb=20480))
    path = tmp_path / "scheduler.sock"
    environment = {**fake.environment(), "GPUCOMMONS_SCHEDULER_SOCKET": str(path)}
    with running_agent("--scheduler", environment=environment) as agent, NvshareClient(str(path), gpu="0:0"):
        until(lambda: '"index"' in agent.get("/api/v1/turns")[1], "the scheduler knows the GPU")
        done = command("scheduler", "status", "--socket", str(path))
    assert (done.returncode, "(assumed)" in done.stdout) == (0, False), done.stdout + done.stderr
    # A tenth is reserved.
    assert "safe limit 18.0 GiB" in done.stdout
