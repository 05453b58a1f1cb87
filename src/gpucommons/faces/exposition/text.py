"""Families as lines of text. Escapes any byte in a label value, and drops a series that repeats another.

RawSample lines are the same in Prometheus text 0.0.4 and OpenMetrics 1.0; only the HELP and TYPE lines differ. So
sample lines, the costly part, are rendered once for both. Pure.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from operator import add
from typing import Final, NamedTuple
from weakref import ReferenceType

from gpucommons.faces.exposition.families import (
    Family,
    HistogramPoint,
    LabelValues,
    Metric,
    MetricType,
    RawSample,
    SummaryPoint,
)

_SPECIAL = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf", "True": "1", "False": "0"}
_VALUE_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})
# Of a label value, in UTF-8. UUIDs and full container ids (64 hexadecimal digits) are within it.
MAX_NAME_BYTES: Final = 64
_HASH_BYTES: Final = 6
_KEPT_BYTES: Final = MAX_NAME_BYTES - len("~") - 2 * _HASH_BYTES
# Series that are rendered together: the lines of all series of a large family would take many megabytes.
_CHUNK: Final = 1024
# Lines of more bytes are not kept for the next snapshot: rendering them takes a millisecond, and the copy would add to
# the body that they are in.
_MAX_KEPT_BYTES: Final = 512 * 1024


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
    if len(value) <= MAX_NAME_BYTES and value.isascii():
        return value
    encoded = value.encode("utf-8", "surrogatepass")
    if len(encoded) <= MAX_NAME_BYTES:
        return value
    beginning = encoded[:_KEPT_BYTES].decode("utf-8", "ignore")
    return f"{beginning}~{blake2b(encoded, digest_size=_HASH_BYTES).hexdigest()}"


class Heads(NamedTuple):
    """The HELP and TYPE lines of a metric in each format."""

    prometheus: bytes
    openmetrics: bytes


class RenderedFamily(NamedTuple):
    """A family in UTF-8, and the number of series that were dropped as duplicates."""

    heads: Heads
    lines: bytes | memoryview
    duplicates: int

    def head(self, openmetrics: bool) -> bytes:
        return self.heads.openmetrics if openmetrics else self.heads.prometheus


class FamilyRenderer:
    """Renders one family repeatedly and keeps the name and labels of each series as text.

    Usually the same series arrive in the same order as before: then these prefixes are used as they are, without
    a lookup or a check for duplicates. If their values are the same too, so are the bytes: these are kept once the
    values were the same twice, since large families often change each time, and never for the largest. The same Family
    as before is not even compared. With `bounds_names`, label values have at most 64 bytes.
    """

    __slots__ = (
        "_bounds_names",
        "_family",
        "_first_of_each",
        "_heads",
        "_labels",
        "_prefixes",
        "_rendered",
        "_repeated",
        "_values",
        "metric",
    )

    def __init__(self, metric: Metric, bounds_names: bool = True) -> None:
        self.metric = metric
        self._heads = Heads(prometheus_head(metric).encode(), openmetrics_head(metric).encode())
        self._bounds_names = bounds_names
        # Weak: a family that is not kept elsewhere ends with its snapshot.
        self._family: ReferenceType[Family] | None = None
        self._labels: list[LabelValues] = []
        self._prefixes: list[str] = []
        self._values: list[float] = []
        self._rendered: RenderedFamily | None = None
        self._repeated = False
        # If series repeat: the index of the first one of each prefix.
        self._first_of_each: dict[str, int] = {}

    def render(self, family: Family) -> RenderedFamily:
        if family.histograms:
            return self._render_histograms(family.histograms)
        if family.summaries:
            return self._render_summaries(family.summaries)
        if family.samples:
            return self._render_samples(family.samples)
        if self._rendered is not None and self._family is not None and self._family() is family:
            return self._rendered
        self._family = ReferenceType(family)
        labels = [labels for labels, _ in family.points]
        values = [value for _, value in family.points]
        if labels != self._labels:
            self._remember(labels)
        elif values == self._values:
            rendered = self._rendered or self._render_points(values)
            if len(rendered.lines) <= _MAX_KEPT_BYTES:
                self._rendered = rendered
            return rendered
        self._values, self._rendered = values, None
        return self._render_points(values)

    def _render_points(self, values: list[float]) -> RenderedFamily:
        chunks = [self._lines(values, start) for start in range(0, len(values), _CHUNK)]
        duplicates = len(values) - len(set(self._prefixes)) if self._repeated else 0
        return RenderedFamily(self._heads, b"".join(chunks), duplicates)

    def _lines(self, values: list[float], start: int) -> bytes:
        chunk = slice(start, start + _CHUNK)
        numbers = [repr(value) for value in values[chunk]]
        if not _SPECIAL.keys().isdisjoint(numbers):
            numbers = [_SPECIAL.get(text, text) for text in numbers]
        prefixes = self._prefixes[chunk]
        lines = list(map(add, prefixes, numbers))
        if self._repeated:
            first = self._first_of_each
            lines = [line for index, line in enumerate(lines, start) if first[prefixes[index - start]] == index]
        lines.append("")
        return "\n".join(lines).encode()

    def _remember(self, labels: list[LabelValues]) -> None:
        prefixes = dict(zip(self._labels, self._prefixes, strict=True))
        self._labels = labels
        self._prefixes = [prefixes.get(values) or self._prefix(values) for values in labels]
        # Compared after escaping, which can make two different label values equal.
        self._repeated = len(set(self._prefixes)) != len(self._prefixes)
        self._first_of_each = {}
        if self._repeated:
            for index, prefix in enumerate(self._prefixes):
                self._first_of_each.setdefault(prefix, index)

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
        return RenderedFamily(self._heads, "\n".join(lines).encode(), duplicates)

    def _render_summaries(self, points: Iterable[SummaryPoint]) -> RenderedFamily:
        metric, lines, seen, duplicates = self.metric, [], set(), 0
        for point in points:
            if point.labels in seen:
                duplicates += 1
                continue
            seen.add(point.labels)
            for quantile, value in point.quantiles:
                with_quantile = self._labels_text((*metric.labels, "quantile"), (*point.labels, number(quantile)))
                lines.append(f"{metric.name}{with_quantile} {number(value)}")
            labels = self._labels_text(metric.labels, point.labels)
            lines.append(f"{metric.name}_sum{labels} {number(point.sum)}")
            lines.append(f"{metric.name}_count{labels} {point.count}")
        lines.append("")
        return RenderedFamily(self._heads, "\n".join(lines).encode(), duplicates)

    def _render_samples(self, samples: Sequence[RawSample]) -> RenderedFamily:
        lines: dict[str, str] = {}
        for sample in samples:
            names = tuple(name for name, _ in sample.labels)
            labels = self._labels_text(names, tuple(value for _, value in sample.labels))
            lines.setdefault(f"{sample.name}{labels}", number(sample.value))
        text = "".join(f"{series} {value}\n" for series, value in lines.items())
        return RenderedFamily(self._heads, text.encode(), len(samples) - len(lines))


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
