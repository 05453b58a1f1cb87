"""The demo as an ordinary user sees it: `gpucommons up --simulate lab --share` as root, then commands as uid 1000.

The machine is one of its own (testbeds/hosts.py), so that every address is the default. The commands of `run` are real
processes; those of the simulated users are not.
"""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from needs import needs_program
from testbeds.hosts import Host, host
from users import as_user
from waiting import until

pytestmark = pytest.mark.long

PROGRAM = "/opt/gpucommons/bin/gpucommons"
# Uids that simulated users had once.
EVA, FINN = 1000, 1001
PLAIN = {"RUNTIME_DIRECTORY": "", "STATE_DIRECTORY": "", "XDG_RUNTIME_DIR": "", "HOME": "/nowhere"}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    needs_program("setpriv")
    log = tmp_path_factory.mktemp("demo") / "log"
    with host() as machine:
        machine.install(PROGRAM)
        users = "".join(f"{name}:x:{uid}:{uid}::/:/bin/sh\n" for name, uid in (("eva", EVA), ("finn", FINN)))
        system = [
            line for line in Path("/etc/passwd").read_text().splitlines() if line.split(":")[2] not in ("1000", "1001")
        ]
        machine.write("/etc/passwd", "\n".join(system) + "\n" + users)
        with machine.running([PROGRAM, "up", "--simulate", "lab", "--share"], log, PLAIN):
            until(lambda: "writing" in log.read_text(), "the agent keeps accounts", within_s=60)
            until(lambda: len(leases(machine)) >= 3, "simulated users have leases", within_s=60)
            yield machine


def typed(machine: Host, *arguments: str, uid: int = EVA) -> list[str]:
    entered = ["nsenter", f"--target={machine.pid}", "--net", "--mount", "--root", "--wd"]
    return [*entered, *as_user(uid), PROGRAM, *arguments]


def asked(machine: Host, *arguments: str, uid: int = EVA, status: int | None = 0) -> str:
    done = subprocess.run(
        typed(machine, *arguments, uid=uid), capture_output=True, text=True, timeout=120, env={**os.environ, **PLAIN}
    )
    assert status is None or done.returncode == status, (arguments, done.stdout, done.stderr)
    return done.stdout + done.stderr


def document(machine: Host, *arguments: str, uid: int = EVA) -> Any:
    return json.loads(asked(machine, *arguments, "--json", uid=uid))


def leases(machine: Host, uid: int = EVA) -> Any:
    return document(machine, "queue", uid=uid)["leases"]


@contextmanager
def started(machine: Host, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        typed(machine, "run", *arguments), stderr=subprocess.PIPE, text=True, env={**os.environ, **PLAIN}
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def test_the_demo_answers_the_questions_of_an_ordinary_user(demo: Host) -> None:
    """Who holds the GPUs; a GPU for a command; what it uses; why another one waits; what it was."""
    held = document(demo, "gpus")
    assert held["hidden"] is None or held["hidden"]["sections"] == ["messages"]
    assert re.search(r"\balice\b", asked(demo, "gpus"))
    assert re.search(r"\bemeka\b", asked(demo, "who"))
    assert re.search(r"\bchen\b", asked(demo, "allocations"))
    assert asked(demo, "me").startswith("eva (uid 1000)\njobs: none holds a GPU\n"), "not taken for a simulated user"

    # Between two jobs of the scenario a part of a GPU is free for a moment.
    none_free = until(
        lambda: shown if (shown := asked(demo, "free", "--export", status=None)) and "=\n" in shown else None,
        "nothing is free",
        within_s=60,
    )
    assert none_free.startswith("CUDA_VISIBLE_DEVICES=\n")
    assert "waits in line" in none_free

    with started(demo, "--share", "--name", "secret project", "sleep", "300") as sleeping:
        id, own = until(
            lambda: next(((id, row) for id, row in leases(demo).items() if row["user"] == "eva"), None), "a lease"
        )
        assert own["name"] == "secret project"
        assert leases(demo, FINN)[id]["name"] == "sleep", "others see the program, not what a user typed"
        assert leases(demo, 0)[id]["name"] == "secret project", "root administers the queue"
        for other in ("allocations", "gpus", "events", "who", "queue"):
            assert "secret" not in asked(demo, other, uid=FINN), other
        held = until(lambda: found if "sleep" in (found := explained(demo, f"lease-{id}")) else None, "why of a job")
        assert held.startswith(f"sleep (lease-{id}) of eva holds GPU {own['slots'][0]}"), held
        assert "; none of its processes is on the GPU now." in " ".join(held.split())
        me = until(lambda: found if "sleep" in (found := asked(demo, "me")) else None, "it holds a GPU")
        assert re.search(rf"^{re.escape(own['slots'][0])} +sleep +lease ", me, re.MULTILINE), me

        with started(demo, "--memory", "10G", "true") as waiting:
            why = until(lambda: found if "waiting" in (found := explained(demo)) else None, "a request waits")
            assert re.search(r"request \d+ \(true\) has been waiting for [\d.]+ s: GPU \S+ is held by \w+", why), why
            assert re.search(r"place \d of \d", why), why
            assert "none of your programs waits" not in asked(demo, "me")
            assert re.search(r"^\d +\d+ +eva +true ", asked(demo, "queue"), re.MULTILINE)
            waiting.send_signal(signal.SIGINT)
            assert waiting.wait(30) == 130
        assert not any(row["user"] == "eva" for row in document(demo, "queue")["waiting"].values())

        job = f"lease-{id}"
        until(lambda: document_or_none(demo, job), "it is billed", within_s=60)
        sleeping.send_signal(signal.SIGINT)
        sleeping.wait(30)
    report = asked(demo, "report", "--job", job)
    assert report.startswith(f"{job} of eva: "), report
    assert "GPU-hours" in report


def explained(machine: Host, *target: str) -> str:
    done = subprocess.run(
        typed(machine, "why", *target), capture_output=True, text=True, timeout=120, env={**os.environ, **PLAIN}
    )
    return done.stdout


def document_or_none(machine: Host, job: str) -> Any:
    done = subprocess.run(
        typed(machine, "report", "--job", job, "--json"),
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **PLAIN},
    )
    return json.loads(done.stdout)["job"] if done.returncode == 0 else None


def test_what_the_readme_types_after_make_demo_has_an_answer(demo: Host) -> None:
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    (sentence,) = re.findall(r"^In a second terminal: (.*?)\. ", readme, re.MULTILINE)
    commands = [text.removeprefix(".venv/bin/gpucommons ") for text in re.findall(r"`([^`]+)`", sentence)]
    assert commands[-1] == "top", "the only one that does not end by itself"
    for command in commands[:-1]:
        assert asked(demo, *command.split()).count("\n") >= 3, command


def test_a_running_job_is_reported_with_what_limits_it(demo: Host) -> None:
    """The sentence of `why PID`, for a job of the lab that has a process on a GPU."""

    def reported() -> bool:
        return any(
            re.search(r"^now: .+ \(pid \d+\): it shares GPU \S+ with \w+", asked(demo, "report", "--job", job), re.M)
            for job in (f"lease-{id}" for id, lease in leases(demo).items() if lease["shared"])
            if (document_or_none(demo, job) or {}).get("ran_s")
        )

    until(reported, "a lease shares its GPU with another user", within_s=200)


def test_parked_programs_of_another_node_are_listed(demo: Host) -> None:
    here = document(demo, "parked")
    there = document(demo, "parked", "--connect", "http://127.0.0.1:9460")
    assert here["parking"].keys() == there["parking"].keys()


def test_queue_and_reservations_of_another_node_are_listed(demo: Host) -> None:
    """The demo has them for a user without a lease; over TCP as over the socket."""
    id = json.loads(asked(demo, "reserve", "--from", "tomorrow 9:00", "--for", "1h", "--json", uid=FINN))["id"]
    there = ("--connect", "http://127.0.0.1:9460")
    # Simulated leases begin and end between two requests.
    until(lambda: document(demo, "queue")["leases"].keys() == document(demo, "queue", *there)["leases"].keys())
    row = until(lambda: document(demo, "reservations", *there).get(id), "it is in the next snapshot")
    assert row == document(demo, "reservations")[id]
    assert (row["user"], row["active"]) == ("finn", False)
    assert re.search(rf"^{id} +finn .* to come$", asked(demo, "reservations", *there), re.MULTILINE)
    assert asked(demo, "unreserve", id, uid=EVA, status=1).endswith("see 'gpucommons reservations'\n")
    assert asked(demo, "unreserve", id, uid=FINN) == f"reservation {id} of finn is removed\n"
