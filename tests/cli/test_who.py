"""`gpucommons who` on the command line, with a driver that lists real processes of this machine."""

import json
import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from fakes.nvml.build import build
from fakes.nvml.control import FakeNvml, process, usage
from gpucommons.faces.documents.resources import RESOURCES
from needs import needs_program
from running import command_process

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


def test_json_is_the_document_of_the_api(driver: FakeNvml, sleeper: int) -> None:
    done = command_process("who", "--json", environment=driver.environment())
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (resource,) = (resource for resource in RESOURCES if resource.name == "who")
    Draft202012Validator(resource.schema).validate(document)
    rows = {row["gpu_index"]: row for row in document["who"]["processes"].values()}
    assert (rows[0]["pid"], rows[0]["uid"], rows[0]["name"]) == (sleeper, os.getuid(), "sleep")
    assert rows[0]["user"] == pwd.getpwuid(os.getuid()).pw_name
    assert (rows[0]["memory_bytes"], rows[0]["memory_basis"]) == (GIB, "measured")
    assert rows[1]["reason"] in ("process_gone", "pid_namespace")
    key = next(key for key, row in document["who"]["processes"].items() if row["pid"] == sleeper)
    assert rows[0]["command"] == "sleep 600", "the whole command, not the kernel's name"
    assert document["host_use"][key]["rss_bytes"] > 0
    (owner,) = document["who"]["owners"].values()
    assert owner["memory_bytes"] == GIB


@pytest.mark.long
def test_who_as_a_table_of_one_gpu(driver: FakeNvml, sleeper: int) -> None:
    done = command_process(
        "who", "--gpu", "0", "--user", pwd.getpwuid(os.getuid()).pw_name, environment=driver.environment()
    )
    assert done.returncode == 0, done.stderr
    assert f" {sleeper}  sleep " in done.stdout
    assert "GPU 1" not in done.stdout


@pytest.mark.long
def test_who_explains_one_process(driver: FakeNvml, sleeper: int) -> None:
    done = command_process("who", "--pid", str(sleeper), environment=driver.environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        f"pid {sleeper} on GPU 0\n  1. pid {sleeper} is 'sleep', running as uid {os.getuid()}"
    )
    assert "\n  owner: " in done.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("--pid", "1"), 1, "pid 1 is not on a GPU now"),
        (("--gpu", "7"), 2, "--gpu: unknown GPU '7'; GPUs of this node: 0, 1"),
    ],
)
def test_an_unknown_pid_or_gpu_is_one_line(
    driver: FakeNvml, arguments: tuple[str, str], status: int, says: str
) -> None:
    done = command_process("who", *arguments, environment=driver.environment())
    assert done.returncode == status
    assert done.stdout == ""
    alone, error = done.stderr.splitlines()
    assert alone.startswith("gpucommons: no agent answers (")
    assert error.startswith("gpucommons: ")
    assert says in error


@pytest.mark.long
def test_who_without_a_driver(tmp_path: Path) -> None:
    done = command_process("who", environment={"LD_LIBRARY_PATH": str(tmp_path)})
    assert done.returncode == 0
    assert done.stdout.startswith("no GPU readings: ") or done.stdout.startswith("GPU ")
