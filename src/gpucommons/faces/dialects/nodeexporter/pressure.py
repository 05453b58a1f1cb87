"""node_pressure_*: seconds in which tasks waited for a CPU, I/O or memory (PSI)."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, counter
from gpucommons.model.host import PressureLine
from gpucommons.model.snapshot import Snapshot

CPU_WAITING = counter("node_pressure_cpu_waiting_seconds_total", "Seconds in which some task waited for a CPU.")
IO_WAITING = counter("node_pressure_io_waiting_seconds_total", "Seconds in which some task waited for I/O.")
IO_STALLED = counter("node_pressure_io_stalled_seconds_total", "Seconds in which every task waited for I/O.")
MEMORY_WAITING = counter("node_pressure_memory_waiting_seconds_total", "Seconds in which some task waited for memory.")
MEMORY_STALLED = counter("node_pressure_memory_stalled_seconds_total", "Seconds in which every task waited for memory.")

CATALOGUE = (CPU_WAITING, IO_WAITING, IO_STALLED, MEMORY_WAITING, MEMORY_STALLED)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    pressure = snapshot.readings.pressure
    if pressure is None:
        return
    cpu, io, memory = pressure.cpu, pressure.io, pressure.memory
    if cpu is not None:
        yield CPU_WAITING.value(_seconds(cpu.some))
    if io is not None:
        yield IO_WAITING.value(_seconds(io.some))
        yield IO_STALLED.value(_seconds(io.full))
    if memory is not None:
        yield MEMORY_WAITING.value(_seconds(memory.some))
        yield MEMORY_STALLED.value(_seconds(memory.full))


def _seconds(line: PressureLine | None) -> float | None:
    return None if line is None else line.stalled_seconds_total
