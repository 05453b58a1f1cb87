"""Render time and memory as samples grow: ours against prometheus_client's generate_latest, same samples."""

import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric as ClientMetric
from prometheus_client.registry import Collector

from bench.table import show
from gpucommons.faces.dialects.dialect import Dialect
from gpucommons.faces.exposition.exposition import Exposition
from gpucommons.faces.exposition.families import Family, Point, gauge
from gpucommons.model.snapshot import Snapshot

SIZES = (2_000, 20_000, 200_000)
ROUNDS = 5
FAMILIES = 20
LABELS = ("gpu", "pid", "name")


def points(count: int, turn: int) -> list[Point]:
    """Typical values of a node: byte counts, ratios with four decimals, and seconds that change between scrapes."""
    made: list[Point] = []
    for i in range(count):
        kind = i % 3
        value = (i * 4096 + turn) if kind == 0 else ((i + turn) % 997) / 1000 if kind == 1 else i / 8 + turn
        made.append(((f"GPU-{i % 16:08x}", str(i), f"python{i % 50}"), value))
    return made


METRICS = [gauge(f"bench_{n}_value", "A value.", *LABELS) for n in range(FAMILIES)]


class Ours:
    def __init__(self, count: int) -> None:
        self.count, self.turn = count, 0
        dialect = Dialect("bench", 0, "", tuple(METRICS), self.collect)
        self.exposition = Exposition(lambda: Snapshot(self.turn, 0.0, 0.0, "h"), [dialect])
        self.made: list[Point] = []

    def collect(self, snapshot: Snapshot) -> Iterator[Family]:
        return iter([metric.of(self.made) for metric in METRICS])

    def next(self) -> Callable[[], object]:
        self.turn += 1
        self.made = points(self.count // FAMILIES, self.turn)
        return lambda: self.exposition.metrics(None, False, False)


class Theirs(Collector):
    def __init__(self, count: int) -> None:
        self.count, self.turn = count, 0
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self.families: list[ClientMetric] = []

    def collect(self) -> Iterator[ClientMetric]:
        return iter(self.families)

    def next(self) -> Callable[[], object]:
        self.turn += 1
        self.families = []
        for metric in METRICS:
            family = GaugeMetricFamily(metric.name, metric.help, labels=LABELS)
            for labels, value in points(self.count // FAMILIES, self.turn):
                family.add_metric(labels, value)
            self.families.append(family)
        return lambda: generate_latest(self.registry)


def timed_ms(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1e3


def peak_mb(work: Callable[[], object]) -> float:
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


def main() -> None:
    rows = []
    for size in SIZES:
        ours, theirs = Ours(size), Theirs(size)
        ours.next()()
        mine, peer = [], []
        for _ in range(ROUNDS):
            mine.append(timed_ms(ours.next()))
            peer.append(timed_ms(theirs.next()))
        a, b = statistics.median(mine), statistics.median(peer)
        memory, peer_memory = peak_mb(ours.next()), peak_mb(theirs.next())
        rows.append(
            (
                f"{size:,}",
                f"{a:.1f}",
                f"{a / size * 1e6:.0f}",
                f"{b:.1f}",
                f"{b / a:.1f}x",
                f"{memory:.1f}",
                f"{peer_memory:.1f}",
            )
        )
    show(
        f"Rendering, median of {ROUNDS} interleaved rounds (bar: linear, at least 10x)",
        (
            "samples",
            "ours ms",
            "ours ns/sample",
            "generate_latest ms",
            "faster by",
            "ours peak MB",
            "its peak MB",
        ),
        rows,
    )


if __name__ == "__main__":
    main()
