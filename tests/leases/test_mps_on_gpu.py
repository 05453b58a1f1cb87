"""The real MPS daemon under the agent, on a real GPU with unmodified torch programs. As root."""

import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from leases.gpu_node import NEEDS_GPU, GpuNode, gpu_node
from running import command_process
from waiting import until

pytestmark = [
    *NEEDS_GPU,
    pytest.mark.skipif(shutil.which("nvidia-cuda-mps-control") is None, reason="needs nvidia-cuda-mps-control"),
]
# Allocates so many GiB, and reports what it sees of the GPU.
ALLOCATE = """
import sys, torch
try:
    kept = torch.empty(int(float(sys.argv[1]) * 2**30), dtype=torch.uint8, device="cuda")
    print("allocated", torch.cuda.get_device_properties(0).multi_processor_count, flush=True)
except torch.OutOfMemoryError:
    print("out of memory", flush=True)
sys.stdin.read()
"""


def program(gib: float) -> tuple[str, ...]:
    return sys.executable, "-c", ALLOCATE, str(gib)


def start(node: GpuNode, gib: float, *options: str) -> "subprocess.Popen[str]":
    return node.run(("--quiet", "--share", *options), program(gib))


def has_metric(node: GpuNode, line: str) -> bool:
    return line in node.agent.get("/metrics")[1]


@pytest.fixture(params=["per_user", "all_users"])
def node(request: pytest.FixtureRequest) -> Iterator[GpuNode]:
    with gpu_node(settings={"GPUCOMMONS_LEASES_MPS": request.param}) as made:
        yield made
        assert made.agent.stop() == 0
        assert not list(made.directory.glob("mps/*/p/*.pid")), "no daemon is left"


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_two_commands_share_a_gpu_with_hard_caps(node: GpuNode) -> None:
    within = start(node, 3, "--memory", "8GiB", "--sm", "50")
    first = said(within)
    beyond = start(node, 12, "--memory", "8GiB", "--sm", "25")
    try:
        assert first.startswith("allocated ")
        assert said(beyond) == "out of memory"
        assert has_metric(node, 'gpucommons_mps_daemons{stage="running"} 1')
        whole = subprocess.run(program(1), stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout
        assert int(first.split()[1]) < int(whole.split()[1]), "it sees only its part of the SMs"
        until(lambda: sum(each["mps"] for each in node.queue()["leases"].values()) == 2, "both leases are under MPS")
    finally:
        for each in (within, beyond):
            each.communicate(timeout=60)
    until(lambda: has_metric(node, 'gpucommons_mps_daemons{stage="running"} 0'), "the idle daemon is stopped")
    # Its server has left the GPU: a command may have it alone.
    alone = command_process("run", "--quiet", "--max-wait", "30s", "true", environment=node.environment)
    assert alone.returncode == 0, alone.stderr
