"""Sections in which the user chooses the names, such as [quotas], and the variables of DS01."""

import json
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
from running import command


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


MISTAKEN = """\
[scheduler]
turns = 3
[lease_quotas]
a = { usr = "alice", gpus = 2 }
b = 4
[idle_rules]
c = { user = "bob", email = "no address" }
"""
CONTRADICTING = """\
[lease_quotas]
both = { user = "*", group = "students", gpus = 1 }
none = { user = "*" }
[sharing_quotas]
empty = { group = "", core = 10 }
half = { sleep_url = "http://127.0.0.1/sleep" }
[owners]
order = "banana"
"""


def test_all_mistakes_of_a_file_are_reported_in_the_order_of_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "gpucommons.toml"
    file.write_text(MISTAKEN)
    done = command("check-config", str(file))
    assert done.returncode == 2
    assert [line.split(": ")[2] for line in done.stderr.splitlines()] == ["line 2", "line 4", "line 5", "line 7"]
    document = json.loads(command("check-config", str(file), "--json").stdout)
    assert [problem["line"] for problem in document["problems"]] == [2, 4, 5, 7]


def test_settings_that_contradict_each_other_are_all_reported(tmp_path: Path) -> None:
    """What keeps the agent from starting; also rules of quotas and of owners."""
    file = tmp_path / "gpucommons.toml"
    file.write_text(CONTRADICTING)
    done = command("check-config", str(file))
    assert done.returncode == 2
    for name in ("lease_quotas.both", "lease_quotas.none", "sharing_quotas.empty", "sharing_quotas.half", "banana"):
        assert name in done.stderr
    assert len(done.stderr.splitlines()) == 5


def test_a_wrong_value_hides_no_contradiction_of_other_sections_and_makes_none(tmp_path: Path) -> None:
    """Of a section with a mistake nothing is judged, since its values are defaults: idle.act = park needs another."""
    file = tmp_path / "gpucommons.toml"
    file.write_text(f"""\
[scheduler]
share_programs = "everyone"
[idle]
act = "park"
[lease_quotas]
wrong = {{ gpus = "many", user = "*" }}
{CONTRADICTING.removeprefix("[lease_quotas]")}""")
    done = command("check-config", str(file))
    assert done.returncode == 2
    found = [line.partition(": ")[2] for line in done.stderr.splitlines()]
    assert [line.partition("line ")[2][:1] for line in found[:2]] == ["2", "6"]
    assert [line.partition(":")[0] for line in found[2:]] == [
        *("sharing_quotas.empty", "sharing_quotas.half", "lease_quotas.both", "lease_quotas.none", "owners.order"),
    ]


def test_groups_users_files_and_directories_that_do_not_exist_are_warnings(tmp_path: Path) -> None:
    (tmp_path / "groups").mkdir()
    (tmp_path / "groups" / "vision.members").write_text("alice\n")
    file = tmp_path / "gpucommons.toml"
    file.write_text(
        f"""
        [ds01]
        groups_directory = "{tmp_path}/groups"
        [leases]
        admin_group = "no-admins"
        [lease_quotas]
        students = {{ group = "no-students", gpus = 4 }}
        vision = {{ group = "vision", gpus = 4 }}
        user = {{ user = "no-user", gpus = 4 }}
        all = {{ user = "no-*", gpus = 4 }}
        [sharing_quotas]
        course = {{ group = "no-course", core = 3, class = "background" }}
        courses = {{ group = "no-*", core = 3 }}
        [events]
        own_file = "{tmp_path}/not-yet-written"
        [stack]
        rules_dir = "{tmp_path}/none"
        slack_webhook_url_file = "{tmp_path}/url"
        """
    )
    done = command("check-config", str(file))
    assert done.returncode == 0
    assert sorted(line.split(": ")[1] for line in done.stderr.splitlines()) == [
        "lease_quotas.students.group",
        "lease_quotas.user.user",
        "leases.admin_group",
        "sharing_quotas.course.group",
        "stack.rules_dir",
        "stack.slack_webhook_url_file",
    ]
    shown = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("sharing_quotas.course.")]
    assert [name.rpartition(".")[2] for name in shown] == ["group", "core", "class"], "and no default"


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
