"""node_*: CPU utilization, memory, pressure and health score of the host, in the names of the node agent."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.host import Pressure
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.health import node_health_of

CPU_UTILIZATION = gauge(
    "node_cpu_utilization_ratio", "Share of CPU time since the last reading that was not idle, 0 to 1."
)
CPU_PRESSURE = gauge(
    "node_cpu_pressure_avg10", "Percentage of the last 10 s in which some task waited for a CPU (PSI)."
)
MEMORY_PRESSURE = gauge(
    "node_memory_pressure_avg10", "Percentage of the last 10 s in which some task waited for memory (PSI)."
)
MEMORY_TOTAL = gauge("node_memory_total_bytes", "Memory of the host in bytes.")
MEMORY_AVAILABLE = gauge(
    "node_memory_available_bytes",
    "Memory that programs can use without swapping, as estimated by the kernel, in bytes.",
)
HEALTH_SCORE = gauge(
    "node_health_score",
    "Headroom of the host, 0 to 10, from the signals that could be read (see gpucommons_health_component).",
)

CATALOGUE = (CPU_UTILIZATION, CPU_PRESSURE, MEMORY_PRESSURE, MEMORY_TOTAL, MEMORY_AVAILABLE, HEALTH_SCORE)


def _some_avg10(pressure: Pressure | None) -> float | None:
    return None if pressure is None or pressure.some is None else pressure.some.avg10


def collect(snapshot: Snapshot) -> Iterator[Family]:
    readings = snapshot.readings
    if readings.cpu is not None:
        yield CPU_UTILIZATION.value(readings.cpu.utilization_ratio)
    if readings.pressure is not None:
        yield CPU_PRESSURE.value(_some_avg10(readings.pressure.cpu))
        yield MEMORY_PRESSURE.value(_some_avg10(readings.pressure.memory))
    if readings.memory is not None:
        yield MEMORY_TOTAL.value(readings.memory.total_bytes)
        yield MEMORY_AVAILABLE.value(readings.memory.available_bytes)
    health = node_health_of(readings.cpu, readings.memory, readings.pressure)
    if health is not None:
        yield HEALTH_SCORE.value(health.score)
