"""The commands as a person types them: what they print, and that errors are one line and exit status 2."""

import json
import os
import re
from pathlib import Path

import pytest

from gpucommons import __version__
from parsing import parsed
from running import command


def one_line_error(*arguments: str, environment: dict[str, str] | None = None) -> str:
    done = command(*arguments, environment=environment)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("gpucommons: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_version() -> None:
    assert command("version").stdout.startswith(f"gpucommons {__version__} ")


def test_help_names_every_command() -> None:
    done = command("--help")
    assert done.returncode == 0
    for name in ("up", "sample", "check-config", "version"):
        assert re.search(rf"^ +{name} ", done.stdout, re.MULTILINE)


def test_no_command_at_all_is_help() -> None:
    assert command().stdout == command("--help").stdout


@pytest.mark.parametrize("name", ["up", "sample", "check-config", "version"])
def test_each_command_has_help(name: str) -> None:
    done = command(name, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout


def test_sample_in_each_format() -> None:
    text = parsed(command("sample").stdout)
    assert ("node_memory_total_bytes", ()) in text
    assert ("node_cpu_utilization_ratio", ()) in text, "the sample takes the two readings that a rate needs"
    one = command("sample", "--dialect", "node", "--format", "openmetrics").stdout
    assert all(name.startswith(("cpu_", "node_", "gpu_")) for name, _ in parsed(one, openmetrics=True))
    whole = json.loads(command("sample", "--format", "json", "--simulate", "lab").stdout)
    assert whole["scenario"] == "lab"
    assert whole["readings"]["cpu"]["cores"] == 64


def test_check_config_tells_where_each_value_came_from(tmp_path: Path) -> None:
    file = tmp_path / "g.toml"
    file.write_text("[sampling]\ninterval_s = 7\n")
    done = command("check-config", str(file), environment={"GPUCOMMONS_PROCESSES_BUSIEST": "9"})
    assert done.returncode == 0
    assert re.search(rf"sampling.interval_s +7.0 +file {re.escape(str(file))}\n", done.stdout)
    assert re.search(r"processes.busiest +9 +environment GPUCOMMONS_PROCESSES_BUSIEST\n", done.stdout)
    assert re.search(r"path.procfs +'/proc' +default\n", done.stdout)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sample", "--dialect", "klingon"], "klingon"),
        (["sample", "--format", "xml"], "xml"),
        (["sample", "--simulate", "nowhere"], "lab"),
        (["up", "--listen", "nonsense"], "--listen"),
        (["up", "--interval", "0"], "--interval"),
        (["up", "--interval", "soon"], "--interval"),
        (["up", "--config", "/does/not/exist.toml"], "/does/not/exist.toml"),
        (["up", "--web.config.file", "/does/not/exist.yml"], "/does/not/exist.yml"),
        (["up", "--log-format", "xml"], "--log-format"),
        (["check-config"], "FILE"),
        (["nonsense"], "nonsense"),
        (["up", "--nonsense"], "--nonsense"),
    ],
)
def test_what_is_wrong_is_one_line(arguments: list[str], says: str) -> None:
    assert says in one_line_error(*arguments)


def test_a_wrong_file_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "g.toml"
    file.write_text("[sampling]\nspeed = 7\n")
    assert "sampling.speed" in one_line_error("check-config", str(file))


def test_a_closed_pipe_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    import subprocess
    import sys

    with os.fdopen(write, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "gpucommons.cli.main", "sample", "--simulate", "lab"],
            stdout=closed,
            stderr=subprocess.PIPE,
            timeout=30,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    assert b"Traceback" not in done.stderr
