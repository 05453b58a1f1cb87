"""Names from outside never reach a terminal or a spreadsheet as commands, whichever command prints them."""

import csv
import io
import json
import logging
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cli.test_accounts import allocated, rendered_allocations, run, state, written
from cli.test_gpus import START, table_of
from gpucommons.cli.gpus_view import missing
from gpucommons.cli.logs import HumanFormatter, JsonFormatter
from gpucommons.cli.stack import _print_states
from gpucommons.cli.text_table import Format, TextTable
from gpucommons.model.allocations import Account
from gpucommons.model.events import Event, format_line
from gpucommons.simulation.lab_gpus import LabGpus
from gpucommons.stack.health import ServiceHealth
from holding.test_allocations import SPLIT, managed
from ledger.builders import batch
from running import command, running_agent
from scheduler.served import Scripted
from waiting import until

# Clears the screen, sets the title, returns to the start of the line, reverses the text, begins a line.
NAME = "=eve\x1b[2J\x1b]0;t\x07\x9b31m\r\u202e\u2066\u200b\nroot"

__all__ = ["state"]


def assert_harmless(text: str, *, name: bool = True) -> None:
    found = sorted({character for character in text if not character.isprintable()} - {"\n"})
    assert not found, found
    assert not name or "1b[2J" in text
    # The last line of the hostile name, on a line of its own.
    assert "root" not in text.splitlines()


@pytest.fixture(scope="module")
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = str(tmp_path_factory.mktemp("sockets") / "s.sock")
    environment = {
        "GPUCOMMONS_SCHEDULER_SOCKET": path,
        "GPUCOMMONS_SCHEDULER_XPUSHARE_SOCKET": "",
        "NVSHARE_SCHEDULING_MODE": "serial",
    }
    with running_agent("--scheduler", environment=environment):
        yield path


def test_the_scheduler_commands(socket_path: str) -> None:
    holder = Scripted(socket_path).register(NAME, NAME, gpu=NAME).ask().granted()
    waiter = Scripted(socket_path).register(NAME, NAME, gpu=NAME).ask()

    def text(*arguments: str) -> str:
        done = command("scheduler", *arguments, "--socket", socket_path)
        return done.stdout + done.stderr

    status = until(lambda: found if "  waiting  " in (found := text("status")) else None)
    assert_harmless(status)
    for arguments in (("explain", holder.id), ("explain", waiter.id), ("explain", NAME), ("explain", f"{NAME}?")):
        assert_harmless(text(*arguments))
    assert_harmless(text("set-limit", NAME, "--core", "50"))
    assert_harmless(text("set-limit", "pod", "--core", NAME))
    assert_harmless(text("status", "--json"), name=False)


@pytest.mark.parametrize("format", Format)
def test_report_allocations_and_events(state: Path, capsys: pytest.CaptureFixture[str], format: Format) -> None:
    written(state, [batch(1201, Account("user", NAME, user=NAME, group=NAME), time.time() - 3600)])
    event = Event(time.time() - 30, "allocation.seen", NAME, "gpucommons", {"slot": NAME})
    (state / "events.jsonl").write_bytes(format_line(event))
    for by in ("user", "group"):
        assert_harmless(run(capsys, "report", "--by", by, "--format", format))
    assert_harmless(run(capsys, "events", "--format", format))
    snapshot = allocated(managed(NAME, NAME, "1:0"), gpus=(SPLIT,))
    assert_harmless(rendered_allocations(snapshot, None, format))


def test_json_has_the_same_values(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    event = Event(time.time() - 30, "allocation.seen", NAME, "gpucommons", {"slot": NAME + "\x7f\U000e0041é研"})
    (state / "events.jsonl").write_bytes(format_line(event))
    text = run(capsys, "events", "--format", "json")
    assert_harmless(text)
    assert "é研" in text
    (found,) = json.loads(text)["events"].values()
    assert (found["user"], found["details"]) == (NAME, event.details)


@pytest.mark.parametrize("formatter", [HumanFormatter(), JsonFormatter()])
def test_log_lines(formatter: logging.Formatter) -> None:
    try:
        raise ValueError(NAME)
    except ValueError:
        line = formatter.format(logging.LogRecord("n", logging.INFO, "p", 1, "client %s", (NAME,), sys.exc_info()))
    assert_harmless(line)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_metrics_are_exact_in_a_pipe_and_escaped_in_a_terminal(is_terminal: bool) -> None:
    """As `sample` prints them. A label's value may hold any character but a line break."""
    text = 'a{b="\x1b[2J\u202e"} 1\nc 2\n'
    reader, writer = pty.openpty() if is_terminal else os.pipe()
    with os.fdopen(reader, "rb", 0) as output, os.fdopen(writer, "wb", 0):
        child = [
            sys.executable,
            "-c",
            "import sys; from gpucommons.cli.output import show_data; show_data(sys.argv[1])",
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8"}
        subprocess.run([*child, text], stdout=writer, env=environment, check=True)
        shown = output.read(1000).decode().replace("\r\n", "\n")
    assert (shown == text) is not is_terminal
    if is_terminal:
        assert_harmless(shown)


def test_gpus() -> None:
    reading = LabGpus(START).at(1.0)
    gpu = reading.gpus[0]._replace(identity=replace(reading.gpus[0].identity, name=NAME, uuid=NAME))
    assert_harmless("\n".join(table_of(reading._replace(gpus=(gpu,), driver_version=NAME))))
    assert_harmless(missing({"node": {"sources": {"nvml": {"detail": NAME, "remedy": NAME}}}}))


def test_settings_and_errors(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f"[scheduler]\nsocket = {json.dumps('/run/' + NAME)}\n")
    for arguments in (("check-config", str(config)), ("check-config", NAME), (NAME,), ("report", "--since", NAME)):
        done = command(*arguments)
        assert_harmless(done.stdout + done.stderr, name=False)


def test_the_states_of_the_stack(capsys: pytest.CaptureFixture[str]) -> None:
    _print_states([ServiceHealth("prometheus", False, NAME)])
    assert_harmless(capsys.readouterr().out)


@pytest.mark.long
def test_csv_has_no_formulas() -> None:
    cells = ["=1+1", "+1", "-1+1", "@x", "\t=1", "-1.5", "-3", "a=b", "", "\uff1d1+1", "\uff20x"]
    written_csv = TextTable(("value",), [(cell,) for cell in cells], ("=total",)).as_csv()
    (_, *rows) = csv.reader(io.StringIO(written_csv))
    assert ["".join(row) for row in rows] == [
        "'=1+1",
        "'+1",
        "'-1+1",
        "'@x",
        "\\t=1",
        "-1.5",
        "-3",
        "a=b",
        "",
        "'\uff1d1+1",
        "'\uff20x",
        "'=total",
    ]
