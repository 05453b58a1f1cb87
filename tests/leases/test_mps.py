"""Commands under MPS, with a real agent, a fake driver and a fake control program."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fakes.mps import FakeMps
from fakes.nvml.build import build
from fakes.nvml.control import FakeNvml
from gpucommons.leases.protocol import LeaseConnection, LeaseServiceGone, answer_of
from leases.test_other_user import UID, as_user
from needs import needs_program, needs_root
from open_folder import open_folder
from running import RunningAgent, command_process, running_agent
from waiting import until

SHARED = ("run", "--quiet", "--share")
PRINT = ("sh", "-c", "env | grep -E '^CUDA_' | sort")


class MpsNode:
    """A node with one GPU. `agent` is the one that was started last."""

    def __init__(self, directory: Path, library: Path) -> None:
        needs_root()
        self.fake = FakeMps(directory)
        self.driver = FakeNvml(directory / "driver", library)
        self.driver.say("gpus 1", "recording idle")
        self.directory = directory
        self.socket = directory / "leases.sock"
        self.root = directory / "run" / "mps"
        for made in ("state", "run"):
            (directory / made).mkdir(mode=0o755)
        self.environment = {
            **self.driver.environment(),
            "GPUCOMMONS_LEASES_SOCKET": str(self.socket),
            "GPUCOMMONS_LEASES_ENABLED": "true",
            "STATE_DIRECTORY": str(directory / "state"),
            "RUNTIME_DIRECTORY": str(directory / "run"),
            "PATH": self.fake.path,
        }
        self.agent: RunningAgent

    @contextmanager
    def serving(self, mode: str, config: str = "") -> Iterator[RunningAgent]:
        file = self.directory / "config.toml"
        file.write_text(config)
        environment = {**self.environment, "GPUCOMMONS_LEASES_MPS": mode}
        with running_agent("--interval", "0.2", "--config", str(file), environment=environment) as self.agent:
            until(lambda: self.queue()["off"] is None, "leases are given")
            yield self.agent

    def queue(self) -> dict[str, Any]:
        try:
            answer: Any = answer_of([self.socket], {"request": "queue"})["answer"]
            return dict(answer)
        except LeaseServiceGone:
            return {"off": "no agent", "leases": {}}

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return command_process(*arguments, environment=self.environment)

    def hold(self, *options: str) -> "subprocess.Popen[str]":
        """A command that prints its environment, and runs until its standard input is closed."""
        return subprocess.Popen(
            [sys.executable, "-m", "gpucommons", *SHARED, *options, "sh", "-c", f"{PRINT[2]}; cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **self.environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def daemons(self) -> dict[str, int]:
        """The pids of the daemons, by the name of their directory."""
        found = self.root.glob("*/p/nvidia-cuda-mps-control.pid")
        return {path.parent.parent.name: int(path.read_text()) for path in found}

    def close(self) -> None:
        for pid in self.daemons().values():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs_program("cc")
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def node(library: Path) -> Iterator[MpsNode]:
    with open_folder() as directory:
        node = MpsNode(directory, library)
        yield node
        node.close()


def granted_to_other_user(node: MpsNode, **request: object) -> Any:
    """What a client of another user gets, and whether that user can reach the daemon."""

    def work() -> object:
        with LeaseConnection([node.socket]) as connection:
            connection.send({"request": "run", "share": True, **request})
            line: dict[str, Any] = {}
            while line.get("event") not in ("granted", "error"):
                line = dict(connection.receive(30) or {"event": "error", "error": "no answer"})
            pipes = (line.get("mps") or {}).get("pipe_directory")
            files = sorted(os.listdir(pipes)) if pipes else []
            return [line, files]

    return as_user(work)


@pytest.mark.long
def test_the_limits_of_a_lease_are_set_for_its_command(node: MpsNode) -> None:
    with node.serving("per_user", '[lease_quotas]\neach = { user = "*", sm_percent = 60 }\n') as agent:
        holder = node.hold("--memory", "20G", "--sm", "50")
        assert holder.stdout is not None
        lines = [holder.stdout.readline().strip() for _ in range(5)]
        until(lambda: node.queue()["leases"], "the lease is shown")
        ((id, lease),) = node.queue()["leases"].items()
        (uuid,) = lease["slot_uuids"]
        directory = node.root / f"0-{uuid}"
        assert lines == [
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50",
            f"CUDA_MPS_LOG_DIRECTORY={directory}/log",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=19074M",
            f"CUDA_MPS_PIPE_DIRECTORY={directory}/p",
            f"CUDA_VISIBLE_DEVICES={uuid}",
        ]
        assert (lease["mps"], lease["sm_percent"]) == (True, 50)
        assert (directory / "p" / "started-with").read_text() == f"uid=0 visible={uuid} options=\n"
        assert "shared, MPS 50 %" in node.run("queue").stdout

        # Another user has a daemon of their own, and what the quota leaves: 60 would not fit next to 50.
        granted, _ = granted_to_other_user(node, wait=False)
        assert "no slot is free now" in granted["error"]
        granted, files = granted_to_other_user(node, sm_percent=40)
        assert (granted["mps"]["sm_percent"], granted["mps"]["memory_bytes"]) == (40, None)
        assert "control" in files
        assert f"{UID}-{uuid}" in node.daemons()
        refused = node.run(*SHARED, "--sm", "70", "true")
        assert (refused.returncode, "the quota of root is 60 %" in refused.stderr) == (2, True)
        refused = node.run(*SHARED, "--gpus", "2", "true")
        assert (refused.returncode, "under MPS (leases.mps) a command has one GPU" in refused.stderr) == (2, True)

        # The daemon dies: it is started again, and that is shown.
        first = node.daemons()[directory.name]
        os.kill(first, signal.SIGKILL)
        until(lambda: node.daemons().get(directory.name, first) != first, "another daemon")
        until(lambda: "mps.died" in agent.get("/api/v1/events")[1], "the event log has it")
        until(lambda: "gpucommons_mps_deaths_total 1" in agent.get("/metrics")[1], "it is counted")

        # The agent is killed: the lease, the command and the daemon go on, and the next agent uses the same daemon.
        until(lambda: 'gpucommons_mps_daemons{stage="broken"} 0' in agent.get("/metrics")[1], "it runs again")
        kept = node.daemons()[directory.name]
        agent.stop(signal.SIGKILL)
        with node.serving("per_user"):
            until(lambda: id in node.queue()["leases"], "the lease goes on")
            done = node.run(*SHARED, *PRINT)
            assert f"CUDA_MPS_PIPE_DIRECTORY={directory}/p" in done.stdout
            assert "PERCENTAGE" not in done.stdout
            assert node.daemons()[directory.name] == kept
            holder.communicate(timeout=30)
            assert holder.returncode == 0
            until(lambda: not node.queue()["leases"], "the lease is over")
            assert node.agent.stop() == 0
            assert node.daemons() == {}, "what no lease uses ends with the agent"


@pytest.mark.long
def test_one_daemon_serves_all_users(node: MpsNode) -> None:
    with node.serving("all_users") as agent:
        holder = node.hold()
        assert holder.stdout is not None
        assert holder.stdout.readline().startswith("CUDA_MPS_LOG_DIRECTORY=")
        granted, files = granted_to_other_user(node)
        assert granted["event"] == "granted"
        assert "control" in files
        (name,) = node.daemons()
        assert name.startswith("all-GPU-")
        assert "options=-multiuser-server" in (node.root / name / "p" / "started-with").read_text()
        holder.communicate(timeout=30)

        # A driver that does not have it.
        node.fake.set("old")
        os.kill(node.daemons()[name], signal.SIGKILL)
        done = node.run(*SHARED, "true")
        assert done.returncode == 2
        # Before it, a run may say that it waits for the end of the lease before.
        *_, last = done.stderr.strip().splitlines()
        assert "MPS could not be started for the lease" in last
        assert "Unknown option: -multiuser-server" in last
        until(lambda: not node.queue()["leases"], "its lease is over")
        until(lambda: "mps.failed" in agent.get("/api/v1/events")[1], "the event log has it")


@pytest.mark.long
def test_a_part_of_a_gpu_that_cannot_be_enforced_is_refused_in_one_line(node: MpsNode) -> None:
    with node.serving("off"):
        done = node.run(*SHARED, "--sm", "50", "true")
        assert (done.returncode, done.stderr) == (
            2,
            "gpucommons: --sm 50 needs MPS: MPS is off on this node (leases.mps); run it without --sm, "
            "or ask the administrator\n",
        )
        assert node.run("run", "--sm", "50", "true").stderr.strip().endswith("a GPU of its own is not limited")
        assert node.run(*SHARED, "--sm", "0", "true").returncode == 2
        assert "CUDA_MPS" not in node.run(*SHARED, "--memory", "1G", *PRINT).stdout
    for program in node.fake.programs.iterdir():
        program.unlink()
    with node.serving("per_user") as agent:
        assert "nvidia-cuda-mps-control was not found" in node.run(*SHARED, "--sm", "50", "true").stderr
        assert "CUDA_MPS" not in node.run(*SHARED, *PRINT).stdout, "without a limit it runs without MPS"
        problems = json.loads(agent.get("/api/v1/problems")[1])["problems"]
        assert "nvidia-cuda-mps-control was not found" in problems["mps/unavailable"]["sentence"]
        assert "gpucommons_mps_available 0" in agent.get("/metrics")[1]
    nowhere = {"GPUCOMMONS_LEASES_SOCKET": str(node.directory / "none" / "leases.sock")}
    alone = command_process(*SHARED, "--sm", "50", "true", environment={**node.environment, **nowhere})
    assert (alone.returncode, "no agent runs here" in alone.stderr) == (2, True)
