"""cpu_process_*: CPU time and memory of the processes that are worth a series."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, counter, gauge
from gpucommons.model.gpu import GpuReading
from gpucommons.model.process_identity import ProcessRow, ProcessTable
from gpucommons.model.snapshot import Snapshot

CPU_SECONDS = counter(
    "cpu_process_cpu_seconds_total", "CPU time, user and system, that a process has used.", "pid", "name"
)
RSS = gauge("cpu_process_rss_bytes", "Memory of a process that is resident, in bytes.", "pid", "name")

CATALOGUE = (CPU_SECONDS, RSS)


def shown(table: ProcessTable, gpus: GpuReading | None) -> list[ProcessRow]:
    """The busiest and every GPU process, those that are still there under the same start time."""
    on_gpus = (p.key for gpu in gpus.present_gpus() for p in gpu.processes or ()) if gpus is not None else ()
    keys = dict.fromkeys([*table.busiest, *(key for key in on_gpus if key is not None)])
    rows = (table.by_pid.get(key.pid) for key in keys)
    return [row for row, key in zip(rows, keys, strict=True) if row is not None and row.key == key]


def collect(snapshot: Snapshot) -> Iterator[Family]:
    table = snapshot.readings.processes
    if table is None:
        return
    rows = [((str(row.key.pid), row.name), row) for row in shown(table, snapshot.readings.gpus)]
    yield CPU_SECONDS.of((labels, row.cpu_seconds) for labels, row in rows)
    yield RSS.of((labels, row.rss_bytes) for labels, row in rows)
