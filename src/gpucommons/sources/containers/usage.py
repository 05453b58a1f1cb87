"""CPU and memory of each running container from its cgroup, version 1 or 2. Does not query the runtime.

The list of containers comes from the sources of the runtimes. A container that ends between two reads, or whose pid
belongs to another process by now, is left out.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from gpucommons.base.cgroup_paths import cgroup_lines
from gpucommons.model.workloads import Container, ContainerUsage, ContainerUsageReading
from gpucommons.sources.host.procfs import read_file

# Version 1 writes "no limit" as the greatest multiple of a page.
_NO_LIMIT_BYTES = 1 << 62


def cgroup_usage(cgroupfs: Path, directories: Mapping[str, str]) -> tuple[float | None, int | None, int | None]:
    """CPU seconds, memory without reclaimable file cache, and memory limit of a cgroup; None where it is not known.

    `directories` are those of `cgroup_directories`.
    """
    files = _CgroupFiles(cgroupfs)
    return files.read_unified(directories.get("", "")) or files.read_split(directories)


class ContainerUsageReader:
    def __init__(self, procfs: Path, cgroupfs: Path, containers: Callable[[], Mapping[str, Container]]) -> None:
        self._procfs = procfs
        self._cgroupfs = cgroupfs
        self._containers = containers

    def read(self) -> ContainerUsageReading:
        usages = {}
        for id, container in self._containers().items():
            if container.init_pid is not None and container.state.has_processes:
                try:
                    cgroup = read_file(self._procfs, f"{container.init_pid}/cgroup").decode("utf-8", "replace")
                except OSError:
                    continue
                if id in cgroup:
                    usages[id] = ContainerUsage(
                        container.name, container.runtime, *cgroup_usage(self._cgroupfs, cgroup_directories(cgroup))
                    )
        return ContainerUsageReading(usages)


class _CgroupFiles:
    def __init__(self, cgroupfs: Path) -> None:
        self._cgroupfs = cgroupfs

    def read_unified(self, directory: str) -> tuple[float | None, int | None, int | None] | None:
        """Version 2; None if its controllers are not in use (a host in hybrid mode)."""
        current = self._number(directory, "memory.current")
        if current is None:
            return None
        usage_us = self._read_named(directory, "cpu.stat", "usage_usec")
        cached = self._read_named(directory, "memory.stat", "inactive_file") or 0
        limit = self._number(directory, "memory.max")
        return None if usage_us is None else usage_us / 1e6, max(current - cached, 0), limit

    def read_split(self, directories: Mapping[str, str]) -> tuple[float | None, int | None, int | None]:
        cpu, memory = directories.get("cpuacct", ""), directories.get("memory", "")
        usage_ns = self._number(cpu, "cpuacct.usage") if cpu else None
        current = self._number(memory, "memory.usage_in_bytes") if memory else None
        limit = self._number(memory, "memory.limit_in_bytes") if memory else None
        if current is not None:
            current = max(current - (self._read_named(memory, "memory.stat", "total_inactive_file") or 0), 0)
        if limit is not None and limit >= _NO_LIMIT_BYTES:
            limit = None
        return None if usage_ns is None else usage_ns / 1e9, current, limit

    def _number(self, directory: str, name: str) -> int | None:
        """None if the file does not exist or holds `max`, which means no limit."""
        try:
            return int(read_file(self._cgroupfs, f"{directory}/{name}"))
        except (OSError, ValueError):
            return None

    def _read_named(self, directory: str, name: str, key: str) -> int | None:
        try:
            lines = read_file(self._cgroupfs, f"{directory}/{name}").decode("ascii", "replace").split("\n")
            return next((int(line.split()[1]) for line in lines if line.startswith(f"{key} ")), None)
        except (OSError, ValueError, IndexError):
            return None


def cgroup_directories(text: str) -> dict[str, str]:
    """Directories below the cgroup file system by controller; version 2 has the empty name.

    A path that leads out of this process's cgroup namespace cannot be read, and is left out.
    """
    return dict(_directories(text))


def _directories(text: str) -> Iterator[tuple[str, str]]:
    for controllers, path in cgroup_lines(text):
        if ".." in path.split("/"):
            continue
        if not controllers:
            yield "", path.lstrip("/")
        for controller in filter(None, controllers.split(",")):
            yield controller, f"{controllers}{path}"
