"""What the kernel says: the host's memory, limits of cgroups, CPU time."""

import os
import time
from pathlib import Path

from gpucommons.model.host import HostMemory
from gpucommons.scheduler.parking.host import container_room_bytes, host_memory, resident_bytes, thread_seconds


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


def test_the_tightest_limit_above_a_process_counts(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "7").mkdir(parents=True)
    (proc / "7" / "cgroup").write_text("0::/lab/box\n")
    box = groups / "lab" / "box"
    box.mkdir(parents=True)
    (box / "memory.max").write_text("max\n")
    (box / "memory.current").write_text("100\n")
    assert container_room_bytes([7], proc, groups) is None
    (groups / "lab" / "memory.max").write_text("1000\n")
    (groups / "lab" / "memory.current").write_text("700\n")
    (groups / "lab" / "memory.stat").write_text("anon 500\ninactive_file 200\n")
    assert container_room_bytes([7], proc, groups) == 500, "pages of files can be dropped"
    (box / "memory.max").write_text("150\n")
    assert container_room_bytes([7], proc, groups) == 50
    assert container_room_bytes([8], proc, groups) is None


def test_the_limit_of_cgroups_version_1(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "7").mkdir(parents=True)
    (proc / "7" / "cgroup").write_text("3:cpu,cpuacct:/x\n2:memory:/box\n0::/\n")
    box = groups / "memory" / "box"
    box.mkdir(parents=True)
    (box / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (box / "memory.usage_in_bytes").write_text("100\n")
    assert container_room_bytes([7], proc, groups) is None
    (box / "memory.limit_in_bytes").write_text("400\n")
    assert container_room_bytes([7], proc, groups) == 300


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
