"""Metrics that other programs wrote into files, in the text format of Prometheus. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Labels = tuple[tuple[str, str], ...]


class TextSample(NamedTuple):
    """One line. `name` has the suffix of a histogram or a summary: _bucket, _sum or _count."""

    name: str
    labels: Labels
    value: float


@dataclass(frozen=True, slots=True)
class TextFamily:
    """`type` is counter, gauge, histogram, summary or untyped. `help` is empty if the file has none."""

    name: str
    type: str
    help: str
    samples: tuple[TextSample, ...]


@dataclass(frozen=True, slots=True)
class TextFilesReading:
    """`families` are those of all files, one per name. `modified_s` has the time of each file that was read, in whole
    seconds; `problems` has what is wrong with a directory or a file, by its path."""

    families: tuple[TextFamily, ...] = ()
    modified_s: Mapping[str, int] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
