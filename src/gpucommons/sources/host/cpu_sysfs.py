"""Thermal throttling of the CPUs, and the CPUs isolated from the kernel's scheduler, from sysfs."""

import re
from dataclasses import dataclass
from pathlib import Path

from gpucommons.model.host import CpuThrottles
from gpucommons.sources.host.procfs import read_file

_CPU = re.compile(r"cpu[0-9]+")


@dataclass(frozen=True, slots=True)
class _Cpu:
    directory: Path
    package: str
    core: str


class ThrottleReader:
    """Threads of one core share its count: one of them is read. CPUs without counts are not read again."""

    def __init__(self, sysfs: Path) -> None:
        self._root = sysfs / "devices/system/cpu"
        self._listed: tuple[str, ...] = ()
        self._cpus: list[_Cpu] = []

    def read(self) -> CpuThrottles:
        self._find_cpus()
        cores: dict[tuple[str, str], int] = {}
        packages: dict[str, int] = {}
        for cpu in self._cpus:
            count = _number(cpu.directory, "thermal_throttle/core_throttle_count")
            if count is not None:
                cores[cpu.package, cpu.core] = count
            if cpu.package not in packages:
                count = _number(cpu.directory, "thermal_throttle/package_throttle_count")
                if count is not None:
                    packages[cpu.package] = count
        return CpuThrottles(cores, packages)

    def _find_cpus(self) -> None:
        try:
            listed = tuple(sorted(path.name for path in self._root.iterdir() if _CPU.fullmatch(path.name)))
        except OSError:
            listed = ()
        if listed == self._listed:
            return
        self._listed = listed
        found: dict[tuple[int, int], _Cpu] = {}
        for name in listed:
            directory = self._root / name
            package = _number(directory, "topology/physical_package_id")
            core = _number(directory, "topology/core_id")
            if package is not None and core is not None and (directory / "thermal_throttle").exists():
                found.setdefault((package, core), _Cpu(directory, str(package), str(core)))
        self._cpus = list(found.values())


def read_isolated_cpus(sysfs: Path) -> tuple[int, ...]:
    try:
        return parse_cpu_list(read_file(sysfs, "devices/system/cpu/isolated"))
    except (OSError, ValueError):
        return ()


def parse_cpu_list(text: bytes) -> tuple[int, ...]:
    """ "1,3-5" is (1, 3, 4, 5)."""
    cpus: list[int] = []
    for part in text.decode("ascii").strip().split(","):
        first, dash, last = part.partition("-")
        if first:
            cpus.extend(range(int(first), int(last if dash else first) + 1))
    return tuple(cpus)


def _number(directory: Path, file: str) -> int | None:
    """None if the file is missing or the value negative, which means unknown."""
    try:
        value = int(read_file(directory, file))
    except (OSError, ValueError):
        return None
    return value if value >= 0 else None
