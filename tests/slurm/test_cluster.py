"""A real Slurm with the printed configuration, the real hooks and agent, and programs on fake GPUs."""

import base64
import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from fakes.gpu.account import Activity, Phase
from fakes.shared_gpu import MATMUL, SharedProgram
from gpucommons.pauser.backend import State
from gpucommons.pauser.release import key_of
from gpucommons.pauser.stopped import why_stopped
from gpucommons.slurm import hooks
from gpucommons.slurm.configuration import NodePlan
from gpucommons.slurm.jobs import is_suspended, keeps_case
from open_folder import open_folder
from prometheus_server import running_prometheus
from running import command, command_process
from shared_node import SharedNode, device_files
from testbeds.slurm import NODE, SlurmCluster, slurm_cluster
from waiting import until

pytestmark = pytest.mark.long

GIB = 1 << 30
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

    def start_agent(self, sections: str = "") -> None:
        environment = {**self.cluster.environment, "RUNTIME_DIRECTORY": str(self.agent_directory)}
        self.node.start_agent(sections=_SHARING.format(jobs=self.jobs) + sections, environment=environment)

    def program(
        self, *options: str, memory_bytes: int = 4 * GIB, gpu: int = 0, solo: Activity | None = MATMUL[4096]
    ) -> SharedProgram:
        """A program on one GPU as a job of its own, by srun. `solo` is None for one that waits for its user."""
        environment = [f"{name}={value}" for name, value in self.cluster.environment.items()]
        prefix = ("env", *environment, "srun", "--quiet", "--chdir=/", *options)
        program = self.node.shared.program(
            phases=[Phase(solo)], memory_bytes=memory_bytes, gpu=gpu, prefix=prefix, is_elsewhere=True
        )
        if solo is None:
            program.program.wait_for_user()
        return program

    def shards_program(self, user: str, shards: int, memory_bytes: int, solo: Activity | None = None) -> SharedProgram:
        return self.program(f"--uid={user}", f"--gres=shard:{shards}", memory_bytes=memory_bytes, solo=solo)

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
def slurm_node(*, shards: int = 0, day_night: bool = False, accounting: bool = False) -> Iterator[SlurmNode]:
    with open_folder() as directory, SharedNode(directory, 2) as node:
        jobs, agent = directory / "jobs", directory / "agent"
        agent.mkdir()
        command = f"env GPUCOMMONS_WEB_SOCKET=unix:{agent}/api.sock {sys.executable} -m gpucommons"
        run_hook = f"{sys.executable} -I -S {hooks.__file__}"
        plan = NodePlan("", ("", ""), "h200", shards, day_night, 8, "", run_hook, command)
        options = f"--directory {jobs} --agent-directory {agent}"
        with slurm_cluster(directory / "slurm", plan, options, accounting=accounting) as cluster:
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
    assert program.program.gpu_bytes == 4 * GIB
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


def test_the_last_task_of_an_array_is_asked_for_alone(night: SlurmNode) -> None:
    """It has the id of the array, which means all tasks to squeue."""
    array = night.cluster.submit("exec sleep 600", "-p", "night", "--gres=gpu:night:1", "--array=0-1")

    def ids() -> dict[str, str]:
        rows = night.cluster.run("squeue", "-h", "-j", array, "-t", "RUNNING", "-o", "%A %K")
        return dict(line.split() for line in rows.splitlines())

    tasks = until(lambda: found if len(found := ids()) == 2 else None, "both tasks run")
    (other,) = tasks.keys() - {array}
    night.cluster.run("scontrol", "suspend", f"{array}_{tasks[array]}")
    until(lambda: is_suspended(array, lambda command: night.cluster.run(*command)), "it is suspended")
    assert is_suspended(other, lambda command: night.cluster.run(*command)) is False


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
    """slurmd runs the printed script."""
    reads = night.node.shared.nvml
    night.cluster.check_health_every(5)
    try:
        reads.say("lose 1")
        drained = "Reason=gpucommons: GPU 1 is lost."
        until(lambda: drained in night.cluster.node(), f"it is drained; {night.cluster.logs()}", within_s=60)
        assert "+DRAIN" in night.cluster.node()
        reads.unsay("lose")
        until(lambda: "DRAIN" not in night.cluster.node(), "it is resumed", within_s=60)
    finally:
        reads.unsay("lose")
        night.cluster.check_health_every(3600)


@pytest.mark.parametrize("state", ["drain", "down", "fail"])
def test_what_an_administrator_took_out_of_service_stays_as_it_is(night: SlurmNode, state: str) -> None:
    """Also while a GPU is lost, and when it is back: the check would undo only a drain of its own."""
    order = ("scontrol", "update", f"nodename={NODE}")

    def check() -> None:
        """As slurmd starts it: with this variable alone."""
        script = night.cluster.config.parent / "health.sh"
        done = subprocess.run(
            ["env", "-i", f"SLURMD_NODENAME={NODE}", str(script)], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "nothing was changed"

    night.cluster.run(*order, f"state={state}", "reason=bad disk")
    try:
        before = night.cluster.node().partition(" State=")[2].split()[0]
        night.node.shared.nvml.say("lose 1")
        until(lambda: "gpu_lost" in night.node.agent.get("/api/v1/problems")[1], "the agent sees that it is lost")
        check()
        night.node.shared.nvml.unsay("lose")
        until(lambda: "gpu_lost" not in night.node.agent.get("/api/v1/problems")[1], "the agent sees that it is back")
        check()
        assert night.cluster.node().partition(" State=")[2].split()[0] == before
        assert "Reason=bad disk" in night.cluster.node()
    finally:
        night.node.shared.nvml.unsay("lose")
        night.cluster.run(*order, "state=resume")
    until(lambda: "State=IDLE " in night.cluster.node(), "it is in service again")


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


def test_the_report_of_a_job_on_two_nodes_and_its_comments(tmp_path: Path) -> None:
    """Prometheus scrapes the agent as two nodes. slurmctld runs the hook when the job ends; sacct has its comments."""
    with slurm_node(accounting=True) as slurm:
        slurm.start_agent()
        config = tmp_path / "prometheus.yml"
        config.write_text(_TARGETS.format(port=urlsplit(slurm.node.agent.url).port))
        hook = slurm.cluster.config.parent / "admin-comment.sh"
        with running_prometheus(config, tmp_path / "data") as prometheus:
            options = f"--prometheus {prometheus.url}"
            hook.write_text(hook.read_text().replace("admin-comment\n", f"admin-comment {options}\n"))
            program = slurm.program("--gres=gpu:1")
            job = slurm.job_of(program)
            until(
                lambda: len(prometheus.query(f'gpucommons_job_gpu_memory_bytes{{job_id="{job}"}} == {4 * GIB}')) == 2,
                "both nodes have the memory of the job",
            )
            done = command_process("report", "--job", job, *options.split(), environment=slurm.cluster.environment)
            assert done.returncode == 0, done.stderr
            assert done.stdout.startswith(f"job {job} on 2 nodes, from Prometheus\n"), "this machine has no ledger"
            assert "\ngpu1: " in done.stdout
            assert "\ngpu2: " in done.stdout
            assert done.stdout.count("memory at most 4.0 of ") == 2
            program.end()
            show = ("sacct", "-n", "-P", "-X", "-j", job, "-o", "admincomment,systemcomment")

            def comments() -> list[str] | None:
                admin, _, system = slurm.cluster.run(*show).strip().partition("|")
                return [admin, system] if system else None

            def by_hand(*more: str) -> str:
                arguments = ("slurm", "admin-comment", job, *more, *options.split())
                return command_process(*arguments, environment=slurm.cluster.environment).stdout

            admin, system = until(comments, "the hook has written into the database")
            if not keeps_case(slurm.cluster.run("sacctmgr", "--version")):
                assert (admin, system[:25]) == ("", "gpucommons: 2 nodes, gpu ")
                assert "no AdminComment: before Slurm 23.02" in by_hand()
                admin, system = by_hand("--print").splitlines()
    assert system.startswith("gpucommons: 2 nodes, GPU ")
    summary = json.loads(gzip.decompress(base64.b64decode(admin.removeprefix("JS1:"))))
    assert set(summary["nodes"]) == {"gpu1", "gpu2"}
    assert summary["nodes"]["gpu1"]["gpu_used_memory"] == {"0": 4 * GIB}


def test_targets_are_the_nodes_of_the_cluster(night: SlurmNode) -> None:
    done = command_process("slurm", "targets", environment=night.cluster.environment)
    (group,) = json.loads(done.stdout)
    assert group == {"targets": ["127.0.0.1:9460"], "labels": {"node": NODE, "slurm_partition": "day,night"}}


def test_shards_are_shares() -> None:
    with slurm_node(shards=4) as slurm:
        slurm.start_agent()
        large = slurm.program("--uid=games", "--gres=shard:3")
        # scontrol prints the name of a job as it is: this one looks like a job with the whole GPU that has ended.
        name = f"--job-name=x JobState=COMPLETED Nodes={NODE} CPU_IDs=0 Mem=1 GRES=shard:4(IDX:0)"
        small = slurm.program("--uid=daemon", "--gres=shard:1", name)
        assert slurm.gpus_of(large) == slurm.gpus_of(small) == "0"

        def shares() -> dict[str, float]:
            return {row["workload"]: row["share_ratio"] for row in slurm.allocations()}

        expected = {slurm.job_of(large): 0.75, slurm.job_of(small): 0.25}
        until(lambda: shares() == expected, f"each job is billed for its shards: {expected}")
        slurm.node.wait_for(lambda: slurm.node.way() == "turns", "they take turns")
        slurm.node.wait_for_rates(
            lambda rates: 0.65 < rates.of(large) / (rates.of(large) + rates.of(small)) < 0.85, 10.0
        )
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


@contextmanager
def small_gpu() -> Iterator[SlurmNode]:
    """A GPU of 16 GiB, divided into 4 shards: 4 GiB go with each. Its agent is not started."""
    with slurm_node(shards=4) as slurm:
        slurm.node.shared.nvml.say(f"set nvmlDeviceGetMemoryInfo_v2 0 0 {16 * GIB} 0 {16 * GIB} 0")
        slurm.node.shared.cuda.gpu_has(16 * GIB)
        yield slurm


def wait_until_above_share(slurm: SlurmNode, above: SharedProgram, *others: SharedProgram) -> None:
    """Each user's problems are their own: the agent's log has them all."""
    used = f"{above.program.gpu_bytes / GIB:.1f} GiB"
    line = f"problem: Job {slurm.job_of(above)} uses {used} of GPU 0, and its shards are 4.0 GiB."
    until(lambda: any(line in shown for shown in slurm.node.agent.lines), "it is known which job is above its share")
    for other in others:
        assert not any(f"problem: Job {slurm.job_of(other)} uses" in shown for shown in slurm.node.agent.lines)


def test_an_idle_job_above_its_memory_share_makes_room_for_a_new_job() -> None:
    """The other one is larger, and would make room otherwise."""
    with small_gpu() as slurm:
        within = slurm.shards_program("games", 2, 15 * GIB // 2)
        above = slurm.shards_program("daemon", 1, 5 * GIB)
        files = device_files(slurm.node.run / "dev")
        arrivals = f'arrival_idle_after_s = 2\narrival_room = "6Gi"\nsettle_s = 2\ndevice_files = "{files}"\n'
        slurm.start_agent(f"[parking]\nmin_residence_s = 0\n{arrivals}")
        wait_until_above_share(slurm, above, within)
        until(lambda: any("new programs wait for room" in line for line in slurm.node.agent.lines), "a new job waits")
        # What begins from now on opens them, and is noticed.
        slurm.node.shared.cuda.device_files = files
        new = slurm.shards_program("bin", 1, 4 * GIB, MATMUL[512])
        until(lambda: new.program.gpu_bytes == 4 * GIB, "the new job has its memory")
        assert above.program.state is State.CHECKPOINTED
        assert within.program.state is State.RUNNING
        until(lambda: new.progress() > 0.2, "the new job computes")
        new.end()
        above.program.run_cell()
        until(lambda: above.program.cells > 0, "the parked job comes back when it is used")
        assert above.program.gpu_bytes == 5 * GIB


def test_a_job_at_work_above_its_memory_share_makes_room_for_one_that_comes_back() -> None:
    """Both are at work. The other one has more of the GPU's time, and is smaller: it would make room otherwise."""
    with small_gpu() as slurm:
        back = slurm.shards_program("bin", 1, 3 * GIB)
        within = slurm.shards_program("games", 2, 11 * GIB // 2, MATMUL[4096])
        slurm.start_agent("[parking]\noversubscribe = true\nmin_residence_s = 1\n")
        until(lambda: within.progress() > 2, "it computes")
        above = slurm.shards_program("daemon", 1, 7 * GIB, MATMUL[4096])
        wait_until_above_share(slurm, above, within, back)
        done = command("park", f"job:{slurm.job_of(back)}", "--socket", str(slurm.node.socket))
        assert done.returncode == 0, done.stderr
        slurm.node.wait_for(lambda: slurm.node.way() == "turns", "the two at work take turns")
        # Longer than a program has to be quiet before it can go on.
        slurm.node.shared.let_pass(2.5)
        back.program.run_cell()
        until(lambda: back.program.cells > 0, "it has its memory back", 120)
        assert above.program.state is State.CHECKPOINTED
        assert within.program.state is not State.CHECKPOINTED
