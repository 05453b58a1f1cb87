"""A real agent with its pauser parks programs on fake GPUs, and brings them back."""

import time
from collections.abc import Iterator

import pytest

from fakes.gpu.account import Phase
from fakes.shared_gpu import SharedProgram
from gpucommons.pauser.backend import State
from shared_node import SharedNode, shared_node

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


def test_an_idle_program_is_parked_and_comes_back_when_its_user_goes_on(node: SharedNode) -> None:
    node.start_agent(sections="[parking]\nidle_after_s = 2\neager = true\nmin_residence_s = 1\n")
    program = notebook(node)
    node.wait_for(lambda: program.program.state is State.CHECKPOINTED, "it is parked")
    assert (program.program.gpu_bytes, program.program.host_bytes) == (0, 64 * MIB)
    time.sleep(4)
    assert program.program.state is State.CHECKPOINTED, "it sleeps on"
    program.program.run_cell(0.02)
    node.wait_for(lambda: program.program.cells == 1, "its cell ends")
    assert program.program.gpu_bytes == 64 * MIB
