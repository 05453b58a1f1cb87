"""What a dialect is: a name, the port its users scrape, its catalogue, and one pure function."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpucommons.exposition.families import Family, Metric
from gpucommons.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Dialect:
    """`collect` may leave out or empty a family, but yields none that the catalogue lacks."""

    name: str
    port: int
    summary: str
    catalogue: tuple[Metric, ...]
    collect: Callable[[Snapshot], Iterable[Family]]
