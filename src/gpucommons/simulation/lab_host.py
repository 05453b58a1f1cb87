"""The host of scenario lab: a 64-core server of a research group, its CPUs, memory, pressure and processes."""

from gpucommons.model.host import (
    CoreTimes,
    CpuReading,
    MemoryReading,
    Pressure,
    PressureLine,
    PressureReading,
    SystemActivity,
)
from gpucommons.model.process_identity import ProcessKey, ProcessRow, ProcessTable
from gpucommons.simulation.lab_load import FixedLoad, LabLoad
from gpucommons.simulation.scenario import daylight, daylight_seconds, wobble
from gpucommons.sources.host.processes import Busiest

CORES = 64
MEMORY_BYTES = 512 * 2**30
# The boot time is a new year's midnight; the uptime at the start of the simulation is fixed.
BOOT_TIME_S = 1_767_225_600
UPTIME_S = 20 * 86_400.0
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
    # As in the real source, utilisation requires two readings: the first has none.
    ratio = busy if elapsed_s > 0 else None
    times = {str(core): _core_times(core, elapsed_s) for core in range(CORES)}
    return CpuReading(CORES, load, load * 0.97, load * 0.93, ratio, times, _activity(elapsed_s, load))


def _core_times(core: int, elapsed_s: float) -> CoreTimes:
    """Counted since boot. The first cores are busier than the last."""
    whole_s = UPTIME_S + elapsed_s
    worked_s = (0.08 * whole_s + 0.55 * (UPTIME_S / 2 + daylight_seconds(elapsed_s))) * (1.2 - 0.4 * core / CORES)
    return CoreTimes(
        user=0.82 * worked_s,
        nice=0.01 * worked_s,
        system=0.15 * worked_s,
        idle=whole_s - 1.03 * worked_s,
        iowait=0.03 * worked_s,
        irq=0.0,
        softirq=0.02 * worked_s,
        steal=0.0,
        guest=0.0,
        guest_nice=0.0,
    )


def _activity(elapsed_s: float, load: float) -> SystemActivity:
    worked_s = UPTIME_S / 2 + daylight_seconds(elapsed_s)
    return SystemActivity(
        boot_time_s=BOOT_TIME_S,
        interrupts=int(41_000 * worked_s),
        context_switches=int(88_000 * worked_s),
        forks=int(37 * worked_s),
        processes_running=max(1, round(load)),
        processes_blocked=0,
    )


# Simulated fields of /proc/meminfo, as shares of the memory in use.
_PARTS_OF_USED = {
    "AnonPages": 0.78,
    "Active": 0.62,
    "Active(anon)": 0.48,
    "Active(file)": 0.14,
    "Inactive": 0.4,
    "Inactive(anon)": 0.28,
    "Inactive(file)": 0.12,
    "Mapped": 0.09,
    "Shmem": 0.05,
    "Slab": 0.06,
    "SReclaimable": 0.04,
    "SUnreclaim": 0.02,
    "KReclaimable": 0.04,
    "KernelStack": 0.001,
    "PageTables": 0.004,
    "Committed_AS": 1.4,
    "AnonHugePages": 0.3,
    "Percpu": 0.001,
    "Dirty": 0.0005,
}
_EMPTY_FIELDS = (
    *("SwapCached", "SwapTotal", "SwapFree", "Unevictable", "Mlocked", "Writeback"),
    *("SecPageTables", "NFS_Unstable", "Bounce", "WritebackTmp", "VmallocChunk"),
    *("HardwareCorrupted", "ShmemHugePages", "ShmemPmdMapped", "FileHugePages"),
    *("FilePmdMapped", "Hugetlb"),
)


def memory(elapsed_s: float) -> MemoryReading:
    used_ratio = 0.18 + 0.42 * daylight(elapsed_s) + 0.02 * wobble(elapsed_s, 91)
    available = int(MEMORY_BYTES * (1 - used_ratio))
    used, cached = MEMORY_BYTES - available, int(0.25 * available)
    sizes = {
        "MemTotal": MEMORY_BYTES,
        "MemFree": available - cached,
        "MemAvailable": available,
        "Buffers": cached // 50,
        "Cached": cached,
        "CommitLimit": MEMORY_BYTES // 2,
        "VmallocTotal": 2**45,
        "VmallocUsed": 2**28,
        "Hugepagesize": 2**21,
        "DirectMap4k": 2**30,
        "DirectMap2M": 2**36,
        "DirectMap1G": MEMORY_BYTES - 2**36,
        **{field: int(part * used) for field, part in _PARTS_OF_USED.items()},
        **dict.fromkeys(_EMPTY_FIELDS, 0),
    }
    counts = dict.fromkeys(("HugePages_Total", "HugePages_Free", "HugePages_Rsvd", "HugePages_Surp"), 0)
    return MemoryReading(MEMORY_BYTES, available, sizes, counts)


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
    """The processes of the lab; selects the busiest as the real source does."""

    def __init__(self, busiest_limit: int, load: LabLoad | None = None) -> None:
        self._busiest = Busiest(busiest_limit)
        self._load = load or FixedLoad()

    def at(self, elapsed_s: float) -> ProcessTable:
        rows = [self._row(index, elapsed_s) for index in range(len(_PROCESSES))]
        rows += self._jobs(elapsed_s)
        by_pid = {row.key.pid: row for row in rows}
        return ProcessTable(by_pid, self._busiest.choose(by_pid, elapsed_s))

    def _row(self, index: int, elapsed_s: float) -> ProcessRow:
        name, cores, gib = _PROCESSES[index]
        key = ProcessKey(2000 + 37 * index, _TICKS_PER_S * (60 + 11 * index))
        rss = gib * 2**30 * (1 + 0.03 * wobble(elapsed_s, 53, index))
        return ProcessRow(key, name, 3600 * cores + cores * elapsed_s, int(rss))

    def _jobs(self, elapsed_s: float) -> list[ProcessRow]:
        """A job on a GPU is also a process of the host."""
        load = self._load
        return [
            ProcessRow(job.key, job.name, load.cpu_seconds(job, elapsed_s), load.resident_bytes(job, elapsed_s))
            for job in load.jobs()
        ]
