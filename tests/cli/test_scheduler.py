"""`gpucommons scheduler` against a running agent."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucommons.cli.main import main
from running import RunningAgent, command, running_agent
from scheduler.served import Scripted
from waiting import until

# They change while the two documents are fetched, or are kept by the agent alone.
CHANGING = {
    "turn_s",
    "window_usage_s",
    "waited_s",
    "expected_s",
    "quantum_left_s",
    "busy_seconds_total",
    "billed_s_total",
    "timeline",
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("sockets") / "s.sock")


@pytest.fixture(scope="module")
def agent(path: str) -> Iterator[RunningAgent]:
    environment = {
        "GPUCOMMONS_SCHEDULER_SOCKET": path,
        "GPUCOMMONS_SCHEDULER_XPUSHARE_SOCKET": "",
        "NVSHARE_SCHEDULING_MODE": "serial",
    }
    with running_agent("--scheduler", environment=environment) as found:
        yield found


def scheduler(path: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return command("scheduler", *arguments, "--socket", path)


def steady(document: Any) -> Any:
    """Without the values that change, and with N for the seconds in the sentence about a client."""
    if not isinstance(document, dict):
        return document
    found = {key: None if key in CHANGING else steady(value) for key, value in document.items()}
    if isinstance(sentence := found.get("standing_sentence"), str):
        found["standing_sentence"] = re.sub(r"\d+ s\b", "N s", sentence)
    return found


def test_status_json_is_the_document_of_the_api(agent: RunningAgent, path: str) -> None:
    holder = Scripted(path).register("holder", "ns").ask().granted()
    waiter = Scripted(path).register("waiter", "ns").ask()

    def both_clients() -> Any:
        turns = json.loads(agent.get("/api/v1/turns")[1])["turns"]
        known = turns is not None and {holder.id, waiter.id} <= turns["clients"].keys()
        return turns if known and turns["clients"][waiter.id]["wait"] else None

    turns = until(both_clients)
    done = scheduler(path, "status", "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)["turns"]
    assert steady(printed) == steady(turns)
    assert printed["clients"][waiter.id]["wait"]["sentence"] == "another client has the turn"
    for client in (holder, waiter):
        client.close()


def test_status_and_explain_name_running_and_waiting_clients(agent: RunningAgent, path: str) -> None:
    holder = Scripted(path).register("first", "ns").ask().granted()
    waiter = Scripted(path).register("se\x1b[31mcond", "ns").ask()
    status = until(lambda: text if "waiting" in (text := scheduler(path, "status").stdout) else None)
    assert status.startswith("scheduler on, mode serial, 2 clients\n")
    assert "one at a time: serial mode" in status
    assert "safe limit 14.4 GiB (assumed)" in status
    assert f"  running  ns/first ({holder.id}) for " in status
    assert f"  waiting  ns/se\\x1b[31mcond ({waiter.id}) for " in status
    explained = scheduler(path, "explain", waiter.id).stdout
    assert explained.startswith(f"ns/se\\x1b[31mcond ({waiter.id}) on ")
    assert f"another client has the turn; 0 ahead; behind ns/first ({holder.id}); next turn in about" in explained
    assert "has been running for" in scheduler(path, "explain", "ns/first").stdout
    waiter.close()
    idle = Scripted(path).register("idle", "ns")
    assert "is idle: it has no request" in scheduler(path, "explain", "idle").stdout
    off = "the scheduler is off: every client and program runs, unscheduled and unbilled\n"
    assert scheduler(path, "off").stdout == off
    assert "runs unscheduled: the scheduler is off" in scheduler(path, "explain", "idle").stdout
    assert scheduler(path, "status").stdout.startswith("scheduler OFF")
    scheduler(path, "on")
    for client in (holder, idle):
        client.close()


def test_the_documents_of_orders_say_what_is_in_force_then(
    agent: RunningAgent, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    client = Scripted(path).register("limited", "ns").ask().granted()

    def here(*arguments: str) -> tuple[object, str, str]:
        """In this process, which takes a tenth of the time."""
        with pytest.raises(SystemExit) as stopped:
            main(["scheduler", *arguments, "--socket", path])
        return (stopped.value.code, *capsys.readouterr())

    def ordered(*arguments: str) -> Any:
        status, out, err = here(*arguments, "--json")
        assert (status, err) == (0, "")
        return json.loads(out)

    def turns() -> Any:
        return ordered("status")["turns"]

    for verb, state in (("off", False), ("on", True)):
        found = ordered(verb)
        assert found["on"] is turns()["on"] is state
        assert here(verb)[1] == f"{found['answer']}\n"
    found = ordered("set-quantum", "2.5")
    assert found == {"fixed_quantum_s": 2.5, "answer": "a turn lasts 2.5 s from now on"}
    assert turns()["fixed_quantum_s"] == 2.5
    assert ordered("set-quantum", "auto")["fixed_quantum_s"] is turns()["fixed_quantum_s"] is None
    limit = ("set-limit", "ns/limited", "--memory", "2Gi", "--core", "30")
    found = ordered(*limit)
    row = turns()["clients"][client.id]
    assert found == {
        "target": "ns/limited",
        "memory_quota_bytes": row["memory_quota_bytes"],
        "core_quota_percent": row["core_quota_percent"],
        "answer": "ns/limited is limited; 1 connected client updated",
    }
    assert (row["memory_quota_bytes"], row["core_quota_percent"]) == (2 << 30, 30)
    assert here(*limit)[1] == f"{found['answer']}\n"
    cleared = ordered("set-limit", "ns/limited", "--clear")
    assert (cleared["memory_quota_bytes"], cleared["core_quota_percent"]) == (None, None)
    assert here("set-limit", "ns/limited", "--clear", "--json")[0] == 2, "nothing is left to clear"
    client.close()


def test_watch_prints_a_document_in_each_line(agent: RunningAgent, path: str) -> None:
    arguments = [sys.executable, "-m", "gpucommons", "scheduler", "status", "--watch", "--json", "--socket", path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment) as watching:
        assert watching.stdout is not None
        try:
            for _ in range(2):
                assert json.loads(watching.stdout.readline())["turns"]["on"] is True
        finally:
            watching.kill()


def test_a_client_without_a_pod_is_named_by_its_process(agent: RunningAgent, path: str) -> None:
    holder = Scripted(path).register("none", "none").ask().granted()
    running = f"(pid {os.getpid()}) for "
    status = until(lambda: text if running in (text := scheduler(path, "status").stdout) else None)
    assert "none/none" not in status
    explained = scheduler(path, "explain", f"pid:{os.getpid()}").stdout
    assert f"(pid {os.getpid()}) on " in explained
    assert scheduler(path, "explain", "none").returncode != 0
    holder.close()


def test_errors_are_one_line(agent: RunningAgent, path: str, tmp_path: Path) -> None:
    for arguments, expected in (
        (("explain", "absent"), "no client or pod 'absent': see 'gpucommons scheduler status'"),
        (("set-quantum", "0"), "invalid quantum 0.0: use 0.1 to 86400 seconds"),
        (("set-limit", "pod"), "nothing to set: give --memory, --core or both"),
        (("set-limit", "pod", "--memory", "20"), "--memory: '20' is 20 bytes: add a unit, such as 20G for 20 GB"),
    ):
        done = scheduler(path, *arguments)
        assert done.returncode != 0
        assert expected in done.stderr
        assert done.stderr.count("\n") == 1
    done = scheduler(str(tmp_path / "s.sock"), "status")
    assert "start it with: gpucommons up --share" in done.stderr
