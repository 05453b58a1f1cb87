"""The usage of containers: from fixture trees of both cgroup versions, and of a real container."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.faces.dialects.gpucommons import slots
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.model.workloads import Container, ContainerState, ContainerUsage, ContainerUsageReading
from gpucommons.sources.containers.usage import ContainerUsageReader, cgroup_directories
from testbeds.dockerd import Dockerd

ID = "a" * 64


class Tree:
    """A /proc and a cgroup file system made by the test."""

    def __init__(self, root: Path, cgroup: str) -> None:
        self.procfs, self.cgroupfs = root / "proc", root / "cgroup"
        (self.procfs / "7").mkdir(parents=True)
        (self.procfs / "7" / "cgroup").write_text(cgroup)

    def put(self, directory: str, **files: str) -> None:
        (self.cgroupfs / directory).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (self.cgroupfs / directory / name.replace("__", ".")).write_text(text)

    def usage(self, container: Container | None = None) -> ContainerUsage | None:
        made = container or Container(ID, "thesis", "docker", ContainerState.RUNNING, init_pid=7)
        source = ContainerUsageReader(self.procfs, self.cgroupfs, lambda: {made.id: made})
        return source.read().by_id.get(made.id)


def unified(root: Path) -> Tree:
    path = f"system.slice/docker-{ID}.scope"
    tree = Tree(root, f"0::/{path}\n")
    tree.put(
        path,
        cpu__stat="usage_usec 2500000\nuser_usec 1\n",
        memory__current="1000\n",
        memory__stat="anon 5\ninactive_file 300\n",
        memory__max="4000\n",
    )
    return tree


def test_version_2(tmp_path: Path) -> None:
    tree = unified(tmp_path)
    assert tree.usage() == ContainerUsage("thesis", "docker", 2.5, 700, 4000)
    tree.put(f"system.slice/docker-{ID}.scope", memory__max="max\n")
    assert tree.usage() == ContainerUsage("thesis", "docker", 2.5, 700, None)


def test_version_1_and_hybrid(tmp_path: Path) -> None:
    tree = Tree(tmp_path, f"5:memory:/docker/{ID}\n2:cpu,cpuacct:/docker/{ID}\n0::/\n")
    tree.put(f"cpu,cpuacct/docker/{ID}", cpuacct__usage="1500000000\n")
    tree.put(
        f"memory/docker/{ID}",
        memory__usage_in_bytes="900\n",
        memory__stat="cache 400\ntotal_inactive_file 100\n",
        memory__limit_in_bytes="9223372036854771712\n",
    )
    assert tree.usage() == ContainerUsage("thesis", "docker", 1.5, 800, None)


def test_what_cannot_be_read_is_missing(tmp_path: Path) -> None:
    path = f"system.slice/docker-{ID}.scope"
    tree = unified(tmp_path)
    for name in ("cpu.stat", "memory.stat", "memory.max"):
        (tree.cgroupfs / path / name).write_bytes(b"\xff\x00nonsense")
    assert tree.usage() == ContainerUsage("thesis", "docker", None, 1000, None)
    (tree.cgroupfs / path / "memory.current").unlink()
    assert tree.usage() == ContainerUsage("thesis", "docker", None, None, None)


def test_a_reused_pid_is_not_the_container(tmp_path: Path) -> None:
    tree = unified(tmp_path)
    (tree.procfs / "7" / "cgroup").write_text("0::/user.slice\n")
    assert tree.usage() is None
    (tree.procfs / "7" / "cgroup").unlink()
    assert tree.usage() is None


@pytest.mark.parametrize("state", [ContainerState.EXITED, ContainerState.CREATED, ContainerState.DEAD])
def test_only_running_containers_have_usage(tmp_path: Path, state: ContainerState) -> None:
    assert unified(tmp_path).usage(Container(ID, "thesis", "docker", state, init_pid=7)) is None


@given(st.text())
def test_any_cgroup_file_is_parsed(text: str) -> None:
    for directory in cgroup_directories(text).values():
        assert ".." not in directory.split("/"), "never out of the cgroup file system"


def test_the_metrics_leave_out_what_is_missing() -> None:
    usage = {"a": ContainerUsage("one", "docker", 1.5, 10, None), "b": ContainerUsage("two", "podman", None, 20, 40)}
    snapshot = Snapshot(0, 0.0, 0.0, "h", readings=Readings(container_usage=ContainerUsageReading(usage)))
    points = {family.metric.name: list(family.points) for family in slots.collect_containers(snapshot)}
    assert points == {
        "gpucommons_container_cpu_seconds_total": [(("one", "docker"), 1.5)],
        "gpucommons_container_memory_bytes": [(("one", "docker"), 10), (("two", "podman"), 20)],
        "gpucommons_container_memory_limit_bytes": [(("two", "podman"), 40)],
    }
    assert list(slots.collect_containers(Snapshot(0, 0.0, 0.0, "h"))) == []


@pytest.mark.long
def test_a_real_container(dockerd: Dockerd) -> None:
    id = dockerd.run("--name=limited", "--memory=64m")
    pid = int(dockerd.docker("inspect", "--format={{.State.Pid}}", id))
    container = Container(id, "limited", "docker", ContainerState.RUNNING, init_pid=pid)
    source = ContainerUsageReader(Path("/proc"), Path("/sys/fs/cgroup"), lambda: {id: container})
    usage = source.read().by_id[id]
    assert usage.memory_limit_bytes == 64 * 2**20
    assert usage.memory_bytes is not None
    assert 0 < usage.memory_bytes < 64 * 2**20
    assert usage.cpu_seconds is not None
    assert 0 < usage.cpu_seconds < 60
