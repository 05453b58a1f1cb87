"""Sensors and CPU throttling from sysfs. A separate source, since a sensor on a slow bus may take long."""

import os
import re
from pathlib import Path
from typing import NamedTuple

from gpucommons.model.host import Chip, CpuThrottles, HardwareReading, Sensor
from gpucommons.sources.host.procfs import read_file
from gpucommons.sources.source import SourceAbsent

# Thermal throttling of the CPUs, and the CPUs isolated from the kernel's scheduler, from sysfs.

_CPU = re.compile(r"cpu[0-9]+")


class _Cpu(NamedTuple):
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
        by_core: dict[tuple[int, int], _Cpu] = {}
        for name in listed:
            directory = self._root / name
            package = _number(directory, "topology/physical_package_id")
            core = _number(directory, "topology/core_id")
            if package is not None and core is not None and (directory / "thermal_throttle").exists():
                by_core.setdefault((package, core), _Cpu(directory, str(package), str(core)))
        self._cpus = list(by_core.values())


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


# Sensors of the host from /sys/class/hwmon: temperatures, fans, voltages, power.

_KINDS = frozenset(
    (
        "vrm",
        "beep_enable",
        "update_interval",
        "in",
        "cpu",
        "fan",
        "pwm",
        "temp",
        "curr",
        "power",
        "energy",
        "humidity",
        "intrusion",
    )
)
_FILE = re.compile(r"([^0-9]+)([0-9]*)(?:_(.+))?")
_NOT_IN_A_NAME = re.compile(r"[^a-z0-9:_]")


def read_chips(sysfs: Path) -> tuple[tuple[Chip, ...], int]:
    """The chips, and the number that could not be read. Raises FileNotFoundError if the kernel has no hwmon."""
    root = sysfs / "class/hwmon"
    chips, failed = [], 0
    for name in sorted(os.listdir(root)):
        directory = root / name
        if not directory.is_dir():
            continue
        try:
            chips.append(read_chip(directory))
        except OSError:
            failed += 1
    return tuple(chips), failed


def read_chip(directory: Path) -> Chip:
    texts = _sensor_texts(directory)
    # Older drivers keep their sensors with the device instead of the class.
    if (directory / "device").exists():
        for sensor, properties in _sensor_texts(directory / "device").items():
            texts.setdefault(sensor, {}).update(properties)
    sensors = tuple(_sensor(name, kind, properties) for (name, kind), properties in sorted(texts.items()))
    name = clean_name(_text(directory, "name") or "")
    return Chip(_chip_id(directory, name), name or None, sensors)


def clean_name(name: str) -> str:
    return _NOT_IN_A_NAME.sub("_", name.lower()).strip("_")


def sensor_file(name: str) -> tuple[str, str, str] | None:
    """(sensor, kind, property) of a file's name: temp1_input is (temp1, temp, input); None for other files."""
    parts = _FILE.fullmatch(name)
    if parts is None or parts[1] not in _KINDS:
        return None
    return f"{parts[1]}{int(parts[2] or 0)}", parts[1], clean_name(parts[3] or "")


def _sensor_texts(directory: Path) -> dict[tuple[str, str], dict[str, str]]:
    texts: dict[tuple[str, str], dict[str, str]] = {}
    for file in os.listdir(directory):
        parts = sensor_file(file)
        if parts is not None and (text := _text(directory, file)) is not None:
            sensor, kind, property = parts
            texts.setdefault((sensor, kind), {})[property] = text
    return texts


def _text(directory: Path, file: str) -> str | None:
    """One read without a retry: some drivers return EAGAIN indefinitely."""
    try:
        return read_file(directory, file).decode("utf-8", "replace").strip("\n")
    except OSError:
        return None


def _sensor(name: str, kind: str, texts: dict[str, str]) -> Sensor:
    values = {}
    for property, text in texts.items():
        try:
            values[property] = float(text)
        except ValueError:
            continue
    return Sensor(name, kind, texts.get("label"), values)


def _chip_id(directory: Path, name: str) -> str:
    """Derived from the device's path, since hwmon's numbers depend on the order in which modules were loaded."""
    try:
        device = (directory / "device").resolve(strict=True)
        parts = (clean_name(device.parent.name), clean_name(device.name))
        if parts[1]:
            return "_".join(filter(None, parts))
    except OSError:
        pass
    return name or clean_name(directory.resolve().name)


class HardwareReader:
    def __init__(self, sysfs: Path) -> None:
        self._sysfs = sysfs
        self._throttles = ThrottleReader(sysfs)

    def read(self) -> HardwareReading:
        if not self._sysfs.is_dir():
            raise SourceAbsent(
                f"no hardware to read: {self._sysfs} does not exist",
                "mount the host's /sys and set [path] sysfs to it",
            )
        chips, failed = self._chips()
        return HardwareReading(chips, failed, self._throttles.read(), read_isolated_cpus(self._sysfs))

    def _chips(self) -> tuple[tuple[Chip, ...] | None, int]:
        try:
            return read_chips(self._sysfs)
        except FileNotFoundError:
            return None, 0
