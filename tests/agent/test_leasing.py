"""Leases in the agent: what a snapshot shows about slots, when leases are off, and trespassers on a fake driver."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fakes.nvml.build import build
from fakes.nvml.control import FakeNvml, process, usage
from gpucommons.agent.leases.facts import gpu_programs, leasable_slots, manager_of, user_facts
from gpucommons.agent.leases.leasing import Leasing, check_lease_quotas, is_descendant, start_ticks_of
from gpucommons.config.accounts import LeaseQuotaSettings, LeasesSettings, LedgerSettings
from gpucommons.config.option import ConfigError
from gpucommons.config.settings import Settings
from gpucommons.leases.policy.values import KeptRoom, SlotUse
from gpucommons.leases.protocol import LeaseConnection, answer_of
from gpucommons.model.leases import Lease, LeaseRequest, LeasesReading
from gpucommons.model.process_identity import ProcessKey, ProcessRow, ProcessTable
from gpucommons.model.sharing import TURN, ParkedReading, ParkingReading
from gpucommons.model.snapshot import Readings
from gpucommons.model.workloads import JobMappingReading
from gpucommons.owners.holding_stage import AllocationStage
from gpucommons.scheduler.parking.values import ParkStage
from needs import needs_program
from running import RunningAgent, command_process, running_agent
from simulation.played_lab import PlayedLab
from waiting import until

GIB = 2**30
NOBODY = 65534


@cache
def lab() -> Readings:
    return PlayedLab().at(100.0)


def uses(readings: Readings, before: dict[str, SlotUse] | None = None) -> dict[str, SlotUse]:
    return {slot.name: slot.use for slot in leasable_slots(readings, before or {}) or ()}


def test_the_slots_of_the_lab() -> None:
    found = uses(lab())
    assert {found[str(gpu)] for gpu in range(3)} == {SlotUse.ALLOCATED}
    # Chen's evaluation runs next to pods on GPU 5: Kubernetes has allocated it.
    assert found["5"] is SlotUse.ALLOCATED
    assert found["7.6"] is SlotUse.USED, "a system service, which was not allocated the MIG device"
    assert SlotUse.FREE in found.values()
    by_name = {slot.name: slot for slot in leasable_slots(lab(), {}) or ()}
    assert by_name["7.3"].total_bytes == 16 * GIB
    assert by_name["7.3"].gpus == pytest.approx(1 / 7)
    assert (by_name["0"].is_mig, by_name["7.3"].is_mig) == (False, True)


def test_a_lost_gpu_is_lost_and_an_unread_driver_is_unknown() -> None:
    readings = lab()
    assert readings.gpus is not None
    assert readings.allocations is not None
    first, *others = readings.gpus.gpus
    gpus = readings.gpus._replace(gpus=(first._replace(up=False), *others))
    slots = tuple(info for info in readings.allocations.slots if info.slot.gpu_uuid != first.identity.uuid)
    lost = readings._replace(gpus=gpus, allocations=readings.allocations._replace(slots=slots))
    assert uses(lost)["0"] is SlotUse.LOST
    assert leasable_slots(readings._replace(gpus=None), {}) is None


def test_memory_that_programs_are_about_to_take_back_is_not_free() -> None:
    readings = lab()
    assert readings.sharing is not None
    (slot,) = (one for one in leasable_slots(readings, {}) or () if one.name == "0")

    def kept(stage: ParkStage, comes_after: frozenset[str] | None) -> tuple[KeptRoom, ...]:
        program = ParkedReading("a", "a", "bob", 1001, stage, slot.uuid, (1,), 2 * GIB, 2 * GIB, 0.0, TURN)
        program = program._replace(comes_after=comes_after)
        assert readings.sharing is not None
        sharing = readings.sharing._replace(parking=ParkingReading(programs=(program,)))
        (found,) = (one for one in leasable_slots(readings._replace(sharing=sharing), {}) or () if one.name == "0")
        return found.kept

    assert kept(ParkStage.WAKING, frozenset()) == (KeptRoom(2 * GIB),)
    assert kept(ParkStage.PARKED, frozenset({"7"})) == (KeptRoom(2 * GIB, frozenset({"7"})),)
    assert kept(ParkStage.PARKED, None) == ()


def test_a_slot_is_not_free_because_its_holders_are_unknown() -> None:
    readings = lab()
    assert readings.allocations is not None
    uuid = next(info.slot.uuid for info in readings.allocations.slots if info.slot.name == "0")
    unknown = readings._replace(allocations=readings.allocations._replace(allocations=(), complete=False))
    assert uses(unknown, {uuid: SlotUse.ALLOCATED})["0"] is SlotUse.ALLOCATED
    complete = readings._replace(allocations=readings.allocations._replace(allocations=()))
    assert uses(complete, {uuid: SlotUse.ALLOCATED})["0"] is SlotUse.FREE


def test_programs_are_found_on_gpus_and_mig_devices() -> None:
    names = {slot.uuid: slot.name for slot in leasable_slots(lab(), {}) or ()}
    found = {(names[each.slot_uuid], each.process_name) for each in gpu_programs(lab())}
    assert ("3", "jupyter-kernel") in found
    assert ("7.6", "ollama") in found


def test_a_lease_holds_its_slot_and_is_billed_as_a_job_of_its_user() -> None:
    slot = next(slot for slot in leasable_slots(lab(), {}) or () if slot.name == "7.3")
    request = LeaseRequest(1001, "alice", 0.0, id="17", number=17, name="my project", program="train")
    leases = LeasesReading(leases=(Lease(request, (slot.uuid,), slot.gpus, 50.0),))
    readings = AllocationStage()(lab()._replace(leases=leases))
    assert readings.allocations is not None
    (row,) = [each for each in readings.allocations.allocations if each.slot.uuid == slot.uuid and each.share]
    assert (row.account.user, row.account.job, row.account.group) == ("alice", "lease-17", "vision")
    assert (row.kind.value, row.workload, row.managed, row.since_wall_s) == ("lease", "train", True, 50.0)
    assert uses(readings)["7.3"] is SlotUse.FREE, "its own lease is not an outside use"


@pytest.mark.parametrize(
    ("readings", "manager"),
    [
        (Readings(), None),
        (Readings(job_mapping=JobMappingReading()), "Slurm"),
        (Readings(processes=ProcessTable({7: ProcessRow(ProcessKey(7, 1), "slurmd", 0, 0)}, ())), "Slurm"),
        (Readings(processes=ProcessTable({7: ProcessRow(ProcessKey(7, 1), "kubelet", 0, 0)}, ())), "Kubernetes"),
        (Readings(processes=ProcessTable({7: ProcessRow(ProcessKey(7, 1), "sshd", 0, 0)}, ())), None),
    ],
)
def test_the_system_that_allocates_the_gpus(readings: Readings, manager: str | None) -> None:
    assert manager_of(readings) == manager


def test_the_pods_of_the_lab_are_of_kubernetes() -> None:
    assert manager_of(lab()._replace(job_mapping=None)) == "Kubernetes"


@pytest.mark.parametrize(
    ("quota", "ledger", "words"),
    [
        (LeaseQuotaSettings(gpus=1), True, "set either user or group"),
        (LeaseQuotaSettings(user="a", group="b", gpus=1), True, "set either user or group"),
        (LeaseQuotaSettings(user="a"), True, "no limit is set"),
        (LeaseQuotaSettings(user="a", hours=1), False, "ledger.enabled = true"),
    ],
)
def test_a_quota_that_has_no_meaning_is_refused(quota: LeaseQuotaSettings, ledger: bool, words: str) -> None:
    settings = replace(Settings(), lease_quotas={"x": quota}, ledger=LedgerSettings(enabled=ledger))
    with pytest.raises(ConfigError, match=words):
        check_lease_quotas(settings)


def test_hours_are_those_of_the_accounts() -> None:
    assert user_facts(Readings()).hours is None
    assert user_facts(lab()).members["students"] == {"dana", "emeka", "farah"}


def test_descendants() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60; true"]) as shell:
        try:
            assert is_descendant(shell.pid, os.getpid())
            assert is_descendant(os.getpid(), os.getpid())
            assert not is_descendant(os.getpid(), shell.pid)
            assert not is_descendant(2**30, os.getpid())
        finally:
            shell.kill()


def test_a_process_that_has_ended_has_no_start_also_before_it_is_reaped() -> None:
    assert start_ticks_of(os.getpid()) is not None
    ended = subprocess.Popen(["true"])
    until(lambda: start_ticks_of(ended.pid) is None, "it has ended")
    assert Path(f"/proc/{ended.pid}").exists(), "it is still listed"
    ended.wait()


@pytest.mark.long
def test_the_agent_runs_without_leases_where_the_default_socket_is_taken(tmp_path: Path) -> None:
    environment = {"RUNTIME_DIRECTORY": str(tmp_path), "GPUCOMMONS_LEASES_SOCKET": ""}
    lab = ("--simulate", "lab")
    with (
        running_agent(*lab, environment=environment),
        running_agent(*lab, environment=environment) as second,
    ):
        assert any("leases are off: cannot listen on" in line for line in second.lines)
        assert json.loads(second.get("/api/v1/queue")[1])["queue"] is None
    done = command_process(
        "up", "--listen", "127.0.0.1:0", environment={"GPUCOMMONS_LEASES_SOCKET": "/proc/none/l.sock"}
    )
    assert done.returncode == 2
    assert "leases.socket" in done.stderr
    assert Leasing(replace(Settings(), leases=LeasesSettings(socket="/x"))).sources()[0].feeds == "leases"


class Node:
    """An agent with a fake driver of two GPUs."""

    def __init__(self, agent: RunningAgent, driver: FakeNvml, socket: Path) -> None:
        self.agent, self.driver, self.socket = agent, driver, socket
        self.environment = {"GPUCOMMONS_LEASES_SOCKET": str(socket)}

    def queue(self) -> dict[str, Any]:
        answer: Any = answer_of([self.socket], {"request": "queue"})["answer"]
        return dict(answer)

    def lease(self, **request: object) -> tuple[LeaseConnection, dict[str, Any]]:
        connection = LeaseConnection([self.socket])
        connection.send({"request": "run", **request})
        granted = [connection.receive(30) or {} for _ in range(2)][-1]
        assert granted["event"] == "granted", granted
        return connection, dict(granted)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    needs_program("cc")
    driver = FakeNvml(tmp_path / "driver", build(tmp_path / "lib"))
    driver.say("gpus 2", "recording idle")
    socket = tmp_path / "leases.sock"
    environment = {**driver.environment(), "GPUCOMMONS_LEASES_SOCKET": str(socket), "GPUCOMMONS_LEASES_ENABLED": "true"}
    environment |= {"GPUCOMMONS_SAMPLING_PROCESSES_INTERVAL_S": "0.5"}
    with running_agent("--interval", "0.2", environment=environment) as agent:
        node = Node(agent, driver, socket)
        until(lambda: node.queue()["off"] is None, "leases are given")
        yield node


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0, reason="runs programs of another user")
def test_a_program_of_another_user_on_a_leased_gpu_is_a_trespasser(node: Node) -> None:
    runner = subprocess.Popen(
        [sys.executable, "-m", "gpucommons", "run", "cat"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **node.environment},
    )
    with subprocess.Popen(["sleep", "600"], user=NOBODY) as stray, subprocess.Popen(["sleep", "600"]) as own:
        try:
            until(lambda: node.queue()["leases"], "the command runs")
            ((id, lease),) = node.queue()["leases"].items()
            gpu = int(lease["slots"][0])
            programs = process(gpu, own.pid, 2**30), process(gpu, stray.pid, 3 * 2**30)
            node.driver.say("recording busy", *programs, usage(gpu, own.pid, 50))
            until(lambda: node.queue()["leases"][id]["trespassers"], "the trespasser is shown")
            (found,) = node.queue()["leases"][id]["trespassers"]
            assert (found["pid"], found["process"], found["slot"]) == (stray.pid, "sleep", str(gpu))
            until(lambda: "lease.trespasser" in node.agent.get("/api/v1/events")[1], "the event is recorded")
            assert f'gpucommons_leases_trespassers{{slot="{gpu}"}} 1' in node.agent.get("/metrics")[1]
            held = json.loads(node.agent.get("/api/v1/allocations")[1])["allocations"]["held"].values()
            assert {(row["job"], row["user"]) for row in held} == {(f"lease-{id}", "root"), ("", "nobody")}
            # A quarter of the 1.3 GiB in use: the trespasser's memory is not part of the report.
            assert "peak memory 0.3 GiB" in runner.communicate(timeout=30)[1]
        finally:
            for each in (stray, own, runner):
                each.kill()


@pytest.mark.long
def test_what_a_program_did_while_its_gpu_was_idle(node: Node) -> None:
    """A program that computes on the CPU below `run`, and one that sleeps."""

    def job(command: str, has_figures: Callable[[Any], bool]) -> Any:
        runner = subprocess.Popen(
            [sys.executable, "-m", "gpucommons", "run", "--quiet", "sh", "-c", command],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **node.environment},
        )
        try:
            until(lambda: node.queue()["leases"], "the command runs")
            ((id, _),) = node.queue()["leases"].items()

            def found() -> Any:
                return json.loads(node.agent.get(f"/api/v1/job?id=lease-{id}")[1])["job"]

            until(lambda: (job := found()) is not None and has_figures(job), "its figures are known")
            return found()
        finally:
            runner.terminate()
            runner.wait()
            until(lambda: not node.queue()["leases"], "the lease is over")

    busy = job("while :; do :; done", lambda job: (job["idle_cpu_ratio"] or 0) > 0.3)
    assert busy["busy_ratio"] == 0
    assert busy["idle_disk_ratio"] is not None
    # The start of `run` itself takes a moment of a core.
    quiet = job("sleep 600", lambda job: job["idle_cpu_ratio"] is not None and job["idle_cpu_ratio"] < 0.3)
    assert quiet["busy_ratio"] == 0
    assert quiet["hints"] == [], "it was too short to judge"


def test_a_gpu_that_a_program_uses_is_not_given_exclusively(node: Node) -> None:
    with subprocess.Popen(["sleep", "600"]) as program:
        try:
            node.driver.say(process(0, program.pid, 2**30))
            until(lambda: '"slot":"0"' in node.agent.get("/api/v1/allocations")[1].split('"held"')[1], "it is seen")
            _first, granted = node.lease()
            assert [slot["name"] for slot in granted["slots"]] == ["1"]
            _second, joined = node.lease(share=True)
            assert [slot["name"] for slot in joined["slots"]] == ["0"]
            assert node.queue()["leases"][joined["id"]]["shared"]
        finally:
            program.kill()


@pytest.mark.long
def test_without_an_agent_the_emptiest_gpu_is_taken(tmp_path: Path) -> None:
    needs_program("cc")
    driver = FakeNvml(tmp_path / "driver", build(tmp_path / "lib"))
    driver.say("gpus 2", "recording busy", process(0, os.getpid(), 2**30))
    socket = {"GPUCOMMONS_LEASES_SOCKET": str(tmp_path / "none" / "leases.sock")}
    done = command_process(
        *("run", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exit 4"), environment={**driver.environment(), **socket}
    )
    assert done.returncode == 4
    assert "no agent runs here" in done.stderr
    assert "on GPU 1" in done.stderr
    assert done.stdout.startswith("GPU-")
