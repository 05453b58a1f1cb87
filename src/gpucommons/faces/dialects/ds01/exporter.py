"""ds01_exporter_info: the version of gpucommons."""

from collections.abc import Iterator

from gpucommons import __version__
from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.snapshot import Snapshot

INFO = gauge("ds01_exporter_info", "Version of the program that serves these metrics; always 1.", "version", "type")

CATALOGUE = (INFO,)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    yield INFO.value(1, __version__, "gpucommons")
