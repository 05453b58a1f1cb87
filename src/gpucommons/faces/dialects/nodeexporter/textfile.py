"""Metrics from text files under their own names; node_textfile_*: when each file was written, and if all were read.

A name that node_exporter itself has is refused: the machine's own value is served, and the file counts as an error.
"""

from collections.abc import Iterator, Set

from gpucommons.faces.exposition.families import Family, Metric, MetricType, RawSample, gauge
from gpucommons.model.host import TextFamily
from gpucommons.model.snapshot import Snapshot

MTIME = gauge("node_textfile_mtime_seconds", "Time at which a text file that was read was written.", "file")
SCRAPE_ERROR = gauge(
    "node_textfile_scrape_error", "Result of reading the text files: 1 if one could not be read, else 0."
)

CATALOGUE = (MTIME, SCRAPE_ERROR)


def collect(snapshot: Snapshot, taken: Set[str]) -> Iterator[Family]:
    """`taken` are the names of the other families."""
    reading = snapshot.readings.text_files
    if reading is None:
        return
    own = {metric.name for metric in CATALOGUE}
    refused = {family.name for family in reading.families if family.name in taken or family.name in own}
    if reading.modified_s:
        yield MTIME.of(((file,), seconds) for file, seconds in reading.modified_s.items())
    yield SCRAPE_ERROR.value(int(bool(reading.problems or refused)))
    for family in reading.families:
        if family.name not in refused:
            yield _metric(family).samples(RawSample(*sample) for sample in family.samples)


def _metric(family: TextFamily) -> Metric:
    return Metric(family.name, MetricType(family.type), family.help or "Metric from a text file.")
