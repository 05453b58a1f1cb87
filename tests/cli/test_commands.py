"""The commands as a user types them: what they print, and that errors are one line and exit status 2."""

import asyncio
import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from gpucommons import __version__
from gpucommons.agent.agent import Agent
from gpucommons.cli.main import COMMANDS, command_line, main, overview
from gpucommons.cli.up import _announce
from gpucommons.config.accounts import LeasesSettings
from gpucommons.config.settings import Settings, WebSettings
from gpucommons.simulation.scenarios import SCENARIOS
from parsing import parsed
from running import command, command_process


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """`up` configures logging for its process; here its handler would outlive the captured stream."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    for handler in set(root.handlers).difference(handlers):
        root.removeHandler(handler)
    root.setLevel(level)


def here(*arguments: str) -> int:
    """Run a command in this process, as the entry point does."""
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


def one_line_error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert here(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gpucommons: ")
    assert err.count("\n") == 1, err
    return err


def test_version() -> None:
    assert command("version").stdout.startswith(f"gpucommons {__version__} ")
    assert command("--version").stdout == command("version").stdout


def test_help_names_every_command_with_the_first_sentence_of_its_help() -> None:
    loaded, listed = (get_command(each) for each in (command_line(COMMANDS), overview()))
    assert isinstance(loaded, TyperGroup)
    assert isinstance(listed, TyperGroup)
    assert list(listed.commands) == list(loaded.commands)
    for name, found in loaded.commands.items():
        assert listed.commands[name].get_short_help_str(200) == found.get_short_help_str(200), name
    done = command_process("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"\n  {name} " in done.stdout for name in loaded.commands)


@pytest.mark.parametrize(("argument", "status"), [("version", 0), ("--version", 0), ("--help", 0), ("nonsense", 2)])
def test_only_the_requested_command_is_loaded(argument: str, status: int) -> None:
    script = (
        "import sys, atexit\n"
        "from gpucommons.cli.main import main\n"
        "atexit.register(lambda: print(sorted(name for name in sys.modules if name.startswith('gpucommons.'))))\n"
        f"main([{argument!r}])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == status, done.stderr
    assert "gpucommons.cli.version" in done.stdout
    assert "gpucommons.agent" not in done.stdout
    assert "gpucommons.config.settings" not in done.stdout


def test_commands_that_read_do_not_load_the_model_or_the_settings() -> None:
    """They take 0.3 s of CPU time; the values of the model and the settings would double it."""
    reading = ("allocations", "events", "free", "gpus", "leases", "me", "parking", "report", "scheduler", "who", "why")
    script = (
        "import sys\n"
        "import gpucommons.cli.main\n"
        f"for name in {reading!r}: __import__(f'gpucommons.cli.{{name}}')\n"
        "print(*sorted(name for name in sys.modules if name.startswith('gpucommons.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    loaded = set(done.stdout.split())
    assert "gpucommons.cli.me" in loaded, done.stderr
    heavy = ("gpucommons.model.", "gpucommons.rules.", "gpucommons.agent.", "gpucommons.ledger.", "gpucommons.sources.")
    assert [name for name in loaded if name.startswith(heavy)] == ["gpucommons.model.words"]
    assert not loaded & {"gpucommons.config.settings", "gpucommons.config.load", "aiohttp", "textual", "rich"}


@pytest.mark.parametrize("name", ["scheduler", "slurm", "stack"])
def test_a_group_alone_prints_its_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert here(name) == 0
    bare = capsys.readouterr().out
    assert f"gpucommons {name}" in bare
    assert "..." not in bare.partition("Commands:")[2], "the sentence of each command is whole"
    assert here(name, "--help") == 0
    assert capsys.readouterr().out == bare


def test_an_unknown_user_of_who_is_not_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert here("who", "--user", "zzz", "--simulate", "lab") == 1
    out, err = capsys.readouterr()
    assert (out, err.startswith("gpucommons: no user 'zzz' on a GPU")) == ("", True)


@pytest.mark.parametrize(
    "arguments",
    [["scheduler", "on"], ["scheduler", "set-quantum", "auto"], ["park", "1"], ["parked"], ["queue"], ["cancel", "5"]],
    ids=" ".join,
)
def test_a_command_that_needs_an_agent_ends_with_3_without_one(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUCOMMONS_SCHEDULER_SOCKET", str(tmp_path / "scheduler.sock"))
    monkeypatch.setenv("GPUCOMMONS_LEASES_SOCKET", str(tmp_path / "leases.sock"))
    assert here(*arguments) == 3
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "start it with: gpucommons up" in err


def test_a_quantum_is_a_number_or_auto(capsys: pytest.CaptureFixture[str]) -> None:
    assert "invalid quantum 'soon'" in one_line_error(capsys, "scheduler", "set-quantum", "soon")
    assert "--clear removes both" in one_line_error(capsys, "scheduler", "set-limit", "x", "--clear", "--core", "3")


def test_no_command_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert here() == 0
    bare = capsys.readouterr().out
    assert here("--help") == 0
    assert capsys.readouterr().out == bare


@pytest.mark.parametrize("name", ["up", "gpus", "who", "top", "sample", "check-config", "stress", "version", "stack"])
def test_each_command_has_help_of_80_columns(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert here(name, "--help") == 0
    shown = capsys.readouterr().out
    assert f"gpucommons {name}" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert here("--help") == 0
    (summary,) = re.findall(rf"^ +{name} .*", capsys.readouterr().out, re.MULTILINE)
    assert name == "who" or not summary.endswith("..."), "the summary of a command fits in its line"


def test_a_command_that_takes_a_sample_does_not_log_problems() -> None:
    done = command("gpus", "--simulate", "faults")
    assert "1 overheating" in done.stdout
    assert done.stderr == ""


def test_sample_in_each_format() -> None:
    text = parsed(command("sample").stdout)
    assert ("node_memory_total_bytes", ()) in text
    assert ("node_cpu_utilization_ratio", ()) in text, "a rate needs two readings"
    one = command("sample", "--dialect", "node", "--format", "openmetrics").stdout
    assert all(name.startswith(("cpu_", "node_", "gpu_")) for name, _ in parsed(one, openmetrics=True))
    whole = json.loads(command("sample", "--format", "json", "--simulate", "lab").stdout)
    assert whole["simulated"] == "lab"
    assert whole["node"]["cpu"]["cores"] == 64


def test_check_config_prints_the_origin_of_each_value(tmp_path: Path) -> None:
    file = tmp_path / "g.toml"
    file.write_text("[sampling]\ninterval_s = 7\n")
    done = command("check-config", str(file), "--all", environment={"GPUCOMMONS_PROCESSES_BUSIEST": "9"})
    assert done.returncode == 0
    assert re.search(rf"sampling.interval_s +7.0 +file {re.escape(str(file))}\n", done.stdout)
    assert re.search(r"processes.busiest +9 +environment GPUCOMMONS_PROCESSES_BUSIEST\n", done.stdout)
    assert re.search(r'path.procfs +"/proc" +default\n', done.stdout)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sample", "--dialect", "klingon"], "klingon"),
        (["sample", "--format", "xml"], "xml"),
        (["sample", "--simulate", "nowhere"], "lab"),
        (["up", "--listen", "nonsense"], "--listen"),
        (["up", "--listen", "a b:80"], "--listen: invalid address 'a b:80': 'a b' is not a host name; use HOST:PORT"),
        (["up", "--interval", "0"], "--interval"),
        (["up", "--interval", "soon"], "--interval"),
        (["up", "--config", "/does/not/exist.toml"], "/does/not/exist.toml"),
        (["up", "--web.config.file", "/does/not/exist.yml"], "/does/not/exist.yml"),
        (["up", "--log-format", "xml"], "--log-format"),
        (["check-config"], "FILE"),
        (["free", "--simulate", "lab", "--export", "--json"], "--export and --json exclude each other"),
        (["free", "--simulate", "lab", "--export", "--format", "csv"], "--export and --format exclude each other"),
        (["nonsense"], "nonsense"),
        (["up", "--nonsense"], "--nonsense"),
    ],
)
def test_a_usage_error_is_one_line(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in one_line_error(capsys, *arguments)


@pytest.mark.parametrize(
    ("arguments", "page"),
    [(["gpus", "--gpu", "3"], "gpucommons gpus --help"), (["nonsense"], "gpucommons --help")],
)
def test_a_usage_error_names_the_help_of_its_command(
    arguments: list[str], page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"(see: {page})" in one_line_error(capsys, *arguments)


def test_an_error_in_a_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "g.toml"
    file.write_text("[sampling]\nspeed = 7\n")
    assert "sampling.speed" in one_line_error(capsys, "check-config", str(file))


def test_an_agent_without_a_listener_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))

    async def start_and_stop() -> None:
        agent = Agent(Settings(web=WebSettings(listen="", socket="")), SCENARIOS["lab"])
        await agent.bind()
        _announce(agent)
        assert agent.web.addresses == []
        await agent.stop()

    asyncio.run(start_and_stop())


def test_an_agent_without_a_place_for_its_socket_starts_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.delenv("RUNTIME_DIRECTORY")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "absent"))
    caplog.set_level(logging.INFO)

    async def start_and_stop() -> None:
        settings = Settings(web=WebSettings(listen=""), leases=LeasesSettings(enabled="false"))
        agent = Agent(settings, SCENARIOS["lab"])
        await agent.bind()
        assert agent.web.addresses == []
        await agent.stop()

    asyncio.run(start_and_stop())
    assert "no API socket: this user has no runtime directory (XDG_RUNTIME_DIR)" in caplog.text


@pytest.mark.long
def test_a_closed_pipe_is_not_an_error() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "gpucommons", "sample", "--simulate", "lab"],
            stdout=closed,
            stderr=subprocess.PIPE,
            timeout=30,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    assert b"Traceback" not in done.stderr


def test_an_order_passes_over_the_socket_that_a_killed_agent_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("killed", "running"):
        (tmp_path / name).mkdir()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "killed" / "control.sock"))
    monkeypatch.setenv("GPUCOMMONS_SCHEDULER_SOCKET", str(tmp_path / "killed" / "scheduler.sock"))
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "running"))
    with socket.socket(socket.AF_UNIX) as served:
        served.bind(str(tmp_path / "running" / "control.sock"))
        served.listen()

        def answer() -> None:
            with served.accept()[0] as peer, peer.makefile("rwb") as file:
                file.write(b'{"ok": true, "answer": "did %s"}\n' % json.loads(file.readline())["command"].encode())

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        assert here("scheduler", "off") == 0
        thread.join(10)
    assert capsys.readouterr().out == "did off\n"


def test_a_place_that_cannot_be_looked_at_has_no_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the directory of another user, which `su` keeps in XDG_RUNTIME_DIR."""
    monkeypatch.setenv("GPUCOMMONS_SCHEDULER_SOCKET", str(tmp_path / "scheduler.sock"))
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/" + 300 * "x")
    assert here("scheduler", "off") == 3
    assert "the scheduler does not run here" in capsys.readouterr().err


def test_help_groups_every_command_by_person_and_fits_80_columns() -> None:
    from gpucommons.cli.main import _PERSONS, COMMANDS

    grouped = [name for names in _PERSONS.values() for name in names]
    assert sorted(grouped) == sorted(COMMANDS)
    text = command("--help").stdout
    for person in _PERSONS:
        assert f"\n{person}:\n" in text
    assert max(map(len, text.splitlines())) <= 80
