"""[quotas]: names that are the user's own, checked as strictly as any other section; and older variables' ways."""

from pathlib import Path

import pytest

from config.test_load import loaded, refused
from gpucommons.cli.main import main
from gpucommons.config.load import load
from gpucommons.config.reference import configuration_page
from gpucommons.config.settings import QuotaSettings, Settings
from gpucommons.config.state_directory import ledger_file, own_event_log, state_directory


def test_a_row_for_each_name(tmp_path: Path) -> None:
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
def test_what_is_wrong_is_named(tmp_path: Path, toml: str, names: list[str]) -> None:
    message = refused(tmp_path, toml)
    for name in [*names, "gpucommons.toml"]:
        assert name in message


def test_they_are_shown_and_documented(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
def test_ds01s_bind_address_opens_its_listener(text: str, address: str) -> None:
    assert load(None, {"DS01_EXPORTER_BIND": text}, {}).settings.listeners.ds01 == address
    named = {"DS01_EXPORTER_BIND": text, "GPUCOMMONS_LISTENERS_DS01": "127.0.0.1:1"}
    assert load(None, named, {}).settings.listeners.ds01 == "127.0.0.1:1", "our own variable counts for more"


def test_where_the_state_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    assert state_directory({"STATE_DIRECTORY": "/var/lib/x:/var/lib/y", "HOME": "/root"}, 0) == Path("/var/lib/x")
    assert state_directory({}, 0) == Path("/var/lib/gpucommons")
    assert state_directory({"HOME": "/home/a"}, 1000) == Path("/home/a/.local/state/gpucommons")
    assert state_directory({"HOME": "/home/a", "XDG_STATE_HOME": "/s"}, 1000) == Path("/s/gpucommons")
    monkeypatch.setenv("STATE_DIRECTORY", "/state")
    assert ledger_file(Settings()) == Path("/state/ledger.sqlite")
    named = load(None, {"GPUCOMMONS_LEDGER_FILE": "/x/y", "GPUCOMMONS_EVENTS_OWN_FILE": "/x/z"}, {}).settings
    assert ledger_file(named) == Path("/x/y")
    assert own_event_log(named) == Path("/x/z")
    assert ledger_file(named, "lab") == Path("/state/ledger-lab.sqlite"), "what is played is never billed"
