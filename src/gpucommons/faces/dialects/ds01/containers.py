"""ds01_containers_total: the containers that DS01 tracks."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, Point, gauge, summed
from gpucommons.model.allocations import AllocationReading
from gpucommons.model.snapshot import Snapshot

CONTAINERS = gauge("ds01_containers_total", "Containers that DS01 tracks.", "status", "interface")

CATALOGUE = (CONTAINERS,)

_INTERFACES = ("orchestration", "atomic", "api", "other", "docker")


def collect(snapshot: Snapshot) -> Iterator[Family]:
    reading = containers_reading(snapshot)
    if reading is not None:
        none: list[Point] = [((status, each), 0) for status in ("running", "stopped") for each in _INTERFACES]
        counted = ((("running" if each.running else "stopped", each.interface), 1.0) for each in reading.containers)
        yield CONTAINERS.of(summed([*none, *counted]))


def containers_reading(snapshot: Snapshot) -> AllocationReading | None:
    """None without a source of containers: their number is then unknown, not 0."""
    readings = snapshot.readings
    has_source = readings.docker is not None or readings.podman is not None or readings.ds01 is not None
    return readings.allocations if has_source else None
