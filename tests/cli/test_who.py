"""`gpucommons who` as a person types it, over a driver that lists real processes of this machine."""

import json
import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.nvml.build import build
from fakes.nvml.control import FakeNvml, process, usage
from needs import needs_program
from running import command

GIB = 1 << 30
GONE = 4_000_000


@pytest.fixture(scope="module")
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as running:
        yield running.pid
        running.kill()


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory, sleeper: int) -> FakeNvml:
    needs_program("cc")
    home = tmp_path_factory.mktemp("driver")
    fake = FakeNvml(home / "control", build(home / "library"))
    fake.say(
        "gpus 2", "recording busy", process(0, sleeper, GIB), process(1, GONE, GIB), usage(0, sleeper, 30, age_us=0)
    )
    return fake


def test_who_in_json(driver: FakeNvml, sleeper: int) -> None:
    done = command("who", "--json", environment=driver.environment())
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)["gpus"]
    (row,) = first["processes"]
    assert (row["pid"], row["uid"], row["process"]) == (sleeper, os.getuid(), "sleep")
    assert row["user"] == pwd.getpwuid(os.getuid()).pw_name
    assert row["memory_bytes"] == {"value": GIB, "basis": "measured"}
    assert second["processes"][0]["reason"] in ("process_gone", "pid_namespace")
    for gpu in (first, second):
        owned = sum(row["memory_bytes"]["value"] for row in gpu["processes"] if row["owner"])
        rest = sum(row["memory_bytes"] or 0 for row in gpu["unattributed"])
        assert owned + rest == gpu["memory_used_bytes"]


def test_who_as_a_table_of_one_gpu(driver: FakeNvml, sleeper: int) -> None:
    done = command("who", "--gpu", "0", "--user", pwd.getpwuid(os.getuid()).pw_name, environment=driver.environment())
    assert done.returncode == 0, done.stderr
    assert f" {sleeper}  sleep " in done.stdout
    assert "GPU 1" not in done.stdout


def test_who_explains_one_process(driver: FakeNvml, sleeper: int) -> None:
    done = command("who", "--pid", str(sleeper), environment=driver.environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        f"pid {sleeper} on GPU 0\n  1. pid {sleeper} is 'sleep', running as uid {os.getuid()}"
    )
    assert "\n  owner: " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(("--pid", "1"), "pid 1 is on no GPU now"), (("--gpu", "7"), "no GPU '7'; there are 0, 1")],
)
def test_what_is_not_there_is_one_line(driver: FakeNvml, arguments: tuple[str, str], says: str) -> None:
    done = command("who", *arguments, environment=driver.environment())
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("gpucommons: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_who_without_a_driver(tmp_path: Path) -> None:
    done = command("who", environment={"LD_LIBRARY_PATH": str(tmp_path)})
    assert done.returncode == 0
    assert done.stdout.startswith("no GPU readings: ") or done.stdout.startswith("GPU ")
