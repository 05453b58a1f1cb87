"""What the kernel says: the host's memory, limits of cgroups, CPU time."""

import contextlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cgroup_trees import CgroupTree, cgroups_of_version_2, limited_cgroups
from gpucommons.model.host import HostMemory
from gpucommons.scheduler.parking.host import container_room_bytes, host_memory, resident_bytes, thread_seconds
from needs import needs_program
from waiting import until


def with_meminfo(root: Path, text: str) -> Path:
    (root / "meminfo").write_text(text)
    return root


def test_the_hosts_memory(tmp_path: Path) -> None:
    whole = "MemTotal:  2048 kB\nMemFree: 1 kB\nMemAvailable:  1024 kB\n"
    assert host_memory(with_meminfo(tmp_path, whole)) == HostMemory(2 << 20, 1 << 20)
    assert host_memory(tmp_path / "nothing") is None
    assert host_memory(with_meminfo(tmp_path, "MemTotal: 5 kB\n")) is None, "not an estimate"
    found = host_memory()
    assert found is not None
    assert 0 < found.available_bytes <= found.total_bytes


class Hierarchies:
    """What /proc and the mounted cgroups show to this process. `v1` and `v2` are where the host has them."""

    def __init__(self, directory: Path, own: str) -> None:
        self.proc = directory / "proc"
        self.v1, self.v2 = directory / "host" / "memory", directory / "host"
        self._mounts = self.proc / "self" / "mountinfo"
        self._mounts.parent.mkdir(parents=True)
        self.process(os.getpid(), own)

    def process(self, pid: int, lines: str) -> None:
        (self.proc / str(pid)).mkdir()
        (self.proc / str(pid) / "cgroup").write_bytes(os.fsencode(lines))

    def mount(self, kind: str, point: Path, root: str = "/", source: str = "", controllers: str = "memory") -> None:
        """As the kernel shows it: a space in a name is an escape."""
        options = f"rw,{controllers}" if kind == "cgroup" else "rw,nsdelegate"
        place = str(point).replace(" ", r"\040")
        with self._mounts.open("a") as file:
            file.write(f"30 23 0:26 {root} {place} rw,nosuid shared:4 - {kind} {source or kind} {options}\n")

    def room(self, pid: int) -> float | None:
        return container_room_bytes([pid], self.proc)


def set_limit(version: int, cgroup: Path, limit: int | str, used: int, inactive: int = 0) -> None:
    cgroup.mkdir(parents=True, exist_ok=True)
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if version == 1 else ("memory.max", "memory.current")
    for name, value in zip(names, (limit, used), strict=True):
        (cgroup / name).write_text(f"{value}\n")
    (cgroup / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\n")


def test_the_tightest_limit_above_a_process_counts(tmp_path: Path) -> None:
    host = Hierarchies(tmp_path, "0::/system.slice/agent\n")
    host.mount("cgroup2", host.v2)
    host.process(7, "0::/lab/box\n")
    set_limit(2, host.v2 / "lab" / "box", "max", 100)
    assert host.room(7) == math.inf
    set_limit(2, host.v2 / "lab", "1000", 700, inactive=200)
    assert host.room(7) == 500, "pages of files can be dropped"
    set_limit(2, host.v2 / "lab" / "box", "150", 100)
    assert host.room(7) == 50
    assert host.room(8) == math.inf, "it has ended"
    host.process(9, "0::/lab/gone\n")
    assert host.room(9) is None
    host.process(10, f"0::{('/' + 'x' * 255) * 16}\n")
    assert host.room(10) is None, "its path is too long to be looked up"
    assert container_room_bytes([7, 9], host.proc) is None, "the limit of one of them is not known"


def test_the_limit_of_cgroups_version_1(tmp_path: Path) -> None:
    host = Hierarchies(tmp_path, "2:memory:/agent\n")
    # Its controllers are among its options; the name of its source is free.
    host.mount("cgroup", tmp_path / "other", source="memory", controllers="cpuset")
    (tmp_path / "other" / "box").mkdir(parents=True)
    host.mount("cgroup", host.v1)
    host.process(7, "3:cpu,cpuacct:/x\n2:memory:/box\n0::/\n")
    set_limit(1, host.v1 / "box", 9223372036854771712, 100)
    assert host.room(7) == math.inf
    set_limit(1, host.v1 / "box", 400, 100)
    assert host.room(7) == 300


def test_a_machine_whose_memory_has_no_cgroups_has_no_limit(tmp_path: Path) -> None:
    host = Hierarchies(tmp_path, "")
    host.process(7, "3:cpu,cpuacct:/x\n1:name=systemd:/y\n")
    assert host.room(7) == math.inf


PODS = "kubepods.slice/kubepods-burstable.slice"
AGENT = f"{PODS}/kubepods-burstable-pod1.slice/cri-containerd-a.scope"


@pytest.mark.parametrize(
    ("pod", "seen"),
    [
        (f"{PODS}/kubepods-burstable-pod2.slice", "/../../kubepods-burstable-pod2.slice/main"),
        ("kubepods.slice/kubepods-pod3.slice", "/../../../kubepods-pod3.slice/main"),
        ("system.slice/docker", "/../../../../system.slice/docker/main"),
        # A container of the agent's own pod, and one whose name is a pattern.
        (AGENT.rpartition("/")[0], "/../main"),
        ("machine [1]*", "/../../../../machine [1]*/main"),
        # Not UTF-8.
        ("machine\udcff", "/../../../../machine\udcff/main"),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_other_pods_are_seen_from_the_cgroup_namespace_of_a_pod(
    tmp_path: Path, pod: str, seen: str, version: int
) -> None:
    """The agent has its own cgroup at /sys/fs/cgroup, and the host's cgroups elsewhere."""
    line = "2:memory:" if version == 1 else "0::"
    host = Hierarchies(tmp_path, f"{line}/\n")
    kind, root = ("cgroup", host.v1) if version == 1 else ("cgroup2", host.v2)
    own = tmp_path / "own"
    host.mount(kind, own)
    host.mount(kind, root, "/../../../..")
    set_limit(version, own, 11, 1)
    set_limit(version, root / AGENT, 11, 1)
    (root / AGENT / "cgroup.procs").write_text(f"1\n{os.getpid()}\n")
    # Another container at the same depth.
    (root / "a/b/c/d").mkdir(parents=True)
    (root / "a/b/c/d/cgroup.procs").write_text(f"{os.getpid()}0\n")
    set_limit(version, root / pod / "main", 5001, 1)
    host.process(7, f"{line}{seen}\n")
    assert host.room(7) == 5000
    set_limit(version, root / pod, 4001, 1)
    assert host.room(7) == 4000, "the limit of its whole pod"
    host.process(8, f"{line}/\n")
    assert host.room(8) == 10, "in the agent's own container"
    set_limit(version, (root / AGENT).parent, 6, 1)
    assert host.room(8) == 5, "the limit of its pod counts, too"


def test_the_limit_of_a_container_that_is_not_seen_is_not_that_of_the_agents(tmp_path: Path) -> None:
    host = Hierarchies(tmp_path, "0::/\n")
    host.mount("cgroup2", host.v2)
    set_limit(2, host.v2, "1000", 10)
    host.process(7, "0::/../other\n")
    assert host.room(7) is None
    host.process(8, "0::/child\n")
    set_limit(2, host.v2 / "child", "max", 5)
    assert host.room(8) == 990, "limits of the agent's own container count for programs in it"


def test_version_1_without_a_namespace_shows_only_the_agents_own(tmp_path: Path) -> None:
    """As Docker and containerd mount it: the paths are those of the host, and the agent's own cgroup is at the root."""
    host = Hierarchies(tmp_path, "2:memory:/docker/agent\n")
    own = tmp_path / "own place"
    host.mount("cgroup", own, "/docker/agent")
    set_limit(1, own, 1000, 10)
    host.process(7, "2:memory:/docker/other\n")
    assert host.room(7) is None
    host.process(8, "2:memory:/docker/agent\n")
    assert host.room(8) == 990


def test_the_host_of_version_1_that_is_mounted_is_seen(tmp_path: Path) -> None:
    host = Hierarchies(tmp_path, "2:memory:/docker/agent\n")
    host.mount("cgroup", tmp_path / "own", "/docker/agent")
    host.mount("cgroup", host.v1)
    set_limit(1, host.v1 / "docker/other", 1000, 10)
    host.process(7, "2:memory:/docker/other\n")
    assert host.room(7) == 990


def test_an_agent_below_the_root_of_its_namespace(tmp_path: Path) -> None:
    host = Hierarchies(tmp_path, "0::/init*/[agent]\n")
    host.mount("cgroup2", host.v2, "/../..")
    agents = host.v2 / "docker" / "box" / "init*" / "[agent]"
    set_limit(2, agents, "max", 10)
    (agents / "cgroup.procs").write_text(f"{os.getpid()}\n")
    set_limit(2, host.v2 / "docker" / "other", "1000", 10)
    host.process(7, "0::/../other\n")
    assert host.room(7) == 990


def test_nothing_is_guessed_where_the_agent_does_not_find_itself(tmp_path: Path) -> None:
    """No cgroup at that depth has its pid."""
    host = Hierarchies(tmp_path, "0::/\n")
    host.mount("cgroup2", host.v2, "/../..")
    for place in ("docker/other", "other"):
        set_limit(2, host.v2 / place, "1000", 10)
    (host.v2 / "docker/other/cgroup.procs").write_text("7\n")
    host.process(7, "0::/../other\n")
    assert host.room(7) is None
    host.process(8, "0::/../../docker/other\n")
    assert host.room(8) == 990, "all of its path is known"


# Each prints what an agent sees that has a cgroup namespace of its own: the room of a process, and its cgroup.
ROOM = """
import sys
from gpucommons.scheduler.parking.host import container_room_bytes
print(container_room_bytes([int(sys.argv[1])]))
"""
UNIFIED = """
import sys
from gpucommons.base.cgroup_paths import find_cgroup, read_cgroups
(line,) = (line for line in read_cgroups(int(sys.argv[1])) if not line.controllers)
print(find_cgroup(line).path)
"""


HIDE = 'mount --bind "$0" "$1" && shift && exec "$@"'


def agent_prints(cgroups: CgroupTree, code: str, pid: int, *wrap: str | Path) -> str:
    namespaces = ("unshare", "--cgroup", "--mount", *wrap)
    asked = (*cgroups.entering("agent"), *namespaces, sys.executable, "-c", code, str(pid))
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


@contextlib.contextmanager
def running_in(cgroups: CgroupTree, name: str) -> Iterator[int]:
    with subprocess.Popen([*cgroups.entering(name), "sleep", "600"]) as inside:
        try:
            until(lambda: inside.pid in cgroups.pids(name), "it is in its cgroup")
            yield inside.pid
        finally:
            inside.kill()


def test_a_real_kernel_shows_the_limit_of_another_container() -> None:
    needs_program("unshare", "sh", "mount")
    with limited_cgroups(agent=1 << 29, program=1 << 31) as cgroups, running_in(cgroups, "program") as pid:
        assert (1 << 30) < float(agent_prints(cgroups, ROOM, pid)) <= 1 << 31, "what its own limit leaves"
        # Without the host's cgroups, as a container is by default.
        hide = ("sh", "-c", HIDE, cgroups.above / "agent", cgroups.mount)
        assert agent_prints(cgroups, ROOM, pid, *hide) == "None"


def test_a_real_kernel_shows_cgroups_of_version_2_from_a_namespace() -> None:
    """Also where their memory is limited by version 1."""
    needs_program("unshare", "sh")
    with cgroups_of_version_2("agent", "program") as cgroups, running_in(cgroups, "program") as pid:
        assert agent_prints(cgroups, UNIFIED, pid) == str(cgroups.above / "program")


def test_milliseconds_of_cpu_show() -> None:
    before = thread_seconds([os.getpid()])
    end_s = time.thread_time() + 0.02
    while time.thread_time() < end_s:
        pass
    after = thread_seconds([os.getpid()])
    assert before is not None
    assert after is not None
    assert sum(after.values()) - sum(before.values()) >= 0.015
    assert thread_seconds([1 << 22]) is None
    assert resident_bytes([os.getpid(), 1 << 22]) > 1 << 20
