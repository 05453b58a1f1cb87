"""A dialect: a name, the port that its users scrape, its catalogue, and one pure function."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from gpucommons.faces.exposition.families import Family, Metric
from gpucommons.model.snapshot import Snapshot


class Dialect(NamedTuple):
    """`collect` yields families of the catalogue only; it may omit a family or yield an empty one. A metric that it
    yields in parts makes it run twice.

    Where the kernel names the fields, a newer kernel adds families: their names begin with one of `open_prefixes`.
    `on_main`: the main listener's /metrics includes the dialect. /metrics/NAME and drop-in listeners always serve it.
    `bounds_names`: label values have at most 64 bytes; longer ones are cut and end in a hash.
    """

    name: str
    port: int
    summary: str
    catalogue: tuple[Metric, ...]
    collect: Callable[[Snapshot], Iterable[Family]]
    on_main: bool = True
    open_prefixes: tuple[str, ...] = ()
    bounds_names: bool = True


class MetricModule(Protocol):
    """A module that declares and fills the metrics of one subject."""

    @property
    def CATALOGUE(self) -> tuple[Metric, ...]: ...  # noqa: N802 - a constant of a module

    def collect(self, snapshot: Snapshot) -> Iterable[Family]: ...


def dialect_of(
    parts: tuple[MetricModule, ...],
    *,
    name: str,
    port: int,
    summary: str,
    on_main: bool = True,
    open_prefixes: tuple[str, ...] = (),
    bounds_names: bool = True,
) -> Dialect:
    """A dialect that has one module per subject."""

    def collect(snapshot: Snapshot) -> Iterator[Family]:
        for part in parts:
            yield from part.collect(snapshot)

    catalogue = tuple(metric for part in parts for metric in part.CATALOGUE)
    return Dialect(name, port, summary, catalogue, collect, on_main, open_prefixes, bounds_names)
