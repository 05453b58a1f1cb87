"""gpucommons_health_*, gpucommons_pressure_*: the components of the node's health score, and pressure (PSI)."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, Point, counter, gauge
from gpucommons.model.host import PressureLine, PressureReading
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.health import node_health_of

COMPONENT = gauge(
    "gpucommons_health_component",
    "Headroom of one component of node_health_score, 0 (none) to 1 (all); absent if it was not read.",
    "component",
)
COMPLETENESS = gauge(
    "gpucommons_health_completeness_ratio",
    "Weight of the components of node_health_score that were read, 0 to 1.",
)
PRESSURE = gauge(
    "gpucommons_pressure_ratio",
    "Share of a window in which some tasks, or all (full), waited for a resource, 0 to 1.",
    "resource",
    "kind",
    "window",
)
STALLED = counter(
    "gpucommons_pressure_stalled_seconds_total",
    "Time in which some tasks, or all (full), waited for a resource.",
    "resource",
    "kind",
)

CATALOGUE = (COMPONENT, COMPLETENESS, PRESSURE, STALLED)


def _lines(reading: PressureReading) -> Iterator[tuple[str, str, PressureLine]]:
    for resource, pressure in (("cpu", reading.cpu), ("memory", reading.memory), ("io", reading.io)):
        if pressure is None:
            continue
        for kind, line in (("some", pressure.some), ("full", pressure.full)):
            if line is not None:
                yield resource, kind, line


def _windows(resource: str, kind: str, line: PressureLine) -> Iterator[Point]:
    for window, percent in (("10s", line.avg10), ("60s", line.avg60), ("300s", line.avg300)):
        yield (resource, kind, window), percent / 100


def collect(snapshot: Snapshot) -> Iterator[Family]:
    readings = snapshot.readings
    health = node_health_of(readings.cpu, readings.memory, readings.pressure)
    if health is not None:
        yield COMPONENT.of(((name,), value) for name, value in health.components.items())
        yield COMPLETENESS.value(health.completeness_ratio)
    if readings.pressure is not None:
        lines = list(_lines(readings.pressure))
        yield PRESSURE.of(point for line in lines for point in _windows(*line))
        yield STALLED.of(((resource, kind), line.stalled_seconds_total) for resource, kind, line in lines)
