"""On a real GPU with the real driver: an unmodified torch program with 10 GiB and a CUDA graph is parked and woken."""

import time

import pytest

from gpucommons.pauser import cuda
from gpucommons.pauser.backend import Failure
from gpucommons.pauser.client import Pauser, PauserSettings
from leases.gpu_node import NEEDS_GPU, gpu_node
from pauser.rig import environment, run_with
from running import command

pytestmark = NEEDS_GPU
pytest.importorskip("torch")

from parking.torch_notebooks import notebook, nvml_bytes  # noqa: E402

CYCLES = 20
GIB = 10.0
LANE = "park"
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
                assert (await pauser.lock(program.key, lane=LANE, timeout_ms=5000)).failure is None
                held = nvml_bytes(program.key.pid)
                assert (await pauser.checkpoint(program.key, lane=LANE, memory_bytes=held)).failure is None
                assert nvml_bytes(program.key.pid) == 0
                assert (await pauser.restore(program.key, lane=LANE)).failure is None
                assert (await pauser.unlock(program.key, lane=LANE)).failure is None
                cell = program.run_cell()
                assert cell == first._replace(replays=first.replays + number)

        run_with(given, body)


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
            given = command("run", "--quiet", "--max-wait", "40s", "true", environment=node.environment)
            assert given.returncode == 0, given.stderr
            assert nvml_bytes(program.key.pid) == 0
            begun_s = time.monotonic()
            cell = program.run_cell(60)
            assert time.monotonic() - begun_s < held / 4e9 + 2
            assert cell == first._replace(replays=first.replays + 1)
