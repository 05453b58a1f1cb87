"""Families -> lines of text. Escapes whatever bytes a label holds and serves no series twice.

The lines of a sample are the same in Prometheus text 0.0.4 and OpenMetrics 1.0; only the heads of
families differ, so the costly part is rendered once for both. Never reads a clock, never does I/O.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import add

from gpucommons.faces.exposition.families import Family, HistogramPoint, LabelValues, Metric, MetricType

_SPECIAL = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf", "True": "1", "False": "0"}
_VALUE_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})
# A cached prefix outlives its series until this many dead ones have gathered beside the living.
_SLACK = 256


def number(value: float) -> str:
    text = repr(value)
    return _SPECIAL.get(text, text)


def escape_value(value: str) -> str:
    """A label value as it stands between quotes; a lone surrogate (a byte that was not UTF-8) is U+FFFD."""
    if not value.isascii():
        value = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value.translate(_VALUE_ESCAPES)


def labels_text(names: tuple[str, ...], values: LabelValues, optional: frozenset[str]) -> str:
    pairs = [
        f'{name}="{escape_value(value)}"'
        for name, value in zip(names, values, strict=True)
        if value or name not in optional
    ]
    return "{" + ",".join(pairs) + "}" if pairs else ""


def _first_of_each(prefixes: list[str], lines: list[str]) -> list[str]:
    first: dict[str, str] = {}
    for prefix, line in zip(prefixes, lines, strict=True):
        first.setdefault(prefix, line)
    return list(first.values())


@dataclass(frozen=True, slots=True)
class RenderedFamily:
    """One family's sample lines, and how many series were dropped because another one had their labels."""

    metric: Metric
    lines: str
    duplicates: int


class FamilyRenderer:
    """Renders one family again and again, keeping what does not change: each series' name and labels.

    Mostly the same series come in the same order as the last time: then their prefixes are at hand, and
    known to hold no duplicate, without a single look-up.
    """

    __slots__ = ("_cache", "_labels", "_prefixes", "_repeated", "metric")

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self._cache: dict[LabelValues, str] = {}
        self._labels: list[LabelValues] = []
        self._prefixes: list[str] = []
        self._repeated = False

    def render(self, family: Family) -> RenderedFamily:
        if family.histograms:
            return self._render_histograms(family.histograms)
        labels = [labels for labels, _ in family.points]
        if labels != self._labels:
            self._remember(labels)
        numbers = [repr(value) for _, value in family.points]
        if not _SPECIAL.keys().isdisjoint(numbers):
            numbers = [_SPECIAL.get(text, text) for text in numbers]
        lines = list(map(add, self._prefixes, numbers))
        if self._repeated:
            lines = _first_of_each(self._prefixes, lines)
        duplicates = len(labels) - len(lines)
        lines.append("")
        return RenderedFamily(self.metric, "\n".join(lines), duplicates)

    def _remember(self, labels: list[LabelValues]) -> None:
        cache = self._cache
        if len(cache) > 2 * len(labels) + _SLACK:
            cache.clear()
        for values in labels:
            if values not in cache:
                cache[values] = self._prefix(values)
        self._labels, self._prefixes = labels, [cache[values] for values in labels]
        # Compared as they will be served: two names can differ only in bytes that escaping makes equal.
        self._repeated = len(set(self._prefixes)) != len(self._prefixes)

    def _prefix(self, labels: LabelValues) -> str:
        metric = self.metric
        return f"{metric.name}{labels_text(metric.labels, labels, metric.optional)} "

    def _render_histograms(self, points: Iterable[HistogramPoint]) -> RenderedFamily:
        metric, lines, seen, duplicates = self.metric, [], set(), 0
        bounds = [*(number(float(bound)) for bound in metric.buckets), "+Inf"]
        for point in points:
            if point.labels in seen:
                duplicates += 1
                continue
            seen.add(point.labels)
            for bound, count in zip(bounds, point.counts, strict=True):
                with_bound = labels_text((*metric.labels, "le"), (*point.labels, bound), metric.optional)
                lines.append(f"{metric.name}_bucket{with_bound} {count}")
            labels = labels_text(metric.labels, point.labels, metric.optional)
            lines.append(f"{metric.name}_sum{labels} {number(point.sum)}")
            lines.append(f"{metric.name}_count{labels} {point.counts[-1]}")
        lines.append("")
        return RenderedFamily(metric, "\n".join(lines), duplicates)


def prometheus_head(metric: Metric) -> str:
    help_text = metric.help.translate(_HELP_ESCAPES)
    return f"# HELP {metric.name} {help_text}\n# TYPE {metric.name} {metric.type}\n"


def openmetrics_head(metric: Metric) -> str:
    """OpenMetrics needs a counter's samples to end in _total; one that cannot be renamed is `unknown`."""
    name, kind = metric.name, str(metric.type)
    if metric.type is MetricType.UNTYPED:
        kind = "unknown"
    if metric.type is MetricType.COUNTER:
        name, kind = (name.removesuffix("_total"), kind) if name.endswith("_total") else (name, "unknown")
    return f"# HELP {name} {metric.help.translate(_VALUE_ESCAPES)}\n# TYPE {name} {kind}\n"
