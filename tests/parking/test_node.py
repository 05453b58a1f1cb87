"""A real agent with its pauser parks programs on fake GPUs, and brings them back."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from cgroup_trees import limited_cgroups
from fakes.gpu.account import Phase
from fakes.shared_gpu import MATMUL, SharedProgram
from gpucommons.config.runtime_directory import control_path
from gpucommons.pauser.backend import State
from parking.state import parking_state
from running import command, command_process
from shared_node import SharedNode, kill, shared_node
from waiting import until

MIB = 1 << 20
IDLE = [Phase(None)]


@pytest.fixture
def node() -> Iterator[SharedNode]:
    with shared_node() as made:
        yield made


def notebook(node: SharedNode, memory_bytes: int = 64 * MIB) -> SharedProgram:
    """A program that computed once and waits for its user since."""
    program = node.program(phases=IDLE, memory_bytes=memory_bytes)
    program.program.wait_for_user()
    return program


@pytest.mark.long
def test_an_idle_program_is_parked_and_comes_back_when_its_user_goes_on(node: SharedNode) -> None:
    node.start_agent(sections="[parking]\nidle_after_s = 4\neager = true\nmin_residence_s = 1\n")
    program = notebook(node)
    node.wait_for(lambda: program.program.state is State.CHECKPOINTED, "it is parked")
    assert (program.program.gpu_bytes, program.program.host_bytes) == (0, 64 * MIB)
    # Longer than a program has to be quiet before it can go on.
    node.shared.let_pass(2.5)
    assert program.program.state is State.CHECKPOINTED, "it sleeps on"
    program.program.run_cell(0.0002)
    node.wait_for(lambda: program.program.cells == 1, "its cell ends")
    assert program.program.gpu_bytes == 64 * MIB


@pytest.mark.long
def test_the_limit_of_its_own_container_counts_and_not_that_of_the_agents() -> None:
    """What is parked is charged there. As in a pod, the agent's cgroup is the root of its cgroup namespace."""
    with limited_cgroups(agent=256 * MIB, narrow=128 * MIB, wide=768 * MIB) as cgroups, shared_node() as node:
        settings = "[parking]\nidle_after_s = 4\neager = true\nmin_residence_s = 1\n"
        node.start_agent(sections=settings, prefix=cgroups.entering("agent"))
        # Begun first, it is the first that would be parked.
        programs = []
        for name in ("narrow", "wide"):
            prefix = ("setsid", *cgroups.entering(name))
            started = node.shared.program(phases=IDLE, memory_bytes=512 * MIB, prefix=prefix)
            started.program.wait_for_user()
            node.wait_for(lambda: node.client(started), "the agent sees it")  # noqa: B023
            programs.append(started.program)
        narrow, wide = programs
        node.wait_for(lambda: wide.state is State.CHECKPOINTED, "it is parked")
        assert wide.host_bytes == 512 * MIB
        assert narrow.state is State.RUNNING


def park_order(node: SharedNode, order: str, target: str, uid: int = 0) -> Any:
    """The answer of the control socket to a user."""
    code = (
        "import os, socket, sys\n"
        "os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(sys.argv[3].encode() + b'\\n')\n"
        "print(s.makefile().readline())\n"
    )
    line = json.dumps({"command": order, "target": target})
    arguments = [sys.executable, "-c", code, control_path(str(node.socket)), str(uid), line]
    return json.loads(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout)


def parked(node: SharedNode) -> Any:
    return parking_state(node.socket)


@pytest.mark.long
def test_an_owner_parks_and_wakes_a_program_and_every_face_shows_it(node: SharedNode) -> None:
    node.start_agent()
    program = node.program(MATMUL[512], memory_bytes=64 * MIB)
    node.wait_for(lambda: node.standing(program), "the agent sees it")
    done = command("park", str(program.pid), "--socket", str(node.socket))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "parked in" in done.stdout
    assert program.program.state is State.CHECKPOINTED
    ((key, row),) = parked(node)["programs"].items()
    assert (row["stage"], row["gpu_bytes"], row["host_bytes"]) == ("parked", 64 * MIB, 64 * MIB)
    assert row["processes"] == [program.pid]
    shown = command("parked", "--json", "--socket", str(node.socket))
    assert json.loads(shown.stdout)["parking"]["programs"].keys() == {key}
    assert "parked, 0.1 GiB in host memory" in node.scheduler("status")
    assert "in host memory" in node.scheduler("explain", f"pid:{program.pid}")
    node.wait_for(lambda: node.standing(program) == "", "it takes no turns")
    node.wait_for(lambda: 'gpucommons_parking_programs{stage="parked"} 1' in node.agent.get("/metrics")[1], "metrics")
    metrics = node.agent.get("/metrics")[1]
    assert 'gpucommons_parking_host_bytes{user="root"} 6.7108864e+07' in metrics or "67108864" in metrics
    node.wait_for(lambda: "program.parked" in node.agent.get("/api/v1/events")[1], "the event")

    done = command("wake", f"pid:{program.pid}", "--socket", str(node.socket))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is back on the GPU" in done.stdout
    program.program.runs()
    assert parked(node)["programs"] == {}
    assert_orders_as_json(node, program, key)
    node.wait_for(lambda: "program.woken" in node.agent.get("/api/v1/events")[1], "the event")
    node.wait_for(lambda: node.standing(program), "it takes part again")


def assert_orders_as_json(node: SharedNode, program: SharedProgram, key: str) -> None:
    """Park, and wake without waiting. The documents agree with the agent's."""
    node.wait_for(lambda: node.standing(program), "the agent sees it again")
    done = command("park", str(program.pid), "--json", "--socket", str(node.socket))
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    last = parked(node)["events"][-1]
    outcome = {name: last[name] for name in ("name", "kind", "unix_s", "bytes", "duration_s", "sentence", "why")}
    assert (outcome["kind"], outcome["bytes"]) == ("parked", 64 * MIB)
    assert found == {"programs": {key: outcome}, "refused": []}
    done = command("wake", str(program.pid), "--no-wait", "--json", "--socket", str(node.socket))
    assert (done.returncode, done.stderr) == (0, "")
    row = json.loads(done.stdout)["programs"][key]
    assert (row["name"], row["kind"]) == (outcome["name"], None), "it was not waited for"
    program.program.runs()


@pytest.mark.long
def test_only_the_owner_and_admins_may_park(node: SharedNode) -> None:
    node.start_agent()
    program = node.program(MATMUL[512], memory_bytes=64 * MIB, uid=4711)
    node.wait_for(lambda: node.standing(program), "the agent sees it")
    refused = park_order(node, "park", str(program.pid), uid=4712)
    assert (refused["ok"], "another user's" in refused["error"]) == (False, True)
    assert not park_order(node, "park", "pid:1")["ok"]
    assert park_order(node, "park", str(program.pid), uid=4711)["answer"]["keys"]
    node.wait_for(lambda: program.program.state is State.CHECKPOINTED, "it is parked")
    assert not park_order(node, "wake", str(program.pid), uid=4712)["ok"]
    assert park_order(node, "wake", "uid:4711", uid=0)["ok"]
    program.program.runs()


@pytest.mark.long
def test_shared_memory_is_not_moved_and_the_reason_is_said(node: SharedNode) -> None:
    node.start_agent(sections="[parking]\nidle_after_s = 1\neager = true\n")
    program = notebook(node)
    program.program.share_memory()
    node.wait_for(lambda: parked(node)["events"], "it was tried")
    (event,) = parked(node)["events"]
    assert (event["kind"], event["why"]) == ("refused", "shared_memory")
    assert "shares GPU memory with another process (CUDA IPC)" in event["sentence"]
    program.program.runs()


@pytest.mark.long
def test_managed_memory_is_tried_once_and_the_program_goes_on(node: SharedNode) -> None:
    node.start_agent(sections="[parking]\nidle_after_s = 1\neager = true\n")
    program = notebook(node)
    program.program.use_managed_memory()
    node.wait_for(lambda: parked(node)["events"], "it was tried")
    (event,) = parked(node)["events"]
    assert (event["kind"], event["why"]) == ("refused", "managed_memory")
    program.program.runs()
    locks = program.program.locks
    node.shared.let_pass(2.5)
    assert program.program.locks == locks, "not tried again"
    done = command("park", str(program.pid), "--socket", str(node.socket))
    assert (done.returncode, "managed memory" in done.stderr) == (1, True)
    done = command("park", str(program.pid), "--json", "--socket", str(node.socket))
    found = json.loads(done.stdout)
    sentences = [*found["refused"], *(row["sentence"] for row in found["programs"].values())]
    assert (done.returncode, "managed memory" in sentences[0]) == (1, True)
    program.program.runs()


@pytest.mark.long
def test_a_cell_that_is_run_while_the_memory_moves_is_not_missed(node: SharedNode) -> None:
    node.start_agent(sections="[parking]\nidle_after_s = 4\neager = true\n")
    program = notebook(node)
    program.program.move_at(32 * MIB)
    node.wait_for(lambda: program.program.state is State.LOCKED, "it is on its way")
    program.program.run_cell(0.001)
    node.wait_for(lambda: program.program.cells == 1, "its cell ends")
    kinds = [event["kind"] for event in parked(node)["events"]]
    assert kinds == ["parked", "woken"]


@pytest.mark.long
def test_the_next_agent_brings_back_what_the_last_one_left(node: SharedNode) -> None:
    node.start_agent(sections="[parking]\nidle_after_s = 1\neager = true\n")
    programs = [notebook(node), notebook(node)]
    node.wait_for(lambda: all(one.program.state is State.CHECKPOINTED for one in programs), "both are parked")
    node.agent.stop(signal.SIGKILL)
    assert all(one.program.state is State.CHECKPOINTED for one in programs)
    node.start_agent()
    for one in programs:
        one.program.runs()
        assert one.program.gpu_bytes == 64 * MIB
    until(lambda: not list(node.record.iterdir()), "the record is empty")


@pytest.mark.long
def test_an_idle_program_makes_room_for_a_lease(node: SharedNode) -> None:
    sockets = {"GPUCOMMONS_LEASES_SOCKET": str(node.socket.with_name("leases.sock"))}
    node.start_agent(sections="[parking]\nidle_after_s = 1\nmin_residence_s = 0\n", environment=sockets)
    program = notebook(node)
    node.wait_for(lambda: node.client(program), "the agent sees it")
    node.shared.let_pass(3)
    assert not program.locked, "nothing needs its room"
    done = command_process("run", "--", "true", environment=sockets)
    assert done.returncode == 0, done.stdout + done.stderr
    assert program.program.state is State.CHECKPOINTED
    node.wait_for(lambda: not _holders(node), "a parked program holds no GPU")
    program.program.run_cell()
    node.wait_for(lambda: program.program.cells == 1, "its cell ends")
    node.wait_for(lambda: _holders(node), "it holds its GPU again")


def _holders(node: SharedNode) -> list[Any]:
    rows = json.loads(node.agent.get("/api/v1/allocations")[1])["allocations"]["held"]
    return list(rows)


@pytest.mark.long
@pytest.mark.parametrize("stage", ["parking", "waking"])
def test_resume_all_brings_back_what_a_killed_agent_left(node: SharedNode, stage: str) -> None:
    """The agent and its pauser are gone at once; `gpucommons resume --all` needs neither."""
    node.start_agent()
    program = notebook(node)
    program.program.move_at(32 * MIB)
    node.wait_for(lambda: node.client(program), "the agent sees it")
    park_order(node, "park", str(program.pid))
    if stage == "waking":
        node.wait_for(lambda: _stage(node) == "parked", "it is parked")
        park_order(node, "wake", str(program.pid))
    node.wait_for(lambda: program.program.is_asked, "it is on its way")
    kill(node.pauser())
    kill(node.agent.process.pid)
    node.agent.process.wait()
    # What the driver had begun goes on; until that has ended the program cannot be resumed.
    until(lambda: not program.program.is_asked, "the driver's call ends")
    node.resume_all()
    program.program.runs()
    assert program.program.gpu_bytes == 64 * MIB
    assert list(node.record.iterdir()) == []


@pytest.mark.long
def test_the_end_of_the_agent_waits_for_a_move_and_the_next_one_continues(node: SharedNode) -> None:
    node.start_agent()
    program = notebook(node)
    program.program.move_at(32 * MIB)
    node.wait_for(lambda: node.client(program), "the agent sees it")
    park_order(node, "park", str(program.pid))
    node.wait_for(lambda: program.program.state is State.LOCKED and program.program.is_asked, "it is on its way")
    assert node.agent.stop() == 0
    assert program.program.state is State.CHECKPOINTED, "the agent waited"
    node.start_agent()
    program.program.runs()


def _stage(node: SharedNode) -> str:
    return next((str(row["stage"]) for row in parked(node)["programs"].values()), "")
