"""Families as lines of text. Escapes any byte in a label value, and drops a series that repeats another.

Sample lines are the same in Prometheus text 0.0.4 and OpenMetrics 1.0; only the HELP and TYPE lines differ. So
sample lines, the costly part, are rendered once for both. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from operator import add
from typing import Final

from gpucommons.faces.exposition.families import Family, HistogramPoint, LabelValues, Metric, MetricType

_SPECIAL = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf", "True": "1", "False": "0"}
_VALUE_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})
# Of a label value, in UTF-8. UUIDs and full container ids (64 hexadecimal digits) are within it.
MOST_NAME_BYTES: Final = 64
_HASH_BYTES: Final = 6
_KEPT_BYTES: Final = MOST_NAME_BYTES - len("~") - 2 * _HASH_BYTES
# The cache may hold this many prefixes of series that are gone before it is cleared.
_SLACK = 256


def number(value: float) -> str:
    text = repr(value)
    return _SPECIAL.get(text, text)


def escape_value(value: str) -> str:
    """A label value as written between quotes. A lone surrogate (a byte that was not UTF-8) becomes U+FFFD."""
    if not value.isascii():
        value = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value.translate(_VALUE_ESCAPES)


def bounded_name(value: str) -> str:
    """A label value of at most 64 bytes. Of a longer one the beginning stays, with a hash of the whole: two long names
    stay two series."""
    if len(value) <= MOST_NAME_BYTES and value.isascii():
        return value
    encoded = value.encode("utf-8", "surrogatepass")
    if len(encoded) <= MOST_NAME_BYTES:
        return value
    beginning = encoded[:_KEPT_BYTES].decode("utf-8", "ignore")
    return f"{beginning}~{blake2b(encoded, digest_size=_HASH_BYTES).hexdigest()}"


def _first_of_each(prefixes: list[str], lines: list[str]) -> list[str]:
    first: dict[str, str] = {}
    for prefix, line in zip(prefixes, lines, strict=True):
        first.setdefault(prefix, line)
    return list(first.values())


@dataclass(frozen=True, slots=True)
class RenderedFamily:
    """The sample lines of a family, and the number of series that were dropped as duplicates."""

    metric: Metric
    lines: str
    duplicates: int


class FamilyRenderer:
    """Renders one family repeatedly and caches the name and labels of each series.

    Usually the same series arrive in the same order as before: then the cached prefixes are used as they are, without
    a lookup or a check for duplicates. With `bounds_names`, label values have at most 64 bytes.
    """

    __slots__ = ("_bounds_names", "_cache", "_labels", "_prefixes", "_repeated", "metric")

    def __init__(self, metric: Metric, bounds_names: bool = True) -> None:
        self.metric = metric
        self._bounds_names = bounds_names
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
        # Compared after escaping, which can make two different label values equal.
        self._repeated = len(set(self._prefixes)) != len(self._prefixes)

    def _prefix(self, labels: LabelValues) -> str:
        return f"{self.metric.name}{self._labels_text(self.metric.labels, labels)} "

    def _labels_text(self, names: tuple[str, ...], values: LabelValues) -> str:
        optional = self.metric.optional
        pairs = [
            f'{name}="{escape_value(bounded_name(value) if self._bounds_names else value)}"'
            for name, value in zip(names, values, strict=True)
            if value or name not in optional
        ]
        return "{" + ",".join(pairs) + "}" if pairs else ""

    def _render_histograms(self, points: Iterable[HistogramPoint]) -> RenderedFamily:
        metric, lines, seen, duplicates = self.metric, [], set(), 0
        bounds = [*(number(float(bound)) for bound in metric.buckets), "+Inf"]
        for point in points:
            if point.labels in seen:
                duplicates += 1
                continue
            seen.add(point.labels)
            for bound, count in zip(bounds, point.counts, strict=True):
                with_bound = self._labels_text((*metric.labels, "le"), (*point.labels, bound))
                lines.append(f"{metric.name}_bucket{with_bound} {count}")
            labels = self._labels_text(metric.labels, point.labels)
            lines.append(f"{metric.name}_sum{labels} {number(point.sum)}")
            lines.append(f"{metric.name}_count{labels} {point.counts[-1]}")
        lines.append("")
        return RenderedFamily(metric, "\n".join(lines), duplicates)


def prometheus_head(metric: Metric) -> str:
    help_text = metric.help.translate(_HELP_ESCAPES)
    return f"# HELP {metric.name} {help_text}\n# TYPE {metric.name} {metric.type}\n"


def openmetrics_head(metric: Metric) -> str:
    """OpenMetrics requires the samples of a counter to end in _total. A counter without that suffix is `unknown`."""
    name, kind = metric.name, str(metric.type)
    if metric.type is MetricType.UNTYPED:
        kind = "unknown"
    if metric.type is MetricType.COUNTER:
        name, kind = (name.removesuffix("_total"), kind) if name.endswith("_total") else (name, "unknown")
    return f"# HELP {name} {metric.help.translate(_VALUE_ESCAPES)}\n# TYPE {name} {kind}\n"
