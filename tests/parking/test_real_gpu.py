"""On a real GPU with the real driver: an unmodified torch program with a CUDA graph is parked and woken."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpucommons.pauser import cuda
from gpucommons.pauser.backend import Failure
from gpucommons.pauser.client import Pauser, PauserSettings
from gpucommons.pauser.protocol import Reply
from gpucommons.pauser.stopped import why_stopped
from leases.gpu_node import NEEDS_GPU, GpuNode, gpu_node
from parking.state import parking_state
from pauser.rig import environment, run_with
from running import command_process, running_agent
from waiting import until

pytestmark = NEEDS_GPU
pytest.importorskip("torch")

from parking.torch_notebooks import notebook  # noqa: E402
from pauser.gpu_programs import nvml_bytes  # noqa: E402

CYCLES = 20
GIB = 10.0
SMALL_GIB = 2.0
IDLE_AFTER_S = 3


def test_memory_and_graph_survive_twenty_cycles(tmp_path_factory: pytest.TempPathFactory) -> None:
    if isinstance(cuda.load(), Failure):
        pytest.skip("needs a real NVIDIA GPU with driver r570 or newer")
    given = PauserSettings(record=tmp_path_factory.mktemp("run") / "paused", environment=environment())
    with notebook(GIB) as program:
        first = program.run_cell()
        assert first is not None

        async def body(pauser: Pauser) -> None:
            for number in range(1, CYCLES + 1):
                assert (await pauser.lock(program.key, timeout_ms=5000)).failure is None
                held = nvml_bytes(program.key.pid)
                assert (await pauser.checkpoint(program.key, memory_bytes=held)).failure is None
                assert nvml_bytes(program.key.pid) == 0
                assert (await pauser.restore(program.key)).failure is None
                assert (await pauser.unlock(program.key)).failure is None
                cell = program.run_cell()
                assert cell == first._replace(replays=first.replays + number)

        run_with(given, body)


def test_a_program_that_slurm_suspends_is_moved_although_it_is_stopped(tmp_path: Path) -> None:
    """SIGTSTP, and 2 s later, during the move, SIGSTOP; SIGCONT resumes it. Prints the seconds of each step (-s)."""
    if isinstance(cuda.load(), Failure):
        pytest.skip("needs a real NVIDIA GPU with driver r570 or newer")
    with notebook(GIB, with_session=False) as program:
        first, pid = program.run_cell(), program.key.pid
        assert first is not None
        held = nvml_bytes(pid)

        async def body(pauser: Pauser) -> None:
            async def timed(what: str, step: Awaitable[Reply]) -> None:
                begun_s = time.monotonic()
                reply = await step
                assert reply.failure is None, f"{what}: {reply.failure}"
                sys.stderr.write(f"{what:12} {time.monotonic() - begun_s:6.2f} s\n")

            os.kill(pid, signal.SIGTSTP)
            until(lambda: why_stopped(pid), "it is stopped")
            asyncio.get_running_loop().call_later(2.0, os.kill, pid, signal.SIGSTOP)
            await timed("continue", pauser.let_run(program.key))
            await timed("lock", pauser.lock(program.key, timeout_ms=5000))
            await timed("checkpoint", pauser.checkpoint(program.key, memory_bytes=held))
            assert nvml_bytes(pid) == 0
            await timed("stop again", pauser.stop_again(program.key))
            await timed("leave", pauser.leave(program.key))
            until(lambda: why_stopped(pid), "it is stopped again")
            os.kill(pid, signal.SIGCONT)
            until(lambda: not why_stopped(pid), "Slurm's resume continues it")
            await timed("restore", pauser.restore(program.key))
            await timed("unlock", pauser.unlock(program.key))

        run_with(PauserSettings(record=tmp_path / "paused", environment=environment()), body)
        assert program.run_cell() == first._replace(replays=first.replays + 1)
        assert nvml_bytes(pid) == held


def test_an_idle_program_makes_room_for_a_lease_and_wakes_with_its_next_cell() -> None:
    with notebook(GIB) as program:
        first = program.run_cell()
        assert first is not None
        held = nvml_bytes(program.key.pid)
        with gpu_node(
            "--scheduler", "--share", settings={"GPUCOMMONS_PARKING_IDLE_AFTER_S": str(IDLE_AFTER_S)}
        ) as node:
            time.sleep(2 * IDLE_AFTER_S)
            assert nvml_bytes(program.key.pid) == held, "nothing needs the room"
            given = command_process("run", "--quiet", "--max-wait", "40s", "true", environment=node.environment)
            assert given.returncode == 0, given.stderr
            assert nvml_bytes(program.key.pid) == 0
            begun_s = time.monotonic()
            cell = program.run_cell(60)
            assert time.monotonic() - begun_s < held / 4e9 + 2
            assert cell == first._replace(replays=first.replays + 1)


def test_orders_of_a_person_and_the_agent_that_is_started_after_one_was_killed() -> None:
    with notebook(SMALL_GIB) as program, gpu_node("--scheduler", "--share", settings={}) as node:
        first, pid = program.run_cell(), str(program.key.pid)
        assert first is not None
        held = nvml_bytes(program.key.pid)
        assert "parked in" in ordered(node, "park", pid)
        assert nvml_bytes(program.key.pid) == 0
        (row,) = parked(node).values()
        assert (row["stage"], row["host_bytes"], row["processes"]) == ("parked", held, [program.key.pid])
        until(lambda: program.key.pid not in gpu_pids(node), "who shows no GPU memory")
        assert "is back on the GPU" in ordered(node, "wake", pid)
        assert (nvml_bytes(program.key.pid), parked(node)) == (held, {})
        assert program.run_cell() == first._replace(replays=first.replays + 1)
        ordered(node, "park", f"pid:{pid}")
        node.agent.stop(signal.SIGKILL)
        with running_agent("--scheduler", "--share", environment=node.environment):
            until(lambda: nvml_bytes(program.key.pid) == held, "the next agent brings it back", within_s=30)
            assert program.run_cell() == first._replace(replays=first.replays + 2)


@pytest.mark.parametrize("stage", ["parking", "waking"])
def test_resume_all_brings_back_what_a_killed_agent_left_on_its_way(stage: str) -> None:
    with notebook(GIB) as program, gpu_node("--scheduler", "--share", settings={}) as node:
        first, pid = program.run_cell(), str(program.key.pid)
        assert first is not None
        if stage == "waking":
            ordered(node, "park", pid)
        ordered(node, "park" if stage == "parking" else "wake", pid, "--no-wait")
        until(lambda: [row["stage"] for row in parked(node).values()] == [stage], "its memory moves")
        agent = psutil.Process(node.agent.process.pid)
        for process in (*agent.children(), agent):
            process.kill()
        node.agent.process.wait()
        done = command_process("resume", "--all")
        assert done.returncode == 0, done.stdout + done.stderr
        assert program.run_cell() == first._replace(replays=first.replays + 1)


def ordered(node: GpuNode, *order: str) -> str:
    """What the command prints. At first the agent may not have seen the program."""

    def done() -> str | None:
        given = command_process(*order, "--socket", node.environment["GPUCOMMONS_SCHEDULER_SOCKET"])
        return given.stdout if given.returncode == 0 else None

    return until(done, f"{order} is carried out", within_s=30)


def parked(node: GpuNode) -> Any:
    """The programs that are parked or on their way, by key."""
    return parking_state(node.environment["GPUCOMMONS_SCHEDULER_SOCKET"])["programs"]


def gpu_pids(node: GpuNode) -> set[int]:
    """The processes that `who` shows with GPU memory."""
    rows = json.loads(node.agent.get("/api/v1/who")[1])["who"]["processes"].values()
    return {row["pid"] for row in rows if row["memory_bytes"]}
