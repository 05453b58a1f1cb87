"""gpucommons_nvml_*: how the driver is read: versions, sessions, slow calls, dropped samples and failures."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, counter, gauge
from gpucommons.model.snapshot import Snapshot

INFO = gauge(
    "gpucommons_nvml_info",
    "Versions of the driver, NVML and CUDA; always 1.",
    "driver_version",
    "nvml_version",
    "cuda_version",
)
CONNECTIONS = counter(
    "gpucommons_nvml_connections_total",
    "Sessions opened with the driver, including those opened to rescan the devices.",
)
MOVES = counter(
    "gpucommons_nvml_lane_moves_total",
    "Moves of driver calls between the fast and the slow lane because of their cost.",
    "uuid",
    "call",
    "lane",
)
SLOW = gauge(
    "gpucommons_nvml_slow_call",
    "Driver call that runs every 15 s instead of every second because it is slow; always 1.",
    "uuid",
    "call",
)
DROPPED = counter(
    "gpucommons_nvml_samples_dropped_total",
    "Values from the driver dropped as impossible (too high, from the future, stale), by reason.",
    "uuid",
    "reason",
)
FAILURES = counter(
    "gpucommons_nvml_call_failures_total",
    "Driver calls that failed for a reason other than missing support.",
    "call",
    "code",
)

CATALOGUE = (INFO, CONNECTIONS, MOVES, SLOW, DROPPED, FAILURES)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    reading = snapshot.readings.gpus
    if reading is None:
        return
    yield INFO.value(1, reading.driver_version, reading.nvml_version, reading.cuda_version)
    yield CONNECTIONS.value(reading.connections)
    yield MOVES.of((tuple(move), count) for move, count in reading.lane_moves.items())
    yield SLOW.of(((move.uuid, move.call), 1) for move in reading.slow_calls)
    yield DROPPED.of(reading.samples_dropped.items())
    yield FAILURES.of(reading.call_failures.items())
