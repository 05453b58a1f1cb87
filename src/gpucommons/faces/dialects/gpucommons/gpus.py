"""gpucommons_gpu_* and gpucommons_nvml_*: the GPUs, their parts, and the driver's library."""

from collections.abc import Callable, Container, Iterable, Iterator
from functools import lru_cache

from gpucommons.faces.dialects.series import OVERFLOW, pid_label, processes_beyond_limit
from gpucommons.faces.exposition.families import Family, LabelValues, Metric, Point, counter, gauge
from gpucommons.model.gpu import THROTTLE_REASONS, GpmReading, Gpu, GpuReading, MigInstance
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.health import XID_RECENT_S, gpu_health_of

# gpucommons_gpu_*: what no other dialect has of a GPU: presence, health, XIDs, throttle reasons, limits.

_GPU = ("gpu", "uuid")
_MHZ = 1_000_000
_KIBIBYTE = 1024
_NS_PER_S = 1e9

UP = gauge("gpucommons_gpu_up", "Presence of a GPU: 1 if it answers, 0 if it is lost.", *_GPU, "pci_bus_id")
SINCE = gauge("gpucommons_gpu_state_since_timestamp_seconds", "Unix time at which a GPU came up or was lost.", *_GPU)
EXPECTED = gauge("gpucommons_gpus_expected", "Number of GPUs that were seen or counted since the agent started.")
PRESENT = gauge("gpucommons_gpus_present", "Number of GPUs that answer now.")
GPU_INFO = gauge(
    "gpucommons_gpu_info",
    "Identity of a GPU, as labels; always 1.",
    *_GPU,
    "pci_bus_id",
    "name",
    "serial",
    "architecture",
    "compute_capability",
    "vbios_version",
    optional=("serial", "architecture", "compute_capability", "vbios_version"),
)
HEALTH = gauge("gpucommons_gpu_health", "Health of a GPU: 0 ok, 1 warning, 2 critical, 3 lost.", *_GPU)
PROBLEM = gauge("gpucommons_gpu_health_problem", "Reason why a GPU is not ok; 1 while it holds.", *_GPU, "problem")
XIDS = counter("gpucommons_gpu_xid_errors_total", "Number of XID errors since the agent started.", *_GPU, "xid")
LAST_XID = gauge("gpucommons_gpu_last_xid", "Code of the last XID error since the agent started.", *_GPU)
LAST_XID_TIME = gauge("gpucommons_gpu_last_xid_timestamp_seconds", "Unix time of the last XID error.", *_GPU)
XID_PROGRAM = gauge(
    "gpucommons_gpu_xid_program_timestamp_seconds",
    "Unix time of the last XID error that hit a program, of the last 10 minutes.",
    *_GPU,
    "xid",
    "program",
    "pid",
    "user",
    optional=("user",),
)
EVENTS = counter("gpucommons_gpu_critical_events_total", "Number of critical events other than XIDs.", *_GPU, "event")
THROTTLE = gauge(
    "gpucommons_gpu_throttle_reason_active", "Reason for lower clocks: 1 if it holds now, else 0.", *_GPU, "reason"
)
VIOLATION = counter("gpucommons_gpu_violation_seconds_total", "Time with lowered clocks, by cause.", *_GPU, "cause")
RESERVED = gauge("gpucommons_gpu_memory_reserved_bytes", "Memory that the driver reserves for itself.", *_GPU)
POWER_LIMIT = gauge(
    "gpucommons_gpu_power_limit_watts", "Power limits: enforced, default, minimum, maximum.", *_GPU, "limit"
)
TEMPERATURE_LIMIT = gauge(
    "gpucommons_gpu_temperature_limit_celsius", "Temperatures of slowdown and shutdown.", *_GPU, "limit"
)
CLOCK = gauge("gpucommons_gpu_clock_hertz", "Clocks of a GPU.", *_GPU, "clock")
ENGINE = gauge("gpucommons_gpu_engine_utilization_ratio", "Share of time with a busy engine, 0 to 1.", *_GPU, "engine")
FAN = gauge("gpucommons_gpu_fan_ratio", "Intended speed of the fan as a share of its maximum, 0 to 1.", *_GPU)
PERFORMANCE_STATE = gauge("gpucommons_gpu_performance_state", "Performance state, 0 (fastest) to 15 (slowest).", *_GPU)
PERSISTENCE = gauge("gpucommons_gpu_persistence_mode", "Persistence mode: 1 if enabled, else 0.", *_GPU)
COMPUTE_MODE = gauge("gpucommons_gpu_compute_mode", "Compute mode: 0 default, 2 prohibited, 3 exclusive.", *_GPU)
PCIE_GENERATION = gauge("gpucommons_gpu_pcie_generation", "PCIe generation, current and maximum.", *_GPU, "which")
PCIE_WIDTH = gauge("gpucommons_gpu_pcie_lanes", "Number of PCIe lanes, current and maximum.", *_GPU, "which")
REMAP_PENDING = gauge(
    "gpucommons_gpu_row_remap_pending", "Memory rows to remap at the next reset: 1 if any, else 0.", *_GPU
)
RECOVERY = gauge(
    "gpucommons_gpu_recovery_action", "Requested recovery: 0 none, 1 reset, 2 reboot, 3 or 4 drain.", *_GPU
)
NVLINKS = gauge("gpucommons_gpu_nvlinks_active", "Number of NVLinks that are up.", *_GPU)
NVLINK_ERRORS = counter("gpucommons_gpu_nvlink_errors_total", "Number of errors on NVLinks, by kind.", *_GPU, "kind")
NVLINK_BYTES = counter(
    "gpucommons_gpu_nvlink_bytes_total", "Bytes sent and received on all NVLinks.", *_GPU, "direction"
)

Value = float | None

_ONE: tuple[tuple[Metric, Callable[[Gpu], Value]], ...] = (
    (RESERVED, lambda gpu: gpu.readings.memory_reserved_bytes),
    (FAN, lambda gpu: _scale(gpu.readings.fan_percent, 0.01)),
    (PERFORMANCE_STATE, lambda gpu: gpu.readings.performance_state),
    (PERSISTENCE, lambda gpu: gpu.readings.persistence_mode),
    (COMPUTE_MODE, lambda gpu: gpu.readings.compute_mode),
    (REMAP_PENDING, lambda gpu: gpu.readings.remapped_rows_pending),
    (RECOVERY, lambda gpu: gpu.readings.recovery_action),
    (NVLINKS, lambda gpu: gpu.readings.nvlinks_active),
)

# Families with one more label: each value of that label, and its reading.
_SEVERAL: tuple[tuple[Metric, tuple[tuple[str, Callable[[Gpu], Value]], ...]], ...] = (
    (
        VIOLATION,
        (
            ("power", lambda gpu: _scale(gpu.readings.power_violation_ns, 1 / _NS_PER_S)),
            ("thermal", lambda gpu: _scale(gpu.readings.thermal_violation_ns, 1 / _NS_PER_S)),
            ("sync_boost", lambda gpu: _scale(gpu.readings.sync_boost_violation_ns, 1 / _NS_PER_S)),
            ("board_limit", lambda gpu: _scale(gpu.readings.board_limit_violation_ns, 1 / _NS_PER_S)),
            ("low_utilization", lambda gpu: _scale(gpu.readings.low_utilization_violation_ns, 1 / _NS_PER_S)),
            ("reliability", lambda gpu: _scale(gpu.readings.reliability_violation_ns, 1 / _NS_PER_S)),
        ),
    ),
    (
        POWER_LIMIT,
        (
            ("enforced", lambda gpu: gpu.readings.power_limit_watts),
            ("default", lambda gpu: gpu.identity.power_limit_default_watts),
            ("min", lambda gpu: gpu.identity.power_limit_min_watts),
            ("max", lambda gpu: gpu.identity.power_limit_max_watts),
        ),
    ),
    (
        TEMPERATURE_LIMIT,
        (
            ("slowdown", lambda gpu: gpu.identity.temperature_slowdown_celsius),
            ("shutdown", lambda gpu: gpu.identity.temperature_shutdown_celsius),
        ),
    ),
    (
        CLOCK,
        (
            ("graphics", lambda gpu: _scale(gpu.readings.clock_graphics_mhz, _MHZ)),
            ("sm", lambda gpu: _scale(gpu.readings.clock_sm_mhz, _MHZ)),
            ("memory", lambda gpu: _scale(gpu.readings.clock_memory_mhz, _MHZ)),
            ("video", lambda gpu: _scale(gpu.readings.clock_video_mhz, _MHZ)),
            ("sm_max", lambda gpu: _scale(gpu.identity.clock_sm_max_mhz, _MHZ)),
            ("memory_max", lambda gpu: _scale(gpu.identity.clock_memory_max_mhz, _MHZ)),
        ),
    ),
    (
        ENGINE,
        (
            ("jpeg", lambda gpu: _scale(gpu.readings.jpeg_percent, 0.01)),
            ("ofa", lambda gpu: _scale(gpu.readings.ofa_percent, 0.01)),
        ),
    ),
    (
        PCIE_GENERATION,
        (
            ("current", lambda gpu: gpu.readings.pcie_generation),
            ("max", lambda gpu: gpu.identity.pcie_generation_max),
        ),
    ),
    (
        PCIE_WIDTH,
        (
            ("current", lambda gpu: gpu.readings.pcie_width),
            ("max", lambda gpu: gpu.identity.pcie_width_max),
        ),
    ),
    (
        NVLINK_BYTES,
        (
            ("sent", lambda gpu: _scale(gpu.readings.nvlink_tx_kibibytes, _KIBIBYTE)),
            ("received", lambda gpu: _scale(gpu.readings.nvlink_rx_kibibytes, _KIBIBYTE)),
        ),
    ),
    (
        NVLINK_ERRORS,
        (
            ("replay", lambda gpu: gpu.readings.nvlink_replays),
            ("recovery", lambda gpu: gpu.readings.nvlink_recoveries),
            ("crc_flit", lambda gpu: gpu.readings.nvlink_crc_flit_errors),
            ("crc_data", lambda gpu: gpu.readings.nvlink_crc_data_errors),
        ),
    ),
)

GPUS_CATALOGUE = (
    UP,
    SINCE,
    EXPECTED,
    PRESENT,
    GPU_INFO,
    HEALTH,
    PROBLEM,
    XIDS,
    LAST_XID,
    LAST_XID_TIME,
    XID_PROGRAM,
    EVENTS,
    THROTTLE,
    *(metric for metric, _ in _ONE),
    *(metric for metric, _ in _SEVERAL),
)


def _scale(value: Value, factor: float) -> Value:
    return None if value is None else value * factor


def _labels(gpu: Gpu) -> tuple[str, str]:
    return str(gpu.identity.index), gpu.identity.uuid


def collect_gpus(snapshot: Snapshot) -> Iterator[Family]:
    reading = snapshot.readings.gpus
    if reading is None:
        return
    yield EXPECTED.value(reading.expected)
    yield PRESENT.value(reading.present)
    yield from _of_all(reading, snapshot.wall_s)
    hit = snapshot.readings.xid_programs
    yield XID_PROGRAM.of(
        (
            (
                str(program.gpu_index),
                program.gpu_uuid,
                str(program.code),
                program.program,
                str(program.pid),
                program.user,
            ),
            program.wall_s,
        )
        for program in (hit.programs if hit else ())
        if snapshot.wall_s - program.wall_s <= XID_RECENT_S
    )
    present = [(_labels(gpu), gpu) for gpu in reading.present_gpus()]
    yield THROTTLE.of(_throttle_points(present))
    for metric, read in _ONE:
        yield metric.of((labels, value) for labels, gpu in present if (value := read(gpu)) is not None)
    for metric, choices in _SEVERAL:
        yield metric.of(
            ((*labels, name), value)
            for labels, gpu in present
            for name, read in choices
            if (value := read(gpu)) is not None
        )


def _of_all(reading: GpuReading, now_wall_s: float) -> Iterator[Family]:
    """The families that include lost GPUs."""
    gpus = [(_labels(gpu), gpu) for gpu in reading.gpus]
    yield UP.of(((*labels, gpu.identity.pci_bus_id), int(gpu.up)) for labels, gpu in gpus)
    yield SINCE.of((labels, gpu.since_wall_s) for labels, gpu in gpus)
    yield GPU_INFO.of(((*labels, *_info(gpu)), 1) for labels, gpu in gpus)
    healths = [(labels, gpu_health_of(gpu, now_wall_s)) for labels, gpu in gpus]
    yield HEALTH.of((labels, int(health.level)) for labels, health in healths)
    yield PROBLEM.of(((*labels, reason.name), 1) for labels, health in healths for reason in health.reasons)
    yield XIDS.of(((*labels, str(code)), n) for labels, gpu in gpus for code, n in sorted(gpu.xid.counts.items()))
    yield LAST_XID.of((labels, code) for labels, gpu in gpus if (code := gpu.xid.last_code) is not None)
    yield LAST_XID_TIME.of((labels, at) for labels, gpu in gpus if (at := gpu.xid.last_wall_s) is not None)
    yield EVENTS.of(((*labels, event), n) for labels, gpu in gpus for event, n in sorted(gpu.xid.events.items()))


def _info(gpu: Gpu) -> LabelValues:
    identity = gpu.identity
    return (
        identity.pci_bus_id,
        identity.name,
        identity.serial or "",
        identity.architecture or "",
        identity.compute_capability or "",
        identity.vbios_version or "",
    )


def _throttle_points(gpus: Iterable[tuple[LabelValues, Gpu]]) -> Iterator[Point]:
    for labels, gpu in gpus:
        mask = gpu.readings.throttle_mask
        if mask is not None:
            for bit, reason in THROTTLE_REASONS:
                yield (*labels, reason), int(bool(mask & bit))


# gpucommons_gpu_mig_*, _pipe_*, _process_*: MIG devices, pipes and processes of a GPU.

MIG_ENABLED = gauge("gpucommons_gpu_mig_enabled", "MIG mode: 1 if enabled, 0 if disabled.", *_GPU)
MIG_DEVICE = gauge(
    "gpucommons_gpu_mig_device_info",
    "Identity of a MIG device: profile, instances and placement in memory slices; always 1.",
    *_GPU,
    "mig_uuid",
    "profile",
    "gpu_instance",
    "compute_instance",
    "placement_start",
    "placement_size",
    optional=("placement_start", "placement_size"),
)
MIG_SLICES = gauge(
    "gpucommons_gpu_mig_compute_slices", "Number of compute slices of a MIG device.", *_GPU, "mig_uuid", "gpu_instance"
)
MIG_MULTIPROCESSORS = gauge(
    "gpucommons_gpu_mig_multiprocessors",
    "Number of multiprocessors of a MIG device.",
    *_GPU,
    "mig_uuid",
    "gpu_instance",
)
MIG_MEMORY = gauge(
    "gpucommons_gpu_mig_memory_bytes",
    "Memory of a GPU instance (total, used, free), which its compute instances share.",
    *_GPU,
    "gpu_instance",
    "profile",
    "which",
)
PIPE = gauge(
    "gpucommons_gpu_pipe_active_ratio",
    "Share of cycles in which a pipe of a GPU or of a GPU instance was active, 0 to 1.",
    *_GPU,
    "gpu_instance",
    "pipe",
    optional=("gpu_instance",),
)
PROCESS = gauge(
    "gpucommons_gpu_process_utilization_ratio",
    'Share of the SM, memory, encoder or decoder time of a GPU that a process used, 0 to 1; pid "overflow" is a sum.',
    *_GPU,
    "pid",
    "engine",
)

GPU_PARTS_CATALOGUE = (MIG_ENABLED, MIG_DEVICE, MIG_SLICES, MIG_MULTIPROCESSORS, MIG_MEMORY, PIPE, PROCESS)

# The pipes for which DCGM has no separate names.
_PIPES: tuple[tuple[str, Callable[[GpmReading], float | None]], ...] = (
    ("integer", lambda gpm: gpm.integer_ratio),
    ("tensor_double", lambda gpm: gpm.tensor_double_ratio),
    ("tensor_half", lambda gpm: gpm.tensor_half_ratio),
    ("tensor_integer", lambda gpm: gpm.tensor_integer_ratio),
)
_ENGINES = ("sm", "memory", "encoder", "decoder")


def collect_gpu_parts(snapshot: Snapshot) -> Iterator[Family]:
    reading = snapshot.readings.gpus
    if reading is None:
        return
    gpus = [((str(gpu.identity.index), gpu.identity.uuid), gpu) for gpu in reading.present_gpus()]
    devices = [(labels, instance) for labels, gpu in gpus for instance in gpu.mig]
    yield MIG_ENABLED.of((labels, int(gpu.mig_enabled)) for labels, gpu in gpus if gpu.mig_enabled is not None)
    yield MIG_DEVICE.of(((*labels, *_device(instance)), 1) for labels, instance in devices)
    for metric, size in ((MIG_SLICES, "compute_slices"), (MIG_MULTIPROCESSORS, "multiprocessors")):
        yield _by_device(metric, devices, size)
    yield MIG_MEMORY.of(point for labels, gpu in gpus for point in _memory(labels, gpu))
    yield PIPE.of(point for labels, gpu in gpus for point in _pipes(labels, gpu))
    attribution = snapshot.readings.attribution
    beyond = processes_beyond_limit(() if attribution is None else attribution.processes)
    yield PROCESS.of(point for labels, gpu in gpus for point in _processes(labels, gpu, beyond.get(labels[1], ())))


def _device(instance: MigInstance) -> tuple[str, ...]:
    start, size = instance.placement_start, instance.placement_size
    return (
        instance.uuid,
        instance.profile,
        str(instance.gpu_instance_id),
        str(instance.compute_instance_id),
        "" if start is None else str(start),
        "" if size is None else str(size),
    )


def _by_device(metric: Metric, devices: list[tuple[tuple[str, str], MigInstance]], size: str) -> Family:
    return metric.of(
        ((*labels, device.uuid, str(device.gpu_instance_id)), getattr(device, size)) for labels, device in devices
    )


def _memory(labels: tuple[str, str], gpu: Gpu) -> Iterator[Point]:
    for instance in gpu.gpu_instances():
        names = (*labels, str(instance.gpu_instance_id), instance.gpu_instance_profile)
        if instance.memory is None:
            yield (*names, "total"), instance.memory_bytes
        else:
            yield (*names, "total"), instance.memory.total_bytes
            yield (*names, "used"), instance.memory.used_bytes
            yield (*names, "free"), instance.memory.free_bytes


def _pipes(labels: tuple[str, str], gpu: Gpu) -> Iterator[Point]:
    parts = [("", gpu.gpm), *((str(i.gpu_instance_id), i.gpm) for i in gpu.gpu_instances())]
    for instance, gpm in parts:
        for name, read in _PIPES:
            value = None if gpm is None else read(gpm)
            if value is not None:
                yield (*labels, instance, name), value


@lru_cache(maxsize=101)
def _ratio(percent: int) -> float:
    """The same object for the same percentage: a node may have tens of thousands of these series."""
    return percent / 100


def _processes(labels: tuple[str, str], gpu: Gpu, beyond: Container[int]) -> list[Point]:
    """One series per process: the driver measures its utilisation of the whole GPU, not of an instance."""
    index, uuid = labels
    seen: set[int] = set()
    points: list[Point] = []
    overflow: list[tuple[int | None, ...]] = []
    for process in gpu.processes or ():
        if process.pid in seen:
            continue
        seen.add(process.pid)
        percents = (process.sm_percent, process.memory_percent, process.encoder_percent, process.decoder_percent)
        if process.pid in beyond:
            overflow.append(percents)
            continue
        pid = pid_label(process.pid)
        for engine, percent in zip(_ENGINES, percents, strict=True):
            if percent is not None:
                points.append(((index, uuid, pid, engine), _ratio(percent)))
    for engine, column in zip(_ENGINES, zip(*overflow, strict=True), strict=False):
        present = [percent for percent in column if percent is not None]
        if present:
            points.append(((index, uuid, OVERFLOW, engine), sum(present) / 100))
    return points


# gpucommons_nvml_*: how the driver is read: versions, sessions, slow calls, dropped samples and failures.

NVML_INFO = gauge(
    "gpucommons_nvml_info",
    "Versions of the driver, NVML and CUDA; always 1.",
    "driver_version",
    "nvml_version",
    "cuda_version",
)
CONNECTIONS = counter(
    "gpucommons_nvml_connections_total",
    "Sessions opened with the driver, including those opened to rescan the devices.",
)
MOVES = counter(
    "gpucommons_nvml_lane_moves_total",
    "Moves of driver calls between the fast and the slow lane because of their cost.",
    "uuid",
    "call",
    "lane",
)
SLOW = gauge(
    "gpucommons_nvml_slow_call",
    "Driver call that runs every 15 s instead of every second because it is slow; always 1.",
    "uuid",
    "call",
)
DROPPED = counter(
    "gpucommons_nvml_samples_dropped_total",
    "Values from the driver dropped as impossible (too high, from the future, stale), by reason.",
    "uuid",
    "reason",
)
FAILURES = counter(
    "gpucommons_nvml_call_failures_total",
    "Driver calls that failed for a reason other than missing support.",
    "call",
    "code",
)

NVML_CATALOGUE = (NVML_INFO, CONNECTIONS, MOVES, SLOW, DROPPED, FAILURES)


def collect_nvml(snapshot: Snapshot) -> Iterator[Family]:
    reading = snapshot.readings.gpus
    if reading is None:
        return
    yield NVML_INFO.value(1, reading.driver_version, reading.nvml_version, reading.cuda_version)
    yield CONNECTIONS.value(reading.connections)
    yield MOVES.of((tuple(move), count) for move, count in reading.lane_moves.items())
    yield SLOW.of(((move.uuid, move.call), 1) for move in reading.slow_calls)
    yield DROPPED.of(reading.samples_dropped.items())
    yield FAILURES.of(reading.call_failures.items())


CATALOGUE = (
    *GPUS_CATALOGUE,
    *GPU_PARTS_CATALOGUE,
    *NVML_CATALOGUE,
)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    yield from collect_gpus(snapshot)
    yield from collect_gpu_parts(snapshot)
    yield from collect_nvml(snapshot)
