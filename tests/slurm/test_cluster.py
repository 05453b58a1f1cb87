"""A real Slurm with the printed configuration, the real hooks and agent, and programs on fake GPUs."""

import base64
import gzip
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from fakes.shared_gpu import MATMUL, SharedProgram
from gpucommons.pauser.backend import State
from gpucommons.pauser.release import key_of
from gpucommons.pauser.stopped import why_stopped
from gpucommons.slurm import hooks
from gpucommons.slurm.configuration import NodePlan
from open_folder import open_folder
from prometheus_server import running_prometheus
from running import command_process
from shared_node import SharedNode
from testbeds.slurm import NODE, SlurmCluster, slurm_cluster
from waiting import until

pytestmark = pytest.mark.long

_SHARING = """
[scheduler]
share_programs = "all"
[slurm]
job_directory = "{jobs}"
pause_outside_allocation = true
"""


class SlurmNode:
    """A cluster of one node with two fake GPUs, and its agent."""

    def __init__(self, node: SharedNode, cluster: SlurmCluster, jobs: Path, agent_directory: Path) -> None:
        self.node = node
        self.cluster = cluster
        self.jobs = jobs
        self.agent_directory = agent_directory

    def start_agent(self) -> None:
        environment = {**self.cluster.environment, "RUNTIME_DIRECTORY": str(self.agent_directory)}
        self.node.start_agent(sections=_SHARING.format(jobs=self.jobs), environment=environment)

    def program(self, *options: str, memory_bytes: int = 4 << 30, gpu: int = 0) -> SharedProgram:
        """A program on one GPU as a job of its own, by srun."""
        environment = [f"{name}={value}" for name, value in self.cluster.environment.items()]
        prefix = ("env", *environment, "srun", "--quiet", "--chdir=/", *options)
        return self.node.shared.program(
            MATMUL[4096], memory_bytes=memory_bytes, gpu=gpu, prefix=prefix, is_elsewhere=True
        )

    def job_of(self, program: SharedProgram) -> str:
        return _variable(program, "SLURM_JOB_ID")

    def gpus_of(self, program: SharedProgram) -> str:
        return _variable(program, "CUDA_VISIBLE_DEVICES")

    def parked(self) -> list[Any]:
        return list(self.node.turns()["parking"]["programs"].values())

    def holds_a_gpu(self, job: str) -> bool:
        return any(row["workload"] == job for row in self.allocations())

    def allocations(self) -> list[Any]:
        return list(json.loads(self.node.agent.get("/api/v1/allocations")[1])["allocations"]["held"].values())


def _variable(program: SharedProgram, name: str) -> str:
    lines = Path(f"/proc/{program.pid}/environ").read_bytes().split(b"\0")
    return next(line.partition(b"=")[2].decode() for line in lines if line.startswith(f"{name}=".encode()))


@contextmanager
def slurm_node(*, shards: int = 0, day_night: bool = False) -> Iterator[SlurmNode]:
    with open_folder() as directory, SharedNode(directory, 2) as node:
        jobs, agent = directory / "jobs", directory / "agent"
        agent.mkdir()
        command = f"{sys.executable} -m gpucommons"
        run_hook = f"{sys.executable} -I -S {hooks.__file__}"
        plan = NodePlan("", ("", ""), "h200", shards, day_night, 8, "", run_hook, command)
        options = f"--directory {jobs} --agent-directory {agent}"
        with slurm_cluster(directory / "slurm", plan, options) as cluster:
            yield SlurmNode(node, cluster, jobs, agent)


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmNode]:
    """Each GPU as day and night, and an agent that parks what Slurm suspends."""
    with slurm_node(day_night=True) as found:
        found.start_agent()
        yield found


@pytest.fixture
def night(cluster: SlurmNode) -> Iterator[SlurmNode]:
    """Without the jobs of another test."""
    yield cluster
    cluster.cluster.cancel_all()


def test_a_job_holds_its_gpus_from_its_start_to_its_end(night: SlurmNode) -> None:
    job = night.cluster.submit("echo gpus $CUDA_VISIBLE_DEVICES; sleep 600", "-p", "night", "--gres=gpu:night:1")
    rows = until(lambda: [row for row in night.allocations() if row["workload"] == job], "the job holds a GPU")
    assert [(row["managed"], row["slot"], row["share_ratio"]) for row in rows] == [(True, "0", 1.0)]
    until(lambda: night.cluster.output(job) == "gpus 0\n", "the job has the real index of its GPU")
    night.cluster.run("scancel", job)
    until(lambda: not (night.jobs / job).exists(), "the epilog has run")
    until(lambda: not night.allocations(), "the GPU is free")


def stands_still(night: SlurmNode, program: SharedProgram) -> bool:
    before = program.work
    night.node.shared.let_pass(1.0)
    return (program.work.progress_s, program.work.running_s) == (before.progress_s, before.running_s)


def test_a_day_job_has_the_memory_of_the_suspended_night_job(night: SlurmNode) -> None:
    program = night.program("-p", "night", "--gres=gpu:night:1")
    job = night.job_of(program)
    until(lambda: program.progress() > 0.2, "the night job computes")
    day = night.cluster.submit("echo gpus $CUDA_VISIBLE_DEVICES; sleep 600", "-p", "day", "--gres=gpu:day:2")
    night.cluster.wait_for(job, "SUSPENDED")
    until(lambda: night.cluster.output(day), "the day job begins")
    assert program.program.state is State.CHECKPOINTED, "it begins when the memory has left"
    assert night.cluster.output(day) == "gpus 0,1\n"
    assert program.program.gpu_bytes == 0
    until(lambda: why_stopped(program.pid), "it is stopped again")
    assert stands_still(night, program)
    night.cluster.run("scancel", day)
    night.cluster.wait_for(job, "RUNNING", 120)
    before = program.progress()
    until(lambda: program.progress() > before + 0.2, "the night job goes on")
    assert program.program.gpu_bytes == 4 << 30
    program.end()


def test_a_job_that_is_resumed_during_the_move_goes_on(night: SlurmNode) -> None:
    program = night.program("-p", "night", "--gres=gpu:night:1")
    job = night.job_of(program)
    until(lambda: program.progress() > 0.2, "the job computes")
    # The move takes 4 s, longer than Slurm needs to stop the job twice.
    program.program.move_at(1 << 30)
    night.cluster.run("scontrol", "suspend", job)
    until(lambda: [row for row in night.parked() if row["stage"] == "parking"], "the move has begun")
    night.cluster.run("scontrol", "resume", job)
    before = program.progress()
    until(lambda: program.progress() > before + 0.2, "the job goes on")
    assert not why_stopped(program.pid)
    until(lambda: not night.parked(), "it is not parked")
    program.end()


def test_a_job_that_is_cancelled_while_it_is_parked_ends(night: SlurmNode) -> None:
    program = night.program("-p", "night", "--gres=gpu:night:1")
    job = night.job_of(program)
    until(lambda: program.progress() > 0.2, "the job computes")
    night.cluster.run("scontrol", "suspend", job)
    until(lambda: [row for row in night.parked() if row["stage"] == "parked"], "it is parked")
    night.cluster.run("scancel", job)
    until(lambda: key_of(program.pid) != program.key, "its process has ended")
    until(lambda: not night.parked(), "nothing of it is left")


def test_a_process_that_its_user_stops_inside_a_job_is_left_alone(night: SlurmNode) -> None:
    program = night.program("-p", "night", "--gres=gpu:night:1")
    until(lambda: program.progress() > 0.2, "the job computes")
    with night.node.shared.calm():
        os.kill(program.pid, signal.SIGSTOP)
    night.node.shared.let_pass(3.0)
    assert not night.parked()
    assert why_stopped(program.pid)
    os.kill(program.pid, signal.SIGCONT)
    program.end()


def test_a_job_on_a_gpu_that_it_was_not_given_is_paused_and_others_are_not(night: SlurmNode) -> None:
    """Two jobs on GPU 1, each with one GPU: Slurm gave GPU 0 to the first and GPU 1 to the second."""
    outside = night.program("-p", "night", "--gres=gpu:night:1", gpu=1)
    inside = night.program("-p", "night", "--gres=gpu:night:1", gpu=1)
    assert (night.gpus_of(outside), night.gpus_of(inside)) == ("0", "1")
    until(lambda: outside.program.state is State.LOCKED and stands_still(night, outside), "it is paused")
    before = inside.progress()
    until(lambda: inside.progress() > before + 0.2, "the other job computes")
    until(
        lambda: 'gpucommons_problems{kind="outside_allocation"} 1' in night.node.agent.get("/metrics")[1],
        "the agent reports it",
    )
    assert any(f"pid {outside.pid} is paused: its job was not given" in line for line in night.node.agent.lines)
    assert not any(f"pid {inside.pid} is paused" in line for line in night.node.agent.lines)
    assert stands_still(night, outside), "for as long as it is there"
    outside.end()
    inside.end()


def test_the_node_is_drained_while_a_gpu_is_lost_and_resumed_afterwards(night: SlurmNode) -> None:
    def check() -> None:
        environment = {**night.cluster.environment, "GPUCOMMONS_WEB_SOCKET": f"unix:{night.agent_directory}/api.sock"}
        done = command_process("slurm", "health", "--node", NODE, environment=environment)
        assert done.returncode == 0, done.stderr

    check()
    assert "DRAIN" not in night.cluster.node()
    night.node.shared.nvml.say("lose 1")
    until(lambda: "gpu_lost" in night.node.agent.get("/api/v1/problems")[1], "the agent sees that it is lost")
    check()
    assert "+DRAIN" in night.cluster.node()
    assert "Reason=gpucommons: GPU 1 is lost." in night.cluster.node()
    night.node.shared.nvml.unsay("lose")
    until(lambda: "gpu_lost" not in night.node.agent.get("/api/v1/problems")[1], "the agent sees that it is back")
    check()
    assert "DRAIN" not in night.cluster.node()
    night.cluster.run("scontrol", "update", f"nodename={NODE}", "state=drain", "reason=bad disk")
    check()
    assert "Reason=bad disk" in night.cluster.node(), "a drain of others is not touched"
    night.cluster.run("scontrol", "update", f"nodename={NODE}", "state=resume")


def test_a_job_that_is_requeued_while_it_is_suspended_gives_its_gpu_back_and_begins_again(night: SlurmNode) -> None:
    job = night.cluster.submit("echo begun; exec sleep 600", "-p", "night", "--gres=gpu:night:1", "--requeue")
    until(lambda: night.holds_a_gpu(job), "the job holds a GPU")
    night.cluster.run("scontrol", "suspend", job)
    night.cluster.wait_for(job, "SUSPENDED")
    night.cluster.run("scontrol", "requeue", job)
    until(lambda: not (night.jobs / job).exists(), "the epilog has run")
    until(lambda: not night.allocations(), "the GPU is free")
    night.cluster.wait_for(job, "PENDING")
    assert night.cluster.reason(job) == "JobHeldAdmin", "Slurm holds a job that an administrator had suspended"
    night.cluster.run("scontrol", "release", job)
    # Its credential expires after 15 s, and Slurm looks for such jobs once a minute where no other job comes or ends.
    night.cluster.wait_for(job, "RUNNING", 120)
    until(lambda: night.holds_a_gpu(job), "it holds a GPU again")


def test_a_job_that_is_requeued_while_a_day_job_has_its_gpu_begins_again_after_it(night: SlurmNode) -> None:
    program = "echo begun $SLURM_RESTART_COUNT; exec sleep 600"
    job = night.cluster.submit(program, "-p", "night", "--gres=gpu:night:1", "--requeue", "--open-mode=append")
    until(lambda: night.cluster.output(job) == "begun\n", "the job has begun")
    until(lambda: night.holds_a_gpu(job), "the job holds a GPU")
    day = night.cluster.submit("exec sleep 600", "-p", "day", "--gres=gpu:day:2")
    night.cluster.wait_for(job, "SUSPENDED")
    night.cluster.run("scontrol", "requeue", job)
    until(lambda: not night.holds_a_gpu(job), "the requeued job holds nothing")
    until(lambda: night.holds_a_gpu(day), "the day job holds both")
    night.cluster.run("scancel", day)
    night.cluster.wait_for(job, "RUNNING", 120)
    until(lambda: night.holds_a_gpu(job), "it holds a GPU again")
    until(lambda: night.cluster.output(job).endswith("begun 1\n"), "its script has begun twice")


_TARGETS = """
scrape_configs:
  - job_name: gpucommons
    scrape_interval: 1s
    static_configs:
      - {{targets: ["127.0.0.1:{port}"], labels: {{node: gpu1}}}}
      - {{targets: ["localhost:{port}"], labels: {{node: gpu2}}}}
"""


def test_the_report_of_a_job_on_two_nodes_and_its_comments(night: SlurmNode, tmp_path: Path) -> None:
    """Prometheus scrapes the agent as two nodes. slurmctld runs the hook when the job ends."""
    config = tmp_path / "prometheus.yml"
    config.write_text(_TARGETS.format(port=urlsplit(night.node.agent.url).port))
    hook = night.cluster.config.parent / "admin-comment.sh"
    with running_prometheus(config, tmp_path / "data") as prometheus:
        options = f"--prometheus {prometheus.url}"
        exported = f"export SLURM_CONF={night.cluster.config}"
        # There is no accounting database: what would be written into it is kept.
        manager, written = tmp_path / "sacctmgr", tmp_path / "written"
        manager.write_text(f'#!/bin/sh\necho "$@" >> {written}\n')
        manager.chmod(0o755)
        command = f"{sys.executable} -m gpucommons slurm admin-comment {options}"
        hook.write_text(f"#!/bin/sh\n{exported} PATH={tmp_path}:/usr/bin:/bin\n{command}\n")
        program = night.program("-p", "night", "--gres=gpu:night:1")
        job = night.job_of(program)
        until(
            lambda: len(prometheus.query(f'gpucommons_job_gpu_memory_bytes{{job_id="{job}"}} == {4 << 30}')) == 2,
            "both nodes have the memory of the job",
        )
        done = command_process("report", "--job", job, *options.split(), environment=night.cluster.environment)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"job {job} on 2 nodes, from Prometheus\n"), "this machine has no ledger"
        assert "\ngpu1: " in done.stdout
        assert "\ngpu2: " in done.stdout
        assert done.stdout.count("memory at most 4.0 of ") == 2
        program.end()

        until(lambda: written.exists() and len(written.read_text().splitlines()) == 2, "slurmctld has run the hook")
    admin, system = written.read_text().splitlines()
    where, _, encoded = admin.partition(" set AdminComment=JS1:")
    assert where == f"-i update job where jobid={job}"
    assert f"jobid={job} set SystemComment=gpucommons: 2 nodes, GPU " in system
    summary = json.loads(gzip.decompress(base64.b64decode(encoded)))
    assert set(summary["nodes"]) == {"gpu1", "gpu2"}
    assert summary["nodes"]["gpu1"]["gpu_used_memory"] == {"0": 4 << 30}


def test_targets_are_the_nodes_of_the_cluster(night: SlurmNode) -> None:
    done = command_process("slurm", "targets", environment=night.cluster.environment)
    (group,) = json.loads(done.stdout)
    assert group == {"targets": ["127.0.0.1:9460"], "labels": {"node": NODE, "slurm_partition": "day,night"}}


def test_shards_are_shares() -> None:
    with slurm_node(shards=4) as slurm:
        slurm.start_agent()
        large = slurm.program("--uid=games", "--gres=shard:3")
        small = slurm.program("--uid=daemon", "--gres=shard:1")
        assert slurm.gpus_of(large) == slurm.gpus_of(small) == "0"

        def shares() -> dict[str, float]:
            return {row["workload"]: row["share_ratio"] for row in slurm.allocations()}

        expected = {slurm.job_of(large): 0.75, slurm.job_of(small): 0.25}
        until(lambda: shares() == expected, f"each job is billed for its shards: {expected}")
        slurm.node.wait_for(lambda: slurm.node.way() == "turns", "they take turns")
        before = slurm.node.shared.works()
        slurm.node.shared.let_pass(10.0)
        rates = slurm.node.shared.rates_since(before)
        part = rates.of(large) / (rates.of(large) + rates.of(small))
        assert 0.65 < part < 0.85
        metrics = slurm.node.agent.get("/metrics")[1]
        (given,) = (
            line for line in metrics.splitlines() if f'_memory_share_bytes{{job_id="{slurm.job_of(small)}"' in line
        )
        (whole,) = (
            line for line in metrics.splitlines() if f'_memory_total_bytes{{job_id="{slurm.job_of(small)}"' in line
        )
        assert float(given.split()[-1]) == float(whole.split()[-1]) // 4, "a quarter of the memory"
        large.end()
        before = slurm.node.shared.works()
        slurm.node.shared.let_pass(3.0)
        until(lambda: slurm.node.shared.rates_since(before).of(small) > 0.5, "alone it has the whole GPU")
