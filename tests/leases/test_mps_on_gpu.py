"""The real MPS daemon under the agent, on a real GPU with unmodified torch programs. As root."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucommons.leases.protocol.client import answer_of
from open_folder import open_folder
from running import RunningAgent, command, running_agent
from waiting import until

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
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


class RealNode:
    def __init__(self, agent: RunningAgent, environment: dict[str, str], directory: Path) -> None:
        self.agent, self.environment, self.directory = agent, environment, directory

    def queue(self) -> Any:
        path = Path(self.environment["GPUCOMMONS_LEASES_SOCKET"])
        return answer_of([path], {"request": "queue"}, timeout_s=30)["answer"]

    def start(self, gib: float, *options: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*(sys.executable, "-m", "gpucommons", "run", "--quiet", "--share", *options), *self.program(gib)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **self.environment},
        )

    def program(self, gib: float) -> tuple[str, ...]:
        return sys.executable, "-c", ALLOCATE, str(gib)

    def metric(self, line: str) -> bool:
        return line in self.agent.get("/metrics")[1]


@pytest.fixture(params=["per_user", "all_users"])
def node(request: pytest.FixtureRequest) -> Iterator[RealNode]:
    with open_folder() as directory:
        environment = {
            "GPUCOMMONS_LEASES_SOCKET": str(directory / "leases.sock"),
            "GPUCOMMONS_LEASES_ENABLED": "true",
            "GPUCOMMONS_LEASES_MPS": request.param,
            "RUNTIME_DIRECTORY": str(directory),
        }
        with running_agent(environment=environment) as agent:
            if "gpucommons_gpu_up{" not in agent.get("/metrics")[1]:
                pytest.skip("needs a real NVIDIA GPU")
            node = RealNode(agent, environment, directory)
            until(lambda: node.queue()["off"] is None, "leases are given")
            yield node
            assert agent.stop() == 0
            assert not list(directory.glob("mps/*/p/*.pid")), "no daemon is left"


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_two_commands_share_a_gpu_with_hard_caps(node: RealNode) -> None:
    within = node.start(3, "--memory", "8GiB", "--sm", "50")
    first = said(within)
    beyond = node.start(12, "--memory", "8GiB", "--sm", "25")
    try:
        assert first.startswith("allocated ")
        assert said(beyond) == "out of memory"
        assert node.metric('gpucommons_mps_daemons{stage="running"} 1')
        whole = subprocess.run(node.program(1), stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout
        assert int(first.split()[1]) < int(whole.split()[1]), "it sees only its part of the SMs"
        until(lambda: sum(each["mps"] for each in node.queue()["leases"].values()) == 2, "both leases are under MPS")
    finally:
        for each in (within, beyond):
            each.communicate(timeout=60)
    until(lambda: node.metric('gpucommons_mps_daemons{stage="running"} 0'), "the idle daemon is stopped")
    # Its server has left the GPU: a command may have it alone.
    alone = command("run", "--quiet", "--max-wait", "30s", "true", environment=node.environment)
    assert alone.returncode == 0, alone.stderr
