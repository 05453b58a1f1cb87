"""What a dialect is: a name, the port its users scrape, its catalogue, and one pure function."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from gpucommons.faces.exposition.families import Family, Metric
from gpucommons.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Dialect:
    """`collect` may leave out or empty a family, but yields none that the catalogue lacks.

    Except where the kernel names the fields: then a newer kernel adds families, whose names begin with one of
    `open_prefixes`. `on_main` is whether the main listener's /metrics includes it; /metrics/NAME and drop-in listeners
    serve it always.
    """

    name: str
    port: int
    summary: str
    catalogue: tuple[Metric, ...]
    collect: Callable[[Snapshot], Iterable[Family]]
    on_main: bool = True
    open_prefixes: tuple[str, ...] = ()


class MetricModule(Protocol):
    """A module that names one subject's metrics and fills them."""

    @property
    def CATALOGUE(self) -> tuple[Metric, ...]: ...  # noqa: N802 - a constant of a module, which is not for changing

    def collect(self, snapshot: Snapshot) -> Iterable[Family]: ...


def dialect_of(
    parts: tuple[MetricModule, ...],
    *,
    name: str,
    port: int,
    summary: str,
    on_main: bool = True,
    open_prefixes: tuple[str, ...] = (),
) -> Dialect:
    """A dialect whose subjects have a module each."""

    def collect(snapshot: Snapshot) -> Iterator[Family]:
        for part in parts:
            yield from part.collect(snapshot)

    catalogue = tuple(metric for part in parts for metric in part.CATALOGUE)
    return Dialect(name, port, summary, catalogue, collect, on_main, open_prefixes)
