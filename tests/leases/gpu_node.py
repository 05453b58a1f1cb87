"""A node with a real GPU and leases, for tests of `gpucommons run` with unmodified torch programs. As root."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpucommons.leases.protocol import answer_of
from open_folder import open_folder
from running import RunningAgent, running_agent
from waiting import until

NEEDS_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]


class GpuNode:
    def __init__(self, agent: RunningAgent, environment: Mapping[str, str], directory: Path) -> None:
        self.agent, self.environment, self.directory = agent, environment, directory

    def queue(self) -> Any:
        path = Path(self.environment["GPUCOMMONS_LEASES_SOCKET"])
        return answer_of([path], {"request": "queue"}, timeout_s=30)["answer"]

    def run(self, options: Sequence[str], program: Sequence[str]) -> "subprocess.Popen[str]":
        """`gpucommons run` in a session of its own, with pipes."""
        return subprocess.Popen(
            [sys.executable, "-m", "gpucommons", "run", *options, "--", *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **self.environment},
        )


@contextmanager
def gpu_node(*arguments: str, settings: Mapping[str, str]) -> Iterator[GpuNode]:
    """`arguments` are those of `up`; `settings` are variables of its environment."""
    with open_folder() as directory:
        environment = {
            "GPUCOMMONS_LEASES_SOCKET": str(directory / "leases.sock"),
            "GPUCOMMONS_LEASES_ENABLED": "true",
            "GPUCOMMONS_SCHEDULER_SOCKET": str(directory / "scheduler.sock"),
            "RUNTIME_DIRECTORY": str(directory),
            **settings,
        }
        with running_agent(*arguments, environment=environment) as agent:
            if "gpucommons_gpu_up{" not in agent.get("/metrics")[1]:
                pytest.skip("needs a real NVIDIA GPU")
            node = GpuNode(agent, environment, directory)
            until(lambda: node.queue()["off"] is None, "leases are given")
            yield node
