"""cpu_*: the load of the host, and CPU time and memory of the busiest processes and of GPU processes."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, counter, gauge
from gpucommons.model.gpu import GpuReading
from gpucommons.model.process_identity import ProcessRow, ProcessTable
from gpucommons.model.snapshot import Snapshot

LOAD_1M = gauge("cpu_load_1m", "Load average of the host over one minute.")
CPU_SECONDS = counter("cpu_process_cpu_seconds_total", "CPU time of a process, user and system.", "pid", "name")
RSS = gauge("cpu_process_rss_bytes", "Resident memory of a process in bytes.", "pid", "name")

CATALOGUE = (LOAD_1M, CPU_SECONDS, RSS)


def shown(table: ProcessTable, gpus: GpuReading | None) -> list[ProcessRow]:
    """The busiest processes and every GPU process, if they still run with the same start time."""
    on_gpus = (p.key for gpu in gpus.present_gpus() for p in gpu.processes or ()) if gpus is not None else ()
    keys = dict.fromkeys([*table.busiest, *(key for key in on_gpus if key is not None)])
    rows = (table.by_pid.get(key.pid) for key in keys)
    return [row for row, key in zip(rows, keys, strict=True) if row is not None and row.key == key]


def collect(snapshot: Snapshot) -> Iterator[Family]:
    cpu, table = snapshot.readings.cpu, snapshot.readings.processes
    if cpu is not None:
        yield LOAD_1M.value(cpu.load_1m)
    if table is None:
        return
    rows = [((str(row.key.pid), row.name), row) for row in shown(table, snapshot.readings.gpus)]
    yield CPU_SECONDS.of((labels, row.cpu_seconds) for labels, row in rows)
    yield RSS.of((labels, row.rss_bytes) for labels, row in rows)
