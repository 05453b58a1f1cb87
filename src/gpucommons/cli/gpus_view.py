"""What `gpucommons gpus` shows, as a table and as JSON values. What is not known is a dash, or null."""

from collections.abc import Iterator
from typing import TextIO

from gpucommons.cli.who_view import printable
from gpucommons.model.gpu import Gpu, GpuProcess, GpuReading, MigInstance
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.gpu_health import GpuHealth, HealthLevel, health_of
from gpucommons.rules.identities import mig_slot_names

_UNKNOWN = "-"
_GIB = 2**30
# A pipe has no width: nothing is cut there. A narrow terminal gets short UUIDs.
_PIPE_WIDTH = 250
_NARROW = 140
_SHORT_UUID = 12
_STYLES = {
    HealthLevel.OK: "green",
    HealthLevel.WARNING: "yellow",
    HealthLevel.CRITICAL: "red",
    HealthLevel.LOST: "bold red",
}
_COLUMNS = ("GPU", "NAME", "UUID", "MEMORY", "UTIL", "TEMP", "POWER", "PROCESSES", "HEALTH")


def nothing(snapshot: Snapshot) -> str:
    state = snapshot.sources.get("nvml")
    why = "; ".join(filter(None, (state.detail, state.remedy))) if state else "they are not read on this machine"
    return f"no GPU readings: {why}"


def render(snapshot: Snapshot, reading: GpuReading, to: TextIO) -> None:
    # Here and not above: the agent imports every command, and need not carry this for its lifetime.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=to, width=None if to.isatty() else _PIPE_WIDTH, highlight=False)
    short = console.width < _NARROW
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in _COLUMNS:
        table.add_column(name, justify="right" if name in _COLUMNS[3:8] else "left", no_wrap=True)
    for gpu in sorted(reading.gpus, key=lambda gpu: (gpu.identity.index, not gpu.up)):
        health = health_of(gpu, snapshot.wall_s)
        # As Text, so that a name with brackets in it is a name and no markup.
        *cells, last = _gpu_row(gpu, health, short)
        table.add_row(*map(Text, cells), Text(last, style=_STYLES[health.level]))
        for instance in gpu.mig:
            table.add_row(*map(Text, _instance_row(gpu, instance, short)))
    console.print(table)
    console.print(Text(_summary(reading)))


def _summary(reading: GpuReading) -> str:
    of_all = f" of {reading.expected}" if reading.present != reading.expected else ""
    return f"{reading.present} GPUs{of_all}, driver {reading.driver_version}, CUDA {reading.cuda_version}"


def _gpu_row(gpu: Gpu, health: GpuHealth, short: bool) -> Iterator[str]:
    readings = gpu.readings
    yield str(gpu.identity.index)
    yield printable(gpu.identity.name)
    yield _uuid(gpu.identity.uuid, short)
    yield _of(readings.memory_used_bytes, readings.memory_total_bytes)
    yield _number(readings.utilization_percent, "%")
    yield _number(readings.temperature_celsius, " C")
    yield _power(readings.power_watts, readings.power_limit_watts)
    yield _UNKNOWN if gpu.processes is None else str(len({process.pid for process in gpu.processes}))
    yield ", ".join((health.level.name.lower(), *health.problems))


def _instance_row(gpu: Gpu, instance: MigInstance, short: bool) -> Iterator[str]:
    memory, gpm = instance.memory, instance.gpm
    active = None if gpm is None or gpm.graphics_ratio is None else round(100 * gpm.graphics_ratio)
    mine = [p for p in gpu.processes or () if p.gpu_instance_id == instance.gpu_instance_id]
    pids = {p.pid for p in mine if p.compute_instance_id in (None, instance.compute_instance_id)}
    yield f" {mig_slot_names(gpu)[instance.uuid]}"
    yield f" MIG {printable(instance.profile)}"
    yield _uuid(instance.uuid, short)
    yield _of(None, instance.memory_bytes) if memory is None else _of(memory.used_bytes, memory.total_bytes)
    yield _number(active, "%")
    yield ""
    yield ""
    yield _UNKNOWN if gpu.processes is None else str(len(pids))
    yield ""


def _uuid(uuid: str, short: bool) -> str:
    return printable(uuid[:_SHORT_UUID] if short else uuid)


def _number(value: float | None, unit: str) -> str:
    return _UNKNOWN if value is None else f"{value:g}{unit}"


def _of(used: int | None, total: int | None) -> str:
    parts = [_UNKNOWN if value is None else f"{value / _GIB:.1f}" for value in (used, total)]
    return _UNKNOWN if used is None and total is None else f"{parts[0]} / {parts[1]} GiB"


def _power(watts: float | None, limit: float | None) -> str:
    if watts is None:
        return _UNKNOWN
    return f"{watts:.0f} W" if limit is None else f"{watts:.0f} / {limit:.0f} W"


def as_values(snapshot: Snapshot) -> dict[str, object]:
    reading = snapshot.readings.gpus
    if reading is None:
        return {"gpus": [], "note": nothing(snapshot)}
    return {
        "driver_version": reading.driver_version,
        "cuda_version": reading.cuda_version,
        "expected": reading.expected,
        "present": reading.present,
        "gpus": [_gpu_values(gpu, health_of(gpu, snapshot.wall_s)) for gpu in reading.gpus],
        "note": "",
    }


def _gpu_values(gpu: Gpu, health: GpuHealth) -> dict[str, object]:
    readings = gpu.readings
    return {
        "index": gpu.identity.index,
        "uuid": gpu.identity.uuid,
        "name": gpu.identity.name,
        "pci_bus_id": gpu.identity.pci_bus_id,
        "up": gpu.up,
        "health": health.level.name.lower(),
        "problems": list(health.problems),
        "memory_total_bytes": readings.memory_total_bytes,
        "memory_used_bytes": readings.memory_used_bytes,
        "memory_reserved_bytes": readings.memory_reserved_bytes,
        "utilization_percent": readings.utilization_percent,
        "temperature_celsius": readings.temperature_celsius,
        "power_watts": readings.power_watts,
        "power_limit_watts": readings.power_limit_watts,
        "throttle_reasons": None if readings.throttle_reasons is None else list(readings.throttle_reasons),
        "processes": None if gpu.processes is None else [_process_values(process) for process in gpu.processes],
        "mig_enabled": gpu.mig_enabled,
        "mig": [_instance_values(instance) for instance in gpu.mig],
    }


def _process_values(process: GpuProcess) -> dict[str, object]:
    values = process._asdict()
    key = values.pop("key")
    return {**values, "start_ticks": None if key is None else key.start_ticks}


def _instance_values(instance: MigInstance) -> dict[str, object]:
    memory = instance.memory
    return {
        "uuid": instance.uuid,
        "profile": instance.profile,
        "gpu_instance_id": instance.gpu_instance_id,
        "compute_instance_id": instance.compute_instance_id,
        "compute_slices": instance.compute_slices,
        "memory_total_bytes": instance.memory_bytes if memory is None else memory.total_bytes,
        "memory_used_bytes": None if memory is None else memory.used_bytes,
        "placement_start": instance.placement_start,
        "placement_size": instance.placement_size,
    }
