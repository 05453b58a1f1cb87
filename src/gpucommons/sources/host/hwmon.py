"""Sensors of the host from /sys/class/hwmon: temperatures, fans, voltages, power."""

import os
import re
from pathlib import Path

from gpucommons.model.host import Chip, Sensor
from gpucommons.sources.host.procfs import read_file

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
    name = cleaned(_text(directory, "name") or "")
    return Chip(_chip_id(directory, name), name or None, sensors)


def cleaned(name: str) -> str:
    return _NOT_IN_A_NAME.sub("_", name.lower()).strip("_")


def sensor_file(name: str) -> tuple[str, str, str] | None:
    """(sensor, kind, property) of a file's name: temp1_input is (temp1, temp, input); None for other files."""
    parts = _FILE.fullmatch(name)
    if parts is None or parts[1] not in _KINDS:
        return None
    return f"{parts[1]}{int(parts[2] or 0)}", parts[1], cleaned(parts[3] or "")


def _sensor_texts(directory: Path) -> dict[tuple[str, str], dict[str, str]]:
    found: dict[tuple[str, str], dict[str, str]] = {}
    for file in os.listdir(directory):
        parts = sensor_file(file)
        if parts is not None and (text := _text(directory, file)) is not None:
            sensor, kind, property = parts
            found.setdefault((sensor, kind), {})[property] = text
    return found


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
        parts = (cleaned(device.parent.name), cleaned(device.name))
        if parts[1]:
            return "_".join(filter(None, parts))
    except OSError:
        pass
    return name or cleaned(directory.resolve().name)
