"""Families that are made again only when their rows have changed. Most of a crowd of clients waits and does not change.

The same Family objects in the next snapshot mean that the renderer keeps their bytes, too.
"""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVarTuple

from gpucommons.faces.exposition.families import Family

Rows = TypeVarTuple("Rows")


class KeptFamilies(Generic[*Rows]):
    """`make` is pure. Comparing rows ends at the first that differs, so that changing rows cost little more."""

    def __init__(self, make: Callable[[*Rows], Iterable[Family]]) -> None:
        self._make = make
        self._rows: tuple[*Rows] | None = None
        self._families: tuple[Family, ...] = ()

    def __call__(self, *rows: *Rows) -> tuple[Family, ...]:
        if rows != self._rows:
            self._families = tuple(self._make(*rows))
            self._rows = rows
        return self._families
