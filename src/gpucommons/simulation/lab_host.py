"""The host of scenario lab: a 64-core server of a research group, its memory, pressure and processes."""

from gpucommons.model.busiest import Busiest
from gpucommons.model.host import CpuReading, MemoryReading, Pressure, PressureLine, PressureReading
from gpucommons.model.processes import ProcessKey, ProcessRow, ProcessTable
from gpucommons.simulation.lab_jobs import JOBS, LabJob
from gpucommons.simulation.scenario import daylight, daylight_seconds, wobble

CORES = 64
MEMORY_BYTES = 512 * 2**30
_TICKS_PER_S = 100

# name, CPU cores it keeps busy by day, resident GiB
_PROCESSES = (
    ("systemd", 0.002, 0.02),
    ("dockerd", 0.05, 0.3),
    ("sshd", 0.001, 0.01),
    ("prometheus", 0.08, 1.2),
    ("jupyter-lab", 0.12, 0.9),
    ("python train.py", 6.0, 38.0),
    ("python finetune.py", 4.5, 52.0),
    ("python eval.py", 2.2, 16.0),
    ("python dataloader", 9.0, 7.5),
    ("python serve.py", 3.1, 24.0),
    ("ray::worker", 2.4, 11.0),
    ("code-server", 0.4, 1.8),
    ("rsync", 0.6, 0.1),
    ("node_exporter", 0.01, 0.03),
)


def _busy(elapsed_s: float) -> float:
    return 0.08 + 0.55 * daylight(elapsed_s) + 0.04 * wobble(elapsed_s, 37)


def cpu(elapsed_s: float) -> CpuReading:
    busy = _busy(elapsed_s)
    load = CORES * busy
    # Like the real one, utilisation takes two readings: the first has none.
    return CpuReading(CORES, load, load * 0.97, load * 0.93, busy if elapsed_s > 0 else None)


def memory(elapsed_s: float) -> MemoryReading:
    used = 0.18 + 0.42 * daylight(elapsed_s) + 0.02 * wobble(elapsed_s, 91)
    return MemoryReading(MEMORY_BYTES, int(MEMORY_BYTES * (1 - used)))


def pressure(elapsed_s: float) -> PressureReading:
    by_day, worked_s = daylight(elapsed_s), daylight_seconds(elapsed_s)

    def line(most_percent: float) -> PressureLine:
        percent = most_percent * by_day
        return PressureLine(percent, percent * 0.9, percent * 0.8, most_percent / 100 * worked_s)

    return PressureReading(
        cpu=Pressure(line(9), line(0)),
        memory=Pressure(line(2), line(0.4)),
        io=Pressure(line(5), line(2)),
    )


class LabProcesses:
    """The processes of the lab; keeps the choice of the busiest as the real source does."""

    def __init__(self, busiest_limit: int) -> None:
        self._busiest = Busiest(busiest_limit)

    def at(self, elapsed_s: float) -> ProcessTable:
        rows = [self._row(index, elapsed_s) for index in range(len(_PROCESSES))]
        rows += [_job(job, elapsed_s) for job in JOBS]
        by_pid = {row.key.pid: row for row in rows}
        return ProcessTable(by_pid, self._busiest.choose(by_pid, elapsed_s))

    def _row(self, index: int, elapsed_s: float) -> ProcessRow:
        name, cores, gib = _PROCESSES[index]
        key = ProcessKey(2000 + 37 * index, _TICKS_PER_S * (60 + 11 * index))
        rss = gib * 2**30 * (1 + 0.03 * wobble(elapsed_s, 53, index))
        return ProcessRow(key, name, 3600 * cores + cores * elapsed_s, int(rss))


def _job(job: LabJob, elapsed_s: float) -> ProcessRow:
    """A job on a GPU is a process of the host like any other."""
    cpu_seconds = job.cpu_cores * (1800 + elapsed_s)
    return ProcessRow(job.key, job.name, cpu_seconds, int(job.rss_gib * 2**30))
