"""Leased programs that do not fit into a GPU together, under a real agent: long turns, idle ones, and another agent."""

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.gpu.account import Activity, Phase
from fakes.shared_gpu import MATMUL, SharedProgram
from gpucommons.pauser.backend import State
from gpucommons.pauser.release import RESERVE_BYTES
from running import command_process
from shared_node import SharedNode, shared_node
from waiting import until

pytestmark = pytest.mark.long

MIB = 1 << 20
# Larger than the reserve of a restore: otherwise a lease would find its room in the reserve.
SIZE = RESERVE_BYTES + 36 * MIB
ROOM = RESERVE_BYTES + 2 * SIZE + 30 * MIB


@pytest.fixture
def node() -> Iterator[SharedNode]:
    with shared_node() as made:
        yield made


def free_bytes(node: SharedNode) -> int:
    (gpu,) = json.loads(node.agent.get("/api/v1/gpus")[1])["gpus"]["by_uuid"].values()
    return int(gpu["memory_free_bytes"])


def lease_socket(node: SharedNode) -> Path:
    return node.socket.with_name("leases.sock")


def leased(node: SharedNode, solo: Activity | None = MATMUL[4096], uses: int = SIZE) -> SharedProgram:
    return node.leased(lease_socket(node), solo, uses, "--memory", f"{SIZE // MIB}Mi")


def test_leases_that_do_not_fit_together_take_turns(node: SharedNode) -> None:
    node.start_agent(sections="[parking]\noversubscribe = true\nmin_residence_s = 1\n", environment=environment(node))
    # Host memory cannot hold it: it is never parked.
    node.program(phases=[Phase(None)], memory_bytes=free_bytes(node) - ROOM)
    node.wait_for(lambda: free_bytes(node) <= ROOM, "the GPU is nearly full")
    programs = [leased(node) for _ in range(2)]
    for program in programs:
        # So slow that it has not ended when what is expected is shown.
        program.program.move_at(SIZE // 60)
    shown: list[str] = []
    third = threading.Thread(target=lambda: programs.append(leased(node)))
    third.start()

    def expected_start() -> float | None:
        waiting = json.loads(node.agent.get("/api/v1/queue")[1])["queue"]["waiting"].values()
        return next((one["expected_start_unix_s"] for one in waiting), None)

    until(expected_start, "the start of the third is expected")
    for program in programs:
        program.program.move_at(SIZE * 2)
    third.join(60)
    assert len(programs) == 3, "the third has started"

    before = [program.progress() for program in programs]
    parked: set[int] = set()

    def all_were_parked_and_went_on() -> bool:
        # Twice, since memory may move while the programs are looked at one by one.
        first, second = ([program.program.gpu_bytes for program in programs] for _ in range(2))
        assert sum(map(min, first, second)) <= ROOM, "more than fits"
        parked.update(p.pid for p in programs if p.program.state is State.CHECKPOINTED)
        shown.extend(one["waits"] for one in node.turns()["parking"]["programs"].values())
        went_on = [p.progress() > b + 1 for p, b in zip(programs, before, strict=True)]
        return len(parked) == len(programs) and all(went_on)

    until(all_were_parked_and_went_on, "each program has its turns", within_s=90)
    assert any("; back in about " in sentence for sentence in shown), shown
    assert all(program.process.poll() is None for program in programs)
    assert all(program.program.state is not State.FAILED for program in programs)


def environment(node: SharedNode) -> dict[str, str]:
    """Its leases outlive the agent."""
    return {"GPUCOMMONS_LEASES_SOCKET": str(lease_socket(node)), "STATE_DIRECTORY": str(node.run)}


@pytest.fixture
def crowded(node: SharedNode) -> SharedNode:
    """A GPU with room for one program of this size and the reserve."""
    node.start_agent(sections="[parking]\nidle_after_s = 1\nmin_residence_s = 0\n", environment=environment(node))
    node.program(phases=[Phase(None)], memory_bytes=free_bytes(node) - ROOM + SIZE)
    node.wait_for(lambda: free_bytes(node) <= ROOM - SIZE, "the GPU is nearly full")
    return node


def idle_lease(node: SharedNode) -> SharedProgram:
    first = leased(node, None)
    first.program.wait_for_user()
    return first


def run_leased(node: SharedNode, needs: int = SIZE) -> None:
    options = ("--share", "--memory", f"{needs // MIB}Mi", "--max-wait", "30s")
    done = command_process("run", *options, "--", "true", environment=environment(node))
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_idle_lease_makes_room_for_another_and_comes_back(crowded: SharedNode) -> None:
    first = idle_lease(crowded)
    run_leased(crowded)
    assert first.program.state is State.CHECKPOINTED
    first.program.run_cell()
    crowded.wait_for(lambda: first.program.cells == 1, "its cell ends")


def test_an_idle_program_makes_room_where_another_lease_keeps_what_is_free(crowded: SharedNode) -> None:
    small = leased(crowded, None, uses=MIB)
    idle = crowded.program(phases=[Phase(None)], memory_bytes=SIZE)
    idle.program.wait_for_user()
    crowded.wait_for(lambda: free_bytes(crowded) < SIZE, "it has its memory")
    assert free_bytes(crowded) > RESERVE_BYTES + 20 * MIB, "enough, if it were not kept"
    run_leased(crowded, needs=20 * MIB)
    assert (idle.program.state, small.program.state) == (State.CHECKPOINTED, State.RUNNING)


def test_a_lease_that_an_earlier_agent_parked_comes_back_into_its_own_room(crowded: SharedNode) -> None:
    first = idle_lease(crowded)
    run_leased(crowded)
    assert first.program.state is State.CHECKPOINTED
    crowded.agent.stop(signal.SIGKILL)
    crowded.start_agent(environment=environment(crowded))
    crowded.wait_for(lambda: first.program.gpu_bytes == SIZE, "it is brought back")
    assert len(json.loads(crowded.agent.get("/api/v1/queue")[1])["queue"]["leases"]) == 1
