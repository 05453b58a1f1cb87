"""gpucommons_nvml_*: how the driver is read: which version, what was moved, dropped or refused, and how often anew."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, counter, gauge
from gpucommons.model.snapshot import Snapshot

INFO = gauge("gpucommons_nvml_info", "1; the driver's versions.", "driver_version", "nvml_version", "cuda_version")
CONNECTIONS = counter(
    "gpucommons_nvml_connections_total", "Sessions with the driver: more than one means it was lost or looked through."
)
MOVES = counter(
    "gpucommons_nvml_lane_moves_total",
    "Driver calls that were moved to the slow or back to the fast lane by what they cost.",
    "uuid",
    "call",
    "lane",
)
SLOW = gauge(
    "gpucommons_nvml_slow_call",
    "1 for each driver call that runs every 15 s instead of every second because it is costly here.",
    "uuid",
    "call",
)
DROPPED = counter(
    "gpucommons_nvml_samples_dropped_total",
    "Answers of the driver that cannot be true (too high, from the future, stale) and were dropped, by reason.",
    "uuid",
    "reason",
)
FAILURES = counter(
    "gpucommons_nvml_call_failures_total", "Driver calls that failed for another reason than support.", "call", "code"
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
