"""`gpucommons stack`, `monitoring-manage` and `monitoring-status` as an admin types them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from needs import needs_program
from running import command
from stack.stacks import settings_on_free_ports
from stack.test_check import BROKEN, GOOD

VERBS = ("start", "stop", "restart", "status", "logs", "update", "build", "reload", "check")


def script(function: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """A console script, as pip would install it."""
    code = f"from gpucommons.cli.stack import {function}; {function}()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


@pytest.fixture
def place(tmp_path: Path) -> Iterator[list[str]]:
    """The options that put a stack on free ports below the test's directory."""
    settings = settings_on_free_ports()
    (tmp_path / "site").mkdir()
    config = tmp_path / "gpucommons.toml"
    config.write_text(
        "[stack]\nengine = 'local'\n"
        f"rules_dir = '{tmp_path / 'site'}'\n"
        f"agent = '{settings.agent}'\n"
        f"prometheus_listen = '{settings.prometheus_listen}'\n"
        f"alertmanager_listen = '{settings.alertmanager_listen}'\n"
    )
    options = ["--config", str(config), "--data-dir", str(tmp_path / "data")]
    yield options
    command("stack", "stop", *options)


def test_every_verb_is_there_under_both_names() -> None:
    ours, theirs = command("stack", "--help"), script("manage_main")
    for verb in VERBS:
        assert f"  {verb} " in ours.stdout
        assert f"  {verb} " in theirs.stdout


def test_a_life(tmp_path: Path, place: list[str]) -> None:
    needs_program("prometheus", "prometheus-alertmanager")
    assert command("stack", "check", *place).stdout == "the configuration is good (local engine)\n"
    started = command("stack", "start", *place)
    assert started.returncode == 0, started.stderr
    assert "prometheus: http://127.0.0.1:" in started.stdout
    assert "start it with: gpucommons up" in started.stdout, "there is no agent yet, and that is said"

    status = script("manage_main", "status", *place)
    assert status.returncode == 1, "an agent that does not answer is no healthy stack"
    assert "prometheus    UP" in status.stdout
    assert "agent         DOWN" in status.stdout
    quiet = script("status_main", "--quiet", *place)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (1, "", "")
    assert "DOWN" in script("status_main", *place).stdout

    pids = sorted((tmp_path / "data" / "run").glob("*.pid"))
    before = [file.read_text() for file in pids]
    (tmp_path / "site" / "mine.yml").write_text(BROKEN["a key that does not exist"][0])
    for verb in ("check", "restart", "reload", "update"):
        refused = command("stack", verb, *place)
        assert refused.returncode == 2
        assert refused.stdout == ""
        assert "site/mine.yml:6: field fro not found" in refused.stderr
    assert [file.read_text() for file in pids] == before, "nothing was restarted"

    (tmp_path / "site" / "mine.yml").write_text(GOOD)
    assert command("stack", "restart", *place).returncode == 0
    assert [file.read_text() for file in pids] != before
    assert "alertmanager | " in command("stack", "logs", "alertmanager", "--no-follow", *place).stdout
    stopped = command("stack", "stop", *place)
    assert "the data stays in" in stopped.stdout
    assert not list((tmp_path / "data" / "run").glob("*.pid"))


def test_several_problems_are_several_lines(tmp_path: Path, place: list[str]) -> None:
    needs_program("promtool", "amtool")
    for name in ("a", "b"):
        (tmp_path / "site" / f"{name}.yml").write_text(BROKEN["an expression that does not end"][0])
    refused = command("stack", "check", *place)
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 2
    assert all(line.startswith("gpucommons: ") for line in refused.stderr.splitlines())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["logs", "nonsense", "--engine", "local"], "there are prometheus, alertmanager"),
        (["start", "--engine", "podman"], "compose, local"),
        (["start", "--engine", "compose", "--foreground"], "--engine local"),
        (["nonsense"], "nonsense"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, arguments: list[str], says: str) -> None:
    done = command("stack", *arguments, *(["--data-dir", str(tmp_path)] if len(arguments) > 1 else []))
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_place_that_is_not_ours_is_said(tmp_path: Path) -> None:
    needs_program("prometheus", "prometheus-alertmanager")
    (tmp_path / "file").touch()
    done = command("stack", "start", "--engine", "local", "--data-dir", str(tmp_path / "file"))
    assert done.returncode == 2
    assert str(tmp_path / "file") in done.stderr
    assert done.stderr.count("\n") == 1
    assert "fault of gpucommons" not in done.stderr


def test_in_the_foreground_it_stays_until_it_is_told_to_end(tmp_path: Path, place: list[str]) -> None:
    needs_program("prometheus", "prometheus-alertmanager")
    process = subprocess.Popen(
        [sys.executable, "-m", "gpucommons.cli.main", "stack", "start", "--foreground", *place],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        while "prometheus    UP" not in command("stack", "status", *place).stdout:
            assert process.poll() is None
        process.terminate()
        assert process.wait(30) == 0
        assert not list((tmp_path / "data" / "run").glob("*.pid"))
    finally:
        process.kill()
        process.wait()
