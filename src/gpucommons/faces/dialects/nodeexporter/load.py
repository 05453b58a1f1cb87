"""node_load*: the load averages."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.snapshot import Snapshot

LOAD1 = gauge("node_load1", "Load average of the host over one minute.")
LOAD5 = gauge("node_load5", "Load average of the host over five minutes.")
LOAD15 = gauge("node_load15", "Load average of the host over fifteen minutes.")

CATALOGUE = (LOAD1, LOAD5, LOAD15)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    cpu = snapshot.readings.cpu
    if cpu is not None:
        yield LOAD1.value(cpu.load_1m)
        yield LOAD5.value(cpu.load_5m)
        yield LOAD15.value(cpu.load_15m)
