"""`gpucommons stack`, `monitoring-manage` and `monitoring-status` as an administrator types them."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gpucommons.cli.main import main
from gpucommons.cli.stack import manage_main, status_main
from gpucommons.stack.health import HttpResponse, healthy, judge, judge_targets, probe
from needs import needs_program
from running import running_agent
from stack.stacks import settings_on_free_ports
from stack.test_check import BROKEN, GOOD
from terminal import in_terminal, without_escapes

VERBS = ("start", "stop", "restart", "status", "logs", "update", "build", "reload", "check")


class Done(NamedTuple):
    status: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture
def type_in(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run an entry point in this process, as its script does."""

    def run(entry: Callable[[], None], *arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["program", *arguments])
        with pytest.raises(SystemExit) as stopped:
            entry()
        assert isinstance(stopped.value.code, int)
        return Done(stopped.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def place(tmp_path: Path, type_in: Command) -> Iterator[list[str]]:
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
    type_in(main, "stack", "stop", *options)


def test_both_names_have_every_verb(type_in: Command) -> None:
    ours, theirs = type_in(main, "stack", "--help"), type_in(manage_main)
    for verb in VERBS:
        assert f"  {verb} " in ours.out
        assert f"  {verb} " in theirs.out


def settled(status: str) -> dict[str, Any]:
    """The document without the progress of the targets, which Prometheus finds and scrapes meanwhile."""
    document: dict[str, Any] = json.loads(status)
    for name in ("state", "detail"):
        del document["services"]["targets"][name]
    return document


@pytest.mark.long
def test_check_start_status_restart_logs_and_stop(tmp_path: Path, place: list[str], type_in: Command) -> None:
    needs_program("prometheus", "prometheus-alertmanager")
    assert type_in(main, "stack", "check", *place) == (0, "the configuration is valid (local engine)\n", "")
    checked = type_in(main, "stack", "check", "--json", *place)
    assert (checked.status, checked.err) == (0, "")
    assert json.loads(checked.out) == {"engine": "local", "valid": True, "problems": []}
    started = type_in(main, "stack", "start", *place)
    assert started.status == 0, started.err
    assert "prometheus: http://127.0.0.1:" in started.out
    assert "start it with: gpucommons up" in started.out, "it reports that no agent runs"

    status = type_in(manage_main, "status", *place)
    assert status.status == 1, "a stack without an agent is not healthy"
    assert "prometheus    UP" in status.out
    document = settled(type_in(manage_main, "status", "--json", *place).out)
    assert (document["engine"], document["data_dir"]) == ("local", str(tmp_path / "data"))
    assert f"prometheus: {document['services']['prometheus']['url']}\n" in started.out
    again = type_in(main, "stack", "start", "--json", *place)
    assert (again.status, settled(again.out)) == (0, document)
    assert again.err == "already running; apply changed settings with 'reload' or 'restart'\n"
    reloaded = type_in(main, "stack", "reload", "--json", *place)
    assert (reloaded.status, settled(reloaded.out)) == (0, document)
    assert reloaded.err == "prometheus: reloaded\nalertmanager: reloaded\n"
    assert document["services"]["prometheus"]["state"] == "UP"
    assert document["services"]["agent"]["state"] == "DOWN"
    assert "agent         DOWN" in status.out
    assert type_in(status_main, "--quiet", *place) == (1, "", "")
    assert "DOWN" in type_in(status_main, *place).out

    pids = sorted((tmp_path / "data" / "run").glob("*.pid"))
    before = [file.read_text() for file in pids]
    (tmp_path / "site" / "mine.yml").write_text(BROKEN["a key that does not exist"][0])
    for verb in ("check", "restart", "reload", "update"):
        refused = type_in(main, "stack", verb, *place)
        assert (refused.status, refused.out) == (2, "")
        assert "site/mine.yml:6: field fro not found" in refused.err
    checked = type_in(main, "stack", "check", "--json", *place)
    (problem,) = json.loads(checked.out)["problems"]
    assert (checked.status, json.loads(checked.out)["valid"], problem["line"]) == (2, False, 6)
    assert checked.err == f"gpucommons: {problem['file']}:6: {problem['message']}\n"
    assert [file.read_text() for file in pids] == before, "nothing was restarted"

    (tmp_path / "site" / "mine.yml").write_text(GOOD)
    restarted = type_in(main, "stack", "restart", "--json", *place)
    assert restarted.status == 0, restarted.err
    assert json.loads(restarted.out)["services"]["prometheus"]["state"] == "UP"
    assert "prometheus: http://127.0.0.1:" in restarted.err
    updated = type_in(main, "stack", "update", "--json", *place)
    assert (updated.status, settled(updated.out)) == (0, settled(restarted.out))
    assert updated.err.startswith("the running programs are the installed ones")
    assert [file.read_text() for file in pids] != before
    assert "alertmanager | " in type_in(main, "stack", "logs", "alertmanager", "--no-follow", *place).out
    stopped = type_in(main, "stack", "stop", "--json", *place)
    assert (stopped.status, "the data stays in" in stopped.err) == (0, True)
    assert {row["state"] for row in json.loads(stopped.out)["services"].values()} == {"DOWN"}
    assert type_in(main, "stack", "stop", *place) == (0, "nothing is running\n", "")
    assert not list((tmp_path / "data" / "run").glob("*.pid"))


def test_each_problem_has_a_line(tmp_path: Path, place: list[str], type_in: Command) -> None:
    needs_program("promtool", "amtool")
    for name in ("a", "b"):
        (tmp_path / "site" / f"{name}.yml").write_text(BROKEN["an expression that does not end"][0])
    refused = type_in(main, "stack", "check", *place)
    assert refused.status == 2
    assert len(refused.err.splitlines()) == 2
    assert all(line.startswith("gpucommons: ") for line in refused.err.splitlines())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["logs", "nonsense", "--engine", "local"], "unknown service 'nonsense'; use one of prometheus, alertmanager"),
        (["start", "--engine", "podman"], "compose, local"),
        (["start", "--engine", "compose", "--foreground"], "--engine local"),
        (["start", "--engine", "local", "--foreground", "--json"], "--json and --foreground exclude each other"),
        (["nonsense"], "nonsense"),
    ],
)
def test_a_usage_error_is_one_line(tmp_path: Path, arguments: list[str], says: str, type_in: Command) -> None:
    done = type_in(main, "stack", *arguments, *(["--data-dir", str(tmp_path)] if len(arguments) > 1 else []))
    assert done.status == 2
    assert says in done.err
    assert done.err.count("\n") == 1


def test_an_unusable_data_directory_is_an_error(tmp_path: Path, type_in: Command) -> None:
    needs_program("prometheus", "prometheus-alertmanager")
    (tmp_path / "file").touch()
    done = type_in(main, "stack", "start", "--engine", "local", "--data-dir", str(tmp_path / "file"))
    assert done.status == 2
    assert str(tmp_path / "file") in done.err
    assert done.err.count("\n") == 1
    assert "internal error" not in done.err


@pytest.mark.long
def test_it_stays_in_the_foreground_until_sigterm(tmp_path: Path, place: list[str]) -> None:
    needs_program("prometheus", "prometheus-alertmanager")
    process = subprocess.Popen(
        [sys.executable, "-m", "gpucommons", "stack", "start", "--foreground", *place],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    toml = Path(place[1]).read_text()
    address = toml.partition("prometheus_listen = '")[2].partition("'")[0]
    try:
        while not healthy(probe({"prometheus": f"http://{address}/-/ready"}, address)[:1]):
            assert process.poll() is None
        process.terminate()
        assert process.wait(30) == 0
        assert not list((tmp_path / "data" / "run").glob("*.pid"))
    finally:
        process.kill()
        process.wait()


def test_without_a_docker_that_answers_there_is_one_line(
    tmp_path: Path, type_in: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\necho Traceback >&2\nexit 1\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    done = type_in(main, "stack", "start", "--engine", "compose", "--data-dir", str(tmp_path / "data"))
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("gpucommons: Docker does not answer; start it with: ")
    assert done.err.count("\n") == 1


@pytest.mark.long
def test_start_waits_for_the_first_scrape_and_shows_it(place: list[str], type_in: Command, tmp_path: Path) -> None:
    needs_program("prometheus", "prometheus-alertmanager")
    with running_agent("--simulate", "lab") as agent:
        config = Path(place[1])
        lines = [line for line in config.read_text().splitlines() if not line.startswith("agent =")]
        config.write_text(
            "\n".join(
                [
                    *lines,
                    f"agent = '{agent.url.removeprefix('http://')}'",
                    "scrape_interval_s = 1",
                    "ds01_interval_s = 1",
                ]
            )
            + "\n"
        )
        status, shown = in_terminal(100, "stack", "start", *place)
        assert status == 0, shown
        assert "waiting for targets: " in shown
        assert re.search(r"[\r\n]targets: all \d+ up\n", without_escapes(shown)), shown
        assert type_in(main, "stack", "status", *place).status == 0


def test_what_will_be_ready_soon_is_starting() -> None:
    replaying = judge("prometheus", HttpResponse(503, b"Service Unavailable"))
    unscraped = judge_targets(HttpResponse(200, b'{"data": {"activeTargets": [{"health": "unknown"}]}}'))
    down = judge_targets(HttpResponse(200, b'{"data": {"activeTargets": [{"health": "down"}]}}'))
    refused = judge("prometheus", "Connection refused")
    assert [health.starting for health in (replaying, unscraped, down, refused)] == [True, True, False, False]
