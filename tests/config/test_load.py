"""Settings: precedence, the origin of each value, and one-line errors that name the key."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.base.address import AddressError, parse_address
from gpucommons.config.load import Flag, LoadedSettings, keys, load
from gpucommons.config.option import ConfigError
from unhurried import unhurried


def loaded(
    tmp_path: Path, toml: str = "", environment: dict[str, str] | None = None, **flags: object
) -> LoadedSettings:
    file = tmp_path / "gpucommons.toml"
    file.write_text(toml)
    given_flags = {path.replace("__", "."): Flag(value, f"--{path}") for path, value in flags.items()}
    return load(file, environment or {}, given_flags)


def refused(tmp_path: Path, toml: str = "", environment: dict[str, str] | None = None, **flags: object) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, toml, environment, **flags)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_defaults_need_no_file() -> None:
    result = load(None, {}, {})
    assert result.settings.web.listen == "127.0.0.1:9460", "the default is loopback"
    assert set(result.origins.values()) == {"default"}


def test_rising_precedence(tmp_path: Path) -> None:
    toml = "[sampling]\ninterval_s = 2\n[web]\nmax_connections = 7\n[processes]\nbusiest = 5\n"
    environment = {"GPUCOMMONS_SAMPLING_INTERVAL_S": "3", "GPUCOMMONS_WEB_MAX_CONNECTIONS": "8"}
    result = loaded(tmp_path, toml, environment, sampling__interval_s=4.0)
    assert result.settings.sampling.interval_s == 4.0
    assert result.settings.web.max_connections == 8
    assert result.settings.processes.busiest == 5
    assert result.origins["sampling.interval_s"] == "flag --sampling__interval_s"
    assert result.origins["web.max_connections"] == "environment GPUCOMMONS_WEB_MAX_CONNECTIONS"
    assert result.origins["processes.busiest"].startswith("file ")
    assert result.origins["path.procfs"] == "default"


@pytest.mark.parametrize(
    ("toml", "names"),
    [
        ("[sampling]\nintervall_s = 2\n", ["sampling.intervall_s", "did you mean 'sampling.interval_s'"]),
        ("[nonsense]\nx = 2\n", ["nonsense.x"]),
        ("listen = 'x'\n", ["listen", "[section]"]),
        ("[sampling]\ninterval_s = 'fast'\n", ["sampling.interval_s", "a number"]),
        ("[sampling]\ninterval_s = true\n", ["sampling.interval_s"]),
        ("[sampling]\ninterval_s = 0.0\n", ["sampling.interval_s", "at least 0.1"]),
        ("[sampling]\ninterval_s = nan\n", ["sampling.interval_s", "finite"]),
        ("[sampling]\ninterval_s = 1" + 400 * "0" + "\n", ["sampling.interval_s", "a number below"]),
        ("[web]\nmax_connections = 1.5\n", ["web.max_connections", "a whole number"]),
        ("[web]\nlisten = 'localhost'\n", ["web.listen", "HOST:PORT"]),
        ("[web]\nlisten = 3\n", ["'web.listen': expected a string, got 3"]),
        ("[stack]\nprometheus_listen = 'unix:/x'\n", ["stack.prometheus_listen", "HOST:PORT"]),
        ("[stack]\nsmtp_smarthost = ':25'\n", ["stack.smtp_smarthost", "a server has a host"]),
        ("[history]\nprometheus_url = 'localhost'\n", ["history.prometheus_url", "invalid URL 'localhost'"]),
        ("[nodeexporter]\nnetdev_device_exclude = '('\n", ["netdev_device_exclude", "regular expression '('"]),
        ("[web]\nlisten = ['a']\n", ["web.listen", "expected a string, got ['a']"]),
        ("[log]\nformat = 'xml'\n", ["log.format", "human, json"]),
        ("[scheduler]\nmemory_reserve_percent = 91\n", ["scheduler.memory_reserve_percent", "at most 90"]),
        ("[web\n", ["not valid TOML"]),
    ],
)
def test_an_error_in_a_file_names_the_key(tmp_path: Path, toml: str, names: list[str]) -> None:
    message = refused(tmp_path, toml)
    for name in [*names, "gpucommons.toml"]:
        assert name in message


def test_an_error_in_the_environment_names_the_variable(tmp_path: Path) -> None:
    assert "GPUCOMMONS_SAMPLING_INTERVAL_S" in refused(tmp_path, environment={"GPUCOMMONS_SAMPLING_INTERVAL_S": "soon"})
    assert "did you mean 'GPUCOMMONS_PATH_PROCFS'" in refused(tmp_path, environment={"GPUCOMMONS_PATH_PROCS": "/x"})


def test_variables_of_a_kubernetes_service_are_ignored(tmp_path: Path) -> None:
    environment = {
        "GPUCOMMONS_SERVICE_HOST": "10.0.0.1",
        "GPUCOMMONS_SERVICE_PORT_METRICS": "9460",
        "GPUCOMMONS_PORT": "tcp://10.0.0.1:9460",
        "GPUCOMMONS_PORT_9460_TCP_ADDR": "10.0.0.1",
    }
    loaded(tmp_path, environment=environment)


def test_an_error_in_a_flag_names_the_flag(tmp_path: Path) -> None:
    assert "--web__listen" in refused(tmp_path, web__listen="9460")


def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "none.toml", {}, {})
    with pytest.raises(ConfigError, match="directory"):
        load(tmp_path, {}, {})
    (tmp_path / "latin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        load(tmp_path / "latin", {}, {})


@given(st.text(max_size=60))
@unhurried(100)
def test_any_text_is_a_configuration_or_a_config_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.mktemp("config") / "any.toml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(ConfigError):
        load(file, {}, {})


hosts = st.sampled_from(["", "a b", "127.0.0.1", "[::1]", "::1", "[x]", "ö.de", "a..b", "unix", "a\x00b", "x" * 64])
ports = st.sampled_from(["0", "80", "65535", "65536", "", " 80", "٣", "/run/x.sock", "x.sock"])


@given(st.one_of(st.text(min_size=1, max_size=30), st.builds("{}:{}".format, hosts, ports)))
@unhurried(100)
def test_the_configuration_accepts_exactly_the_addresses_that_the_web_server_parses(text: str) -> None:
    try:
        parse_address(text)
        parsed = True
    except AddressError:
        parsed = False
    try:
        load(None, {}, {"web.listen": Flag(text, "--listen")})
        accepted = True
    except ConfigError:
        accepted = False
    assert accepted == parsed


def test_every_key_has_help() -> None:
    for key in keys():
        assert key.guards["help"], key.path


def test_a_replaced_key_names_its_successor(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[dcgm]\nolder_hostname = true\n")
    with pytest.raises(ConfigError, match=r"'dcgm.older_hostname' was replaced by 'dcgm.hostname_label'; .*'both'"):
        load(file, {}, {})
    with pytest.raises(ConfigError, match="GPUCOMMONS_DCGM_OLDER_HOSTNAME was replaced by GPUCOMMONS_DCGM_HOSTNAME_"):
        load(None, {"GPUCOMMONS_DCGM_OLDER_HOSTNAME": "1"}, {})


def test_dcgm_exporters_variables_keep_their_meaning() -> None:
    environment = {
        "KUBERNETES_VIRTUAL_GPUS": "true",
        "DCGM_HPC_JOB_MAPPING_DIR": "/run/jobs",
        "DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE": "60000",
        "DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE": "90000",
    }
    found = load(None, environment, {}).settings.dcgm
    assert (found.shared, found.hpc_job_mapping_dir) == ("per_pod", "/run/jobs")
    assert (found.xid_count_window_ms, found.clock_events_count_window_ms) == (60_000, 90_000)
    assert load(None, {"KUBERNETES_VIRTUAL_GPUS": "false"}, {}).settings.dcgm.shared == "once"
    with pytest.raises(ConfigError, match="KUBERNETES_VIRTUAL_GPUS: expected one of once, per_pod, got 'maybe'"):
        load(None, {"KUBERNETES_VIRTUAL_GPUS": "maybe"}, {})
