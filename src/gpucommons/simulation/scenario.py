"""A scenario: a name and simulated sources in place of the real ones."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from gpucommons.sources.source import Source

# A real agent names the type alone.
if TYPE_CHECKING:
    from gpucommons.simulation.lab_workloads import LabWorld


def simulated_source(
    name: str,
    feeds: str,
    produces: type,
    make: Callable[[float], object],
    cadence_s: float,
    monotonic: Callable[[], float],
    essential: bool = False,
) -> Source:
    """A source whose reading `make` computes from the seconds since the first read."""
    started_s: float | None = None

    def read() -> object:
        nonlocal started_s
        now_s = monotonic()
        started_s = now_s if started_s is None else started_s
        return make(now_s - started_s)

    return Source(name, feeds, produces, read, cadence_s, essential=essential, runs_on="loop")


class Scenario(NamedTuple):
    """`sources` makes its sources for a cadence and a clock. Without a `world` there is no attribution."""

    name: str
    summary: str
    sources: Callable[[float, Callable[[], float]], list[Source]]
    world: "LabWorld | None" = None
