"""Sections in which the user chooses the names, such as [quotas], and the variables of DS01."""

from pathlib import Path

import pytest

from config.test_load import loaded, refused
from gpucommons.cli.main import main
from gpucommons.config.accounts import QuotaSettings
from gpucommons.config.load import load
from gpucommons.config.option import ConfigError
from gpucommons.config.reference import configuration_page
from gpucommons.config.settings import Settings
from gpucommons.config.state_directory import ledger_file, own_event_log, state_directory


def test_each_name_is_a_row(tmp_path: Path) -> None:
    result = loaded(tmp_path, '[quotas]\nalice = { gpu_equivalents = 2 }\n"anna-lena" = { gpu_equivalents = 0.5 }\n')
    assert result.settings.quotas == {"alice": QuotaSettings(2.0), "anna-lena": QuotaSettings(0.5)}
    assert result.origins["quotas.alice.gpu_equivalents"].startswith("file ")
    assert load(None, {}, {}).settings.quotas == {}


@pytest.mark.parametrize(
    ("toml", "names"),
    [
        ("[quotas]\nalice = 2\n", ["quotas.alice", "gpu_equivalents"]),
        ("[quotas]\nalice = {}\n", ["quotas.alice", "gpu_equivalents"]),
        ("[quotas]\nalice = { gpus = 2 }\n", ["quotas.alice", "'gpus'", "gpu_equivalents"]),
        ("[quotas]\nalice = { gpu_equivalents = 'two' }\n", ["quotas.alice", "a number"]),
        ("[quotas]\nalice = { gpu_equivalents = -1 }\n", ["quotas.alice", "at least 0"]),
        ("[quotas]\nalice = { gpu_equivalents = inf }\n", ["quotas.alice", "finite"]),
        ("quotas = 3\n", ["quotas", "[section]"]),
    ],
)
def test_an_error_names_the_row(tmp_path: Path, toml: str, names: list[str]) -> None:
    message = refused(tmp_path, toml)
    for name in [*names, "gpucommons.toml"]:
        assert name in message


def test_rows_are_printed_and_documented(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gpucommons.toml"
    file.write_text("[quotas]\nalice = { gpu_equivalents = 2 }\n")
    with pytest.raises(SystemExit):
        main(["check-config", str(file)])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "quotas" in line]
    assert line.split()[:2] == ["quotas.alice.gpu_equivalents", "2.0"]
    assert "## [quotas]" in configuration_page()


@pytest.mark.parametrize(
    ("text", "address"),
    [("0.0.0.0", "0.0.0.0:9101"), ("127.0.0.1:9999", "127.0.0.1:9999"), ("::", "[::]:9101"), ("host", "host:9101")],
)
def test_the_bind_variable_of_ds01_opens_its_listener(text: str, address: str) -> None:
    assert load(None, {"DS01_EXPORTER_BIND": text}, {}).settings.listeners.ds01 == address
    named = {"DS01_EXPORTER_BIND": text, "GPUCOMMONS_LISTENERS_DS01": "127.0.0.1:1"}
    assert load(None, named, {}).settings.listeners.ds01 == "127.0.0.1:1", "our own variable has precedence"


@pytest.mark.parametrize(
    ("bind", "port", "address"),
    [
        (None, "9201", "127.0.0.1:9201"),
        ("0.0.0.0", "9201", "0.0.0.0:9201"),
        ("", "9201", ":9201"),
        ("::", "9201", "[::]:9201"),
        ("127.0.0.1:9201", "9201", "127.0.0.1:9201"),
    ],
)
def test_the_bind_and_port_variables_of_ds01_make_one_address(bind: str | None, port: str, address: str) -> None:
    given = {"DS01_EXPORTER_PORT": port} | ({} if bind is None else {"DS01_EXPORTER_BIND": bind})
    loaded = load(None, given, {})
    assert loaded.settings.listeners.ds01 == address
    names = "DS01_EXPORTER_PORT" if bind is None else "DS01_EXPORTER_BIND and DS01_EXPORTER_PORT"
    assert loaded.origins["listeners.ds01"] == f"environment {names}"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"DS01_EXPORTER_PORT": "http"}, "DS01_EXPORTER_PORT: expected a port from 0 to 65535, got 'http'"),
        ({"DS01_EXPORTER_PORT": ""}, "DS01_EXPORTER_PORT: expected a port from 0 to 65535, got ''"),
        ({"DS01_EXPORTER_PORT": "65536"}, "DS01_EXPORTER_PORT: expected a port from 0 to 65535, got '65536'"),
        (
            {"DS01_EXPORTER_BIND": "0.0.0.0:http"},
            "DS01_EXPORTER_BIND: invalid address '0.0.0.0:http': 'http' is not a port from 0 to 65535; "
            "use HOST:PORT, such as 127.0.0.1:9460 or [::1]:9460, or a host alone",
        ),
        (
            {"DS01_EXPORTER_BIND": "two words", "DS01_EXPORTER_PORT": "9201"},
            "DS01_EXPORTER_BIND: invalid address 'two words': no colon between host and port; "
            "use HOST:PORT, such as 127.0.0.1:9460 or [::1]:9460, or a host alone",
        ),
        (
            {"DS01_EXPORTER_BIND": "0.0.0.0:9101", "DS01_EXPORTER_PORT": "9201"},
            "DS01_EXPORTER_PORT: 9201 contradicts DS01_EXPORTER_BIND=0.0.0.0:9101; unset one of the two",
        ),
    ],
)
def test_an_error_names_the_variable_of_ds01(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, given, {})
    assert str(caught.value) == message


def test_the_state_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert state_directory({"STATE_DIRECTORY": "/var/lib/x:/var/lib/y", "HOME": "/root"}, 0) == Path("/var/lib/x")
    assert state_directory({}, 0) == Path("/var/lib/gpucommons")
    assert state_directory({"HOME": "/home/a"}, 1000) == Path("/home/a/.local/state/gpucommons")
    assert state_directory({"HOME": "/home/a", "XDG_STATE_HOME": "/s"}, 1000) == Path("/s/gpucommons")
    monkeypatch.setenv("STATE_DIRECTORY", "/state")
    assert ledger_file(Settings()) == Path("/state/ledger.sqlite")
    named = load(None, {"GPUCOMMONS_LEDGER_FILE": "/x/y", "GPUCOMMONS_EVENTS_OWN_FILE": "/x/z"}, {}).settings
    assert ledger_file(named) == Path("/x/y")
    assert own_event_log(named) == Path("/x/z")
    assert ledger_file(Settings(), "lab") == Path("/state/ledger-lab.sqlite"), "a simulation has its own ledger"
    assert own_event_log(Settings(), "lab") == Path("/state/events-lab.jsonl")
    assert ledger_file(named, "lab") == Path("/x/y"), "unless the settings name one"
    assert own_event_log(named, "lab") == Path("/x/z")
