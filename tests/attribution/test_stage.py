"""Processes are identified with the GPU reading, and attributed only when something has changed."""

import asyncio
import logging
import os
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from attribution.builders import HOST, container, gpu, gpu_process, reading
from attribution.cgroup_vectors import C
from attribution.procfs_tree import add_process
from gpucommons.agent.sampler import Sampler
from gpucommons.model.gpu import GpuReading
from gpucommons.model.process_identity import CommandLineReading, PidScope, PidView, ProcessContext, ProcessKey
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.model.workloads import ContainerReading, DeviceId, PodDevices, PodDevicesReading
from gpucommons.owners.attribution_stage import AttributionStage, IdentifiedGpus, ticks_since_boot
from gpucommons.owners.process_identity import ProcessIdentities
from gpucommons.sources.host.process_details import ProcessDetailsReader
from gpucommons.sources.source import Source


@dataclass
class Driver:
    """Returns a given GPU reading."""

    now: object

    def read(self) -> object:
        return self.now


@dataclass
class Users:
    names: Mapping[int, str] = field(default_factory=dict)
    known: Mapping[int, str] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)

    def see(self, uids: Iterable[int]) -> Mapping[int, str]:
        self.asked = set(uids)
        self.known = {uid: name for uid, name in self.names.items() if uid in self.asked}
        return self.known


class Node:
    def __init__(self, procfs: Path) -> None:
        add_process(procfs, 7, uid=1001, cgroup=f"0::/docker-{C}.scope\n")
        self.driver = Driver(reading(gpu(0, [gpu_process(7)])))
        self.users = Users({1001: "bob"})
        self.identities = ProcessIdentities(ProcessDetailsReader(procfs), HOST)
        self.source = IdentifiedGpus(self.driver.read, self.identities, self.users, lambda: 1_000_000)
        self.stage = AttributionStage(self.identities, self.users)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def gpus_of(node: Node) -> GpuReading:
    found = node.source.read()
    assert isinstance(found, GpuReading)
    return found


def test_a_new_process_has_an_owner_in_its_first_snapshot(node: Node) -> None:
    derived = node.stage(Readings(gpus=gpus_of(node)))
    assert derived.attribution is not None
    assert derived.attribution.owners[0].owner.name == "bob"
    assert node.users.asked == {1001}


def test_the_reading_is_passed_on_unchanged(node: Node) -> None:
    assert node.source.read() is node.driver.now


def test_another_reading_is_passed_on(node: Node) -> None:
    node.driver.now = "garbage"
    assert node.source.read() == "garbage"


def test_a_failed_identification_keeps_the_gpu_reading(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(node.identities, "see", fail)
    with caplog.at_level(logging.ERROR):
        assert node.source.read() is node.driver.now
    assert "could not be identified" in caplog.text


def test_nothing_is_computed_while_nothing_changed(node: Node) -> None:
    readings = Readings(gpus=gpus_of(node))
    assert node.stage(readings).attribution is node.stage(readings).attribution


def test_an_equal_reading_keeps_the_findings(node: Node) -> None:
    first = node.stage(Readings(gpus=gpus_of(node), docker=ContainerReading({C: container(C)}))).attribution
    node.driver.now = reading(gpu(0, [gpu_process(7, 5)]))
    second = node.stage(Readings(gpus=gpus_of(node), docker=ContainerReading({C: container(C)}))).attribution
    assert first is not None
    assert second is not None
    assert second is not first
    assert second.processes[0].steps is first.processes[0].steps


def test_a_container_that_becomes_known_changes_the_owner(node: Node) -> None:
    node.stage(Readings(gpus=gpus_of(node)))
    known = ContainerReading({C: container(C, **{"ds01.user": "carol"})})
    derived = node.stage(Readings(gpus=gpus_of(node), docker=known))
    assert derived.attribution is not None
    assert derived.attribution.owners[0].owner.name == "carol"


def test_contexts_are_in_the_readings(tmp_path: Path) -> None:
    node = Node(tmp_path)
    cgroup = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/tmux-spawn-1.scope\n"
    add_process(tmp_path, 9, cgroup=cgroup)
    node.driver.now = reading(gpu(0, [gpu_process(9)]))
    key, line = ProcessKey(9, 100), ("python", "train.py")
    lines = CommandLineReading({key: line})
    first = node.stage(Readings(gpus=gpus_of(node), command_lines=lines))
    assert first.process_contexts == {key: ProcessContext(line, "tmux-spawn-1.scope", session_id=1)}
    assert node.stage(Readings(gpus=gpus_of(node), command_lines=lines)).process_contexts is first.process_contexts


def test_a_process_keeps_its_command_line_while_none_can_be_read(node: Node) -> None:
    key = ProcessKey(7, 100)
    lines = CommandLineReading({key: ("python", "train.py")})
    node.stage(Readings(gpus=gpus_of(node), command_lines=lines))
    later = node.stage(Readings(gpus=gpus_of(node))).process_contexts
    assert later is not None
    assert later[key].command_line == ("python", "train.py")


def test_devices_of_pods_are_placed(node: Node) -> None:
    devices = PodDevicesReading((PodDevices("ml", "train", "main", (DeviceId("GPU-0", gpu_uuid="GPU-0"),)),))
    assert node.stage(Readings(gpus=gpus_of(node), pod_devices=devices)).attribution is not None


def test_hidden_processes_are_logged_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    view = PidView(PidScope.NAMESPACE, "run with hostPID: true")
    stage = AttributionStage(ProcessIdentities(ProcessDetailsReader(Path("/nowhere")), view), node.users)
    stage(Readings())
    assert not caplog.records
    for _ in range(3):
        stage(Readings(gpus=reading(gpu(0))))
    assert [record.message for record in caplog.records] == ["not every GPU process is visible: run with hostPID: true"]


def test_without_gpus_there_is_nothing_to_attribute(node: Node) -> None:
    readings = Readings()
    assert node.stage(readings) is readings


def test_our_clock_is_that_of_process_start_times() -> None:
    own = ProcessDetailsReader(Path("/proc")).read(os.getpid())
    assert not isinstance(own, str)
    age_s = (ticks_since_boot() - own.key.start_ticks) / os.sysconf("SC_CLK_TCK")
    born_s = time.time() - os.stat(f"/proc/{os.getpid()}").st_ctime
    assert 0 <= age_s < 3600
    assert age_s >= born_s - 1


def test_attribution_in_the_sampler(node: Node) -> None:
    source = Source("nvml", "gpus", GpuReading, node.source.read)

    async def one_tick() -> Snapshot:
        sampler = Sampler([source], interval_s=1.0, hostname="here", derive=node.stage)
        try:
            return await sampler.tick(5.0)
        finally:
            sampler.close()

    snapshot = asyncio.run(one_tick())
    assert snapshot.readings.attribution is not None
    assert snapshot.readings.attribution.accounts[0].memory_error_bytes == 0


def test_processes_that_end_at_any_moment_fail_no_pass() -> None:
    """Two hundred processes end while they are read, in every pass; each pass still sums up."""
    driver = Driver(None)
    identities = ProcessIdentities(ProcessDetailsReader(Path("/proc")), HOST)
    source = IdentifiedGpus(driver.read, identities, Users())
    stage = AttributionStage(identities, Users())
    dying = [subprocess.Popen(["sleep", f"{number / 400}"]) for number in range(200)]
    try:
        for _ in range(40):
            driver.now = reading(gpu(0, [gpu_process(one.pid, 1, start_ticks=None) for one in dying], used=200))
            derived = stage(Readings(gpus=source.read()))  # type: ignore[arg-type]
            assert derived.attribution is not None
            assert derived.attribution.accounts[0].memory_error_bytes == 0
            assert all(row.owner or row.reason for row in derived.attribution.processes)
            dying = [one for one in dying if one.poll() is None] + dying[:10]
    finally:
        for one in dying:
            one.kill()
            one.wait()
