"""docs/metrics.md, generated from the catalogues: every metric with its type, labels and help. Pure."""

from collections.abc import Iterable, Iterator

from gpucommons.faces.dialects.dialect import Dialect
from gpucommons.faces.exposition.families import Metric


def metrics_page(dialects: Iterable[Dialect]) -> str:
    return "\n".join(_lines(tuple(dialects))) + "\n"


def _lines(dialects: tuple[Dialect, ...]) -> Iterator[str]:
    yield "# Metrics"
    yield ""
    yield "Generated from the catalogues of the dialects by `make docs`. The main listener serves all dialects at"
    yield "`/metrics`, except where a section says otherwise, and each dialect at `/metrics/NAME`. A drop-in listener"
    yield "serves one dialect at `/metrics`, on the port that its users scrape."
    yield "A label in brackets is omitted from a series that has no value for it."
    for dialect in dialects:
        yield ""
        yield f"## {dialect.name} (port {dialect.port})"
        yield ""
        yield f"{dialect.summary[0].upper()}{dialect.summary[1:]}."
        yield from _notes(dialect)
        yield ""
        yield "| metric | type | labels | meaning |"
        yield "|---|---|---|---|"
        for metric in dialect.catalogue:
            yield f"| `{metric.name}` | {metric.type} | {_labels(metric)} | {metric.help.replace('|', '/')} |"


def _notes(dialect: Dialect) -> Iterator[str]:
    if not dialect.on_main:
        yield f"Not part of `/metrics`: served at `/metrics/{dialect.name}` and by its own listener."
    if dialect.open_prefixes:
        prefixes = ", ".join(f"`{prefix}*`" for prefix in dialect.open_prefixes)
        yield f"The kernel or a driver names the fields of {prefixes}: a node may have more of them than are listed."


def _labels(metric: Metric) -> str:
    return ", ".join(f"[{name}]" if name in metric.optional else name for name in metric.labels)
