"""On a real GPU with the real driver: twenty cycles of an unmodified torch program with 10 GiB and a CUDA graph."""

import pytest

from gpucommons.pauser import cuda
from gpucommons.pauser.backend import Failure
from gpucommons.pauser.client import Pauser, PauserSettings
from pauser.rig import environment, run_with

pytestmark = pytest.mark.gpu
pytest.importorskip("torch")

from parking.torch_notebooks import notebook, nvml_bytes  # noqa: E402

CYCLES = 20
GIB = 10.0
LANE = "park"


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
