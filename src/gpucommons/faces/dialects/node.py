"""The vocabulary of the node agent: cpu_*, node_* and gpu_*."""

from collections.abc import Callable, Container, Iterator

from gpucommons.faces.dialects.dialect import Dialect
from gpucommons.faces.dialects.series import OVERFLOW, pid_label, processes_beyond_limit
from gpucommons.faces.exposition.families import Family, Metric, counter, gauge
from gpucommons.model.gpu import Gpu, GpuReading
from gpucommons.model.host import Pressure
from gpucommons.model.process_identity import ProcessRow, ProcessTable
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.health import node_health_of

# cpu_*: the load of the host, and CPU time and memory of the busiest processes and of GPU processes.

LOAD_1M = gauge("cpu_load_1m", "Load average of the host over one minute.")
CPU_SECONDS = counter("cpu_process_cpu_seconds_total", "CPU time of a process, user and system.", "pid", "name")
RSS = gauge("cpu_process_rss_bytes", "Resident memory of a process in bytes.", "pid", "name")

CPU_CATALOGUE = (LOAD_1M, CPU_SECONDS, RSS)


def choose_processes(table: ProcessTable, gpus: GpuReading | None) -> list[ProcessRow]:
    """The busiest processes and every GPU process, if they still run with the same start time."""
    on_gpus = (p.key for gpu in gpus.present_gpus() for p in gpu.processes or ()) if gpus is not None else ()
    keys = dict.fromkeys([*table.busiest, *(key for key in on_gpus if key is not None)])
    rows = (table.by_pid.get(key.pid) for key in keys)
    return [row for row, key in zip(rows, keys, strict=True) if row is not None and row.key == key]


def collect_cpu(snapshot: Snapshot) -> Iterator[Family]:
    cpu, table = snapshot.readings.cpu, snapshot.readings.processes
    if cpu is not None:
        yield LOAD_1M.value(cpu.load_1m)
    if table is None:
        return
    rows = [((str(row.key.pid), row.name), row) for row in choose_processes(table, snapshot.readings.gpus)]
    yield CPU_SECONDS.of((labels, row.cpu_seconds) for labels, row in rows)
    yield RSS.of((labels, row.rss_bytes) for labels, row in rows)


CPU_UTILIZATION = gauge(
    "node_cpu_utilization_ratio", "Share of CPU time since the last reading that was not idle, 0 to 1."
)
CPU_PRESSURE = gauge(
    "node_cpu_pressure_avg10", "Percentage of the last 10 s in which some task waited for a CPU (PSI)."
)
MEMORY_PRESSURE = gauge(
    "node_memory_pressure_avg10", "Percentage of the last 10 s in which some task waited for memory (PSI)."
)
NODE_MEMORY_TOTAL = gauge("node_memory_total_bytes", "Memory of the host in bytes.")
MEMORY_AVAILABLE = gauge(
    "node_memory_available_bytes",
    "Memory that programs can use without swapping, as estimated by the kernel, in bytes.",
)
HEALTH_SCORE = gauge(
    "node_health_score",
    "Headroom of the host, 0 to 10, from the signals that could be read (see gpucommons_health_component).",
)

NODE_CATALOGUE = (CPU_UTILIZATION, CPU_PRESSURE, MEMORY_PRESSURE, NODE_MEMORY_TOTAL, MEMORY_AVAILABLE, HEALTH_SCORE)


def _some_avg10(pressure: Pressure | None) -> float | None:
    return None if pressure is None or pressure.some is None else pressure.some.avg10


def collect_node(snapshot: Snapshot) -> Iterator[Family]:
    readings = snapshot.readings
    if readings.cpu is not None:
        yield CPU_UTILIZATION.value(readings.cpu.utilization_ratio)
    if readings.pressure is not None:
        yield CPU_PRESSURE.value(_some_avg10(readings.pressure.cpu))
        yield MEMORY_PRESSURE.value(_some_avg10(readings.pressure.memory))
    if readings.memory is not None:
        yield NODE_MEMORY_TOTAL.value(readings.memory.total_bytes)
        yield MEMORY_AVAILABLE.value(readings.memory.available_bytes)
    health = node_health_of(readings.cpu, readings.memory, readings.pressure)
    if health is not None:
        yield HEALTH_SCORE.value(health.score)


# gpu_*: each GPU by its index, and the memory of its processes, in the names of the node agent.
#
# Used memory is all memory that is not free, including what the driver reserves: used + free = total.

UTILIZATION = gauge("gpu_utilization_percent", "Percentage of time in which a GPU was busy.", "gpu_index")
MEMORY_USED = gauge(
    "gpu_memory_used_bytes", "Memory of a GPU that is not free, including what the driver reserves.", "gpu_index"
)
GPU_MEMORY_TOTAL = gauge("gpu_memory_total_bytes", "Memory of a GPU.", "gpu_index")
TEMPERATURE = gauge("gpu_temperature_celsius", "Temperature of a GPU.", "gpu_index")
POWER = gauge("gpu_power_draw_watts", "Power draw of a GPU.", "gpu_index")
PROCESS_MEMORY = gauge(
    "gpu_process_memory_bytes",
    'Memory of a GPU that a process uses, as reported by the driver; pid "overflow" is a sum.',
    "gpu_index",
    "pid",
)

_BY_GPU: tuple[tuple[Metric, Callable[[Gpu], float | None]], ...] = (
    (UTILIZATION, lambda gpu: gpu.readings.utilization_percent),
    (MEMORY_USED, lambda gpu: gpu.readings.memory_not_free_bytes),
    (GPU_MEMORY_TOTAL, lambda gpu: gpu.readings.memory_total_bytes),
    (TEMPERATURE, lambda gpu: gpu.readings.temperature_celsius),
    (POWER, lambda gpu: gpu.readings.power_watts),
)

GPUS_CATALOGUE = (*(metric for metric, _ in _BY_GPU), PROCESS_MEMORY)


def collect_gpus(snapshot: Snapshot) -> Iterator[Family]:
    if snapshot.readings.gpus is None:
        return
    gpus = [(str(gpu.identity.index), gpu) for gpu in snapshot.readings.gpus.present_gpus()]
    for metric, read in _BY_GPU:
        yield metric.of(((index,), value) for index, gpu in gpus if (value := read(gpu)) is not None)
    attribution = snapshot.readings.attribution
    beyond = processes_beyond_limit(() if attribution is None else attribution.processes)
    yield PROCESS_MEMORY.of(
        ((index, pid), used)
        for index, gpu in gpus
        for pid, used in _memory_by_pid(gpu, beyond.get(gpu.identity.uuid, ())).items()
    )


def _memory_by_pid(gpu: Gpu, beyond: Container[int]) -> dict[str, int]:
    """A process in two MIG instances has memory in both."""
    used: dict[str, int] = {}
    for process in gpu.processes or ():
        if process.used_memory_bytes is not None:
            pid = OVERFLOW if process.pid in beyond else pid_label(process.pid)
            used[pid] = used.get(pid, 0) + process.used_memory_bytes
    return used


CATALOGUE = (
    *CPU_CATALOGUE,
    *NODE_CATALOGUE,
    *GPUS_CATALOGUE,
)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    yield from collect_cpu(snapshot)
    yield from collect_node(snapshot)
    yield from collect_gpus(snapshot)


NODE = Dialect(
    catalogue=CATALOGUE,
    collect=collect,
    name="node",
    port=9100,
    summary="CPU, memory, pressure, processes and health of the host",
)
