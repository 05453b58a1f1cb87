"""The families of a dialect as bytes, rendered once per snapshot, format and encoding.

A dialect that raises loses only its own families: the others are served and the failure is counted. Runs only on the
event loop's thread; takes no lock and does no I/O.
"""

import logging
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gpucommons.faces.exposition.families import Family, Metric, join_families
from gpucommons.faces.exposition.text import FamilyRenderer, RenderedFamily
from gpucommons.model.snapshot import Snapshot

TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
# Level 1 already reduces a body to a tenth. Higher levels save a few percent more and take several times as long.
_GZIP_LEVEL = 1
_LARGE_BYTES = 64 * 1024
# Renderers of metrics that are not served now.
_MAX_UNUSED_RENDERERS = 256
# zlib's number for the format of gzip.
_GZIP_FORMAT = 31

log = logging.getLogger(__name__)


class Collector(Protocol):
    """The part of a dialect that the exposition needs."""

    @property
    def name(self) -> str: ...
    @property
    def on_main(self) -> bool: ...
    @property
    def bounds_names(self) -> bool: ...
    @property
    def collect(self) -> Callable[[Snapshot], Iterable[Family]]: ...


@dataclass(slots=True)
class DialectRenderer:
    """Renders the families of one dialect. Its prefix caches live as long as the agent."""

    dialect: Collector
    duplicates: int = 0
    failures: int = 0
    _renderers: dict[Metric, FamilyRenderer] = field(default_factory=dict)
    _failing: bool = False

    def render(self, snapshot: Snapshot) -> list[RenderedFamily]:
        try:
            rendered = self._render_all(snapshot)
        except Exception as error:
            self.failures += 1
            if not self._failing:
                log.exception("dialect %s failed and is omitted: %s", self.dialect.name, error)
            self._failing = True
            return []
        self._failing = False
        return rendered

    def _render_all(self, snapshot: Snapshot) -> list[RenderedFamily]:
        """One after the other: the points of all families together would take many megabytes."""
        rendered: dict[Metric, RenderedFamily] = {}
        for family in self.dialect.collect(snapshot):
            if family.metric in rendered:
                return [self._render(family) for family in join_families(self.dialect.collect(snapshot))]
            rendered[family.metric] = self._render(family)
        if len(self._renderers) > 2 * len(rendered) + _MAX_UNUSED_RENDERERS:
            # Metrics whose names, labels or help come from outside (text files, pods) change without end.
            self._renderers = {metric: self._renderers[metric] for metric in rendered}
        return list(rendered.values())

    def _render(self, family: Family) -> RenderedFamily:
        renderer = self._renderers.get(family.metric)
        if renderer is None:
            renderer = self._renderers[family.metric] = FamilyRenderer(family.metric, self.dialect.bounds_names)
        rendered = renderer.render(family)
        if rendered.duplicates:
            if not self.duplicates:
                log.warning(
                    "dialect %s yielded %s twice with the same labels; the first one is served",
                    self.dialect.name,
                    family.metric.name,
                )
            self.duplicates += rendered.duplicates
        return rendered


class Exposition:
    """The metrics that listeners serve. `metrics()` is a dictionary lookup once a snapshot has been rendered."""

    def __init__(self, latest: Callable[[], Snapshot | None], dialects: Iterable[Collector]) -> None:
        self.latest = latest
        self._renderers = {dialect.name: DialectRenderer(dialect) for dialect in dialects}
        self._on_main = tuple(name for name, renderer in self._renderers.items() if renderer.dialect.on_main)
        self._sequence = -1
        self._families: dict[str, list[RenderedFamily]] = {}
        self._bodies: dict[tuple[str | None, bool, bool], bytes] = {}

    @property
    def dialect_names(self) -> tuple[str, ...]:
        return tuple(self._renderers)

    @property
    def duplicates(self) -> Mapping[str, int]:
        return {name: renderer.duplicates for name, renderer in self._renderers.items()}

    @property
    def failures(self) -> Mapping[str, int]:
        return {name: renderer.failures for name, renderer in self._renderers.items()}

    def metrics(self, dialect: str | None, openmetrics: bool, gzip: bool) -> tuple[bytes, str]:
        """The current snapshot in one dialect, or in all dialects with `on_main`: the bytes and their content type."""
        if dialect is not None and dialect not in self._renderers:
            raise LookupError(dialect)
        snapshot = self.latest()
        sequence = -1 if snapshot is None else snapshot.sequence
        if sequence != self._sequence:
            self._sequence = sequence
            self._families.clear()
            self._bodies.clear()
        key = (dialect, openmetrics, gzip)
        body = self._bodies.get(key)
        if body is None:
            body = self._bodies[key] = self._body(snapshot, dialect, openmetrics, gzip)
        return body, OPENMETRICS_CONTENT_TYPE if openmetrics else TEXT_CONTENT_TYPE

    def _body(self, snapshot: Snapshot | None, dialect: str | None, openmetrics: bool, compressed: bool) -> bytes:
        names = self._on_main if dialect is None else (dialect,)
        dialects = [] if snapshot is None else [self._render(name, snapshot) for name in names]
        opening = _opening(snapshot, openmetrics)
        parts: list[bytes | memoryview] = [opening]
        for families in dialects:
            for family in families:
                parts += (family.head(openmetrics), family.lines)
        if openmetrics:
            parts.append(b"# EOF\n")
        if compressed:
            # Most scrapers accept gzip: then no plain body exists.
            packer = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_FORMAT)
            return b"".join([*[packer.compress(part) for part in parts], packer.flush()])
        body = b"".join(parts)
        _share_lines(dialects, memoryview(body)[len(opening) :], openmetrics)
        return body

    def _render(self, name: str, snapshot: Snapshot) -> list[RenderedFamily]:
        families = self._families.get(name)
        if families is None:
            families = self._families[name] = self._renderers[name].render(snapshot)
        return families


def _opening(snapshot: Snapshot | None, openmetrics: bool) -> bytes:
    if snapshot is None or snapshot.scenario is None or openmetrics:
        return b""
    return f"# SIMULATED: scenario {snapshot.scenario}, these values were not measured\n".encode()


def _share_lines(dialects: Iterable[list[RenderedFamily]], body: memoryview, openmetrics: bool) -> None:
    """Make the lines of large families views of the body that they are in: two copies would take many megabytes."""
    end = 0
    for families in dialects:
        for index, family in enumerate(families):
            start = end + len(family.head(openmetrics))
            end = start + len(family.lines)
            if len(family.lines) >= _LARGE_BYTES:
                families[index] = RenderedFamily(family.heads, body[start:end], family.duplicates)
