"""Metric families as plain values: the declaration (Metric) and its current series (Family).

A dialect declares its Metrics once, as constants, and fills them from each snapshot.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

LabelValues = tuple[str, ...]
Point = tuple[LabelValues, float]


class MetricType(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"
    UNTYPED = "untyped"


class HistogramPoint(NamedTuple):
    """`counts` are cumulative and one longer than the metric's `buckets`: the last is +Inf."""

    labels: LabelValues
    counts: tuple[int, ...]
    sum: float


class RawSample(NamedTuple):
    """A series of another program, which may have any labels. `name` is the metric's, or that with the suffix of a
    histogram or a summary."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


@dataclass(frozen=True, slots=True)
class SummaryPoint:
    """`quantiles` are (quantile, value). A value without observations is NaN, as in Prometheus's libraries."""

    labels: LabelValues
    quantiles: tuple[tuple[float, float], ...]
    sum: float
    count: int


@dataclass(frozen=True, slots=True)
class Metric:
    """A catalogue entry. `optional` labels are left out of a series whose value for them is empty."""

    name: str
    type: MetricType
    help: str
    labels: tuple[str, ...] = ()
    optional: frozenset[str] = frozenset()
    buckets: tuple[float, ...] = ()

    def of(self, points: Iterable[Point]) -> "Family":
        return Family(self, list(points))

    def value(self, value: float | None, *labels: str) -> "Family":
        """A family of one series, or of none where the value is missing."""
        return Family(self, [] if value is None else [(labels, value)])

    def histogram(self, points: Iterable[HistogramPoint]) -> "Family":
        return Family(self, (), tuple(points))

    def summary(self, points: Iterable[SummaryPoint]) -> "Family":
        return Family(self, (), (), tuple(points))

    def samples(self, samples: Iterable[RawSample]) -> "Family":
        return Family(self, (), (), (), tuple(samples))


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Family:
    """Its series are points, histograms, summaries or samples: one of these."""

    metric: Metric
    points: Sequence[Point]
    histograms: Sequence[HistogramPoint] = ()
    summaries: Sequence[SummaryPoint] = ()
    samples: Sequence[RawSample] = ()


def sum_points(points: Iterable[Point]) -> Iterable[Point]:
    """One point per label set: the sum of the points that have it."""
    sums: dict[LabelValues, float] = {}
    for labels, value in points:
        sums[labels] = sums.get(labels, 0) + value
    return sums.items()


def join_families(families: Iterable[Family]) -> list[Family]:
    """One family per metric: the format requires that all series of a metric are adjacent."""
    by_metric: dict[Metric, Family] = {}
    for family in families:
        earlier = by_metric.get(family.metric)
        if earlier is not None:
            family = Family(
                earlier.metric,
                [*earlier.points, *family.points],
                [*earlier.histograms, *family.histograms],
                [*earlier.summaries, *family.summaries],
                [*earlier.samples, *family.samples],
            )
        by_metric[family.metric] = family
    return list(by_metric.values())


def gauge(name: str, help: str, *labels: str, optional: Iterable[str] = ()) -> Metric:
    return Metric(name, MetricType.GAUGE, help, labels, frozenset(optional))


def counter(name: str, help: str, *labels: str, optional: Iterable[str] = ()) -> Metric:
    return Metric(name, MetricType.COUNTER, help, labels, frozenset(optional))


def untyped(name: str, help: str, *labels: str) -> Metric:
    """A metric of another exporter that declares no type for it."""
    return Metric(name, MetricType.UNTYPED, help, labels)


def histogram(name: str, help: str, *labels: str, buckets: Iterable[float]) -> Metric:
    return Metric(name, MetricType.HISTOGRAM, help, labels, buckets=tuple(buckets))


def summary(name: str, help: str, *labels: str) -> Metric:
    return Metric(name, MetricType.SUMMARY, help, labels)
