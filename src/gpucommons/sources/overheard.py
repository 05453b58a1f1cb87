"""A source whose newest reading another source may look at, from whatever thread it runs on."""

from typing import Any, Literal

from gpucommons.sources.source import Source


class Overheard:
    """Stands in for `source` and remembers what it last handed over; None while it has nothing."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.last: Any = None

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def feeds(self) -> str:
        return self._source.feeds

    @property
    def produces(self) -> type:
        return self._source.produces

    @property
    def cadence_s(self) -> float:
        return self._source.cadence_s

    @property
    def deadline_s(self) -> float:
        return self._source.deadline_s

    @property
    def essential(self) -> bool:
        return self._source.essential

    @property
    def runs_on(self) -> Literal["thread", "loop"]:
        return self._source.runs_on

    def read(self) -> object:
        try:
            reading = self._source.read()
        except BaseException:
            self.last = None
            raise
        self.last = reading
        return reading
