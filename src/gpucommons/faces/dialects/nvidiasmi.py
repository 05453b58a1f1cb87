"""nvidia_smi_*: the names of nvidia_gpu_exporter, which runs nvidia-smi for each scrape.

A name is that of a field of nvidia-smi's query, with the unit in SI; the families after FIELDS are those that the
exporter's NVML backend adds. Values have nvidia-smi's resolution (whole MiB, hundredths of a watt), so that they are
equal. A field that the agent does not read is absent, and so are fields whose value is a text: the exporter serves the
digits in it as a number.
"""

from collections.abc import Callable, Iterator, Mapping

from gpucommons.faces.dialects.dialect import Dialect
from gpucommons.faces.dialects.series import OVERFLOW, pid_label, processes_beyond_limit
from gpucommons.faces.exposition.families import Family, Metric, Point, counter, gauge, sum_points
from gpucommons.model.gpu import GpmReading, Gpu, GpuProcess, MigInstance
from gpucommons.model.process_identity import ProcessKey
from gpucommons.model.snapshot import Snapshot

PORT = 9835
_PREFIX = "nvidia_smi_"
_MEBIBYTE = 1 << 20
_HZ_PER_MHZ = 1_000_000
_RATIO = 0.01
_COMPUTE = "compute"
_NOT_AVAILABLE = "[N/A]"

Value = float | None
Read = Callable[[Gpu], Value]


def _field(name: str, help: str, read: Read) -> tuple[Metric, Read]:
    return gauge(f"{_PREFIX}{name}", help, "uuid"), read


def _hertz(mhz: int | None) -> Value:
    return None if mhz is None else mhz * _HZ_PER_MHZ


def _ratio(percent: int | None) -> Value:
    return None if percent is None else percent * _RATIO


def _whole_mebibytes(size: int | None) -> Value:
    """Rounded up, as nvidia-smi does."""
    return None if size is None else -(-size // _MEBIBYTE) * _MEBIBYTE


def _watts(watts: float | None) -> Value:
    return None if watts is None else round(watts, 2)


def _reason(bit: int) -> Read:
    def read(gpu: Gpu) -> Value:
        mask = gpu.readings.throttle_mask
        return None if mask is None else int(bool(mask & bit))

    return read


_REASONS = (
    ("gpu_idle", 0x001, "the GPU is idle"),
    ("applications_clocks_setting", 0x002, "applications set lower clocks"),
    ("sw_power_cap", 0x004, "the power limit is reached"),
    ("hw_slowdown", 0x008, "the hardware slows down"),
    ("sync_boost", 0x010, "clocks of several GPUs are kept equal"),
    ("sw_thermal_slowdown", 0x020, "the driver slows down for heat"),
    ("hw_thermal_slowdown", 0x040, "the hardware slows down for heat"),
    ("hw_power_brake_slowdown", 0x080, "the power supply demands it"),
)

FIELDS: tuple[tuple[Metric, Read], ...] = (
    _field("index", "Number of the GPU.", lambda gpu: gpu.identity.index),
    _field(
        "compute_cap",
        "CUDA compute capability of the GPU.",
        lambda gpu: None if gpu.identity.compute_capability is None else float(gpu.identity.compute_capability),
    ),
    _field("clocks_current_graphics_clock_hz", "Graphics clock.", lambda gpu: _hertz(gpu.readings.clock_graphics_mhz)),
    _field("clocks_current_sm_clock_hz", "SM clock.", lambda gpu: _hertz(gpu.readings.clock_sm_mhz)),
    _field("clocks_current_memory_clock_hz", "Memory clock.", lambda gpu: _hertz(gpu.readings.clock_memory_mhz)),
    _field("clocks_current_video_clock_hz", "Video clock.", lambda gpu: _hertz(gpu.readings.clock_video_mhz)),
    _field(
        "clocks_max_graphics_clock_hz",
        "Maximum graphics clock.",
        lambda gpu: _hertz(gpu.identity.clock_graphics_max_mhz),
    ),
    _field("clocks_max_sm_clock_hz", "Maximum SM clock.", lambda gpu: _hertz(gpu.identity.clock_sm_max_mhz)),
    _field(
        "clocks_max_memory_clock_hz", "Maximum memory clock.", lambda gpu: _hertz(gpu.identity.clock_memory_max_mhz)
    ),
    _field(
        "clocks_event_reasons_active",
        "Reasons for reduced clocks, as the driver's bit mask.",
        lambda gpu: gpu.readings.throttle_mask,
    ),
    *(
        _field(f"clocks_event_reasons_{name}", f"Reduced clocks: 1 if {why}, else 0.", _reason(bit))
        for name, bit, why in _REASONS
    ),
    _field("compute_mode", "Compute mode, as a number of the driver.", lambda gpu: gpu.readings.compute_mode),
    _field(
        "ecc_errors_corrected_volatile_total",
        "Corrected memory errors since the driver was loaded.",
        lambda gpu: gpu.readings.ecc_corrected_volatile,
    ),
    _field(
        "ecc_errors_uncorrected_volatile_total",
        "Uncorrected memory errors since the driver was loaded.",
        lambda gpu: gpu.readings.ecc_uncorrected_volatile,
    ),
    _field(
        "ecc_errors_corrected_aggregate_total",
        "Corrected memory errors over the lifetime of the board.",
        lambda gpu: gpu.readings.ecc_corrected_aggregate,
    ),
    _field(
        "ecc_errors_uncorrected_aggregate_total",
        "Uncorrected memory errors over the lifetime of the board.",
        lambda gpu: gpu.readings.ecc_uncorrected_aggregate,
    ),
    _field("enforced_power_limit_watts", "Power limit in force.", lambda gpu: _watts(gpu.readings.power_limit_watts)),
    _field("fan_speed_ratio", "Fan speed, as a ratio of the maximum.", lambda gpu: _ratio(gpu.readings.fan_percent)),
    _field(
        "gpu_recovery_action",
        "Action that the driver recommends: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset.",
        lambda gpu: gpu.readings.recovery_action,
    ),
    _field("memory_free_bytes", "Free memory.", lambda gpu: _whole_mebibytes(gpu.readings.memory_free_bytes)),
    _field(
        "memory_reserved_bytes",
        "Memory that the driver reserves.",
        lambda gpu: _whole_mebibytes(gpu.readings.memory_reserved_bytes),
    ),
    _field("memory_total_bytes", "Memory of the GPU.", lambda gpu: _whole_mebibytes(gpu.readings.memory_total_bytes)),
    _field("memory_used_bytes", "Used memory.", lambda gpu: _whole_mebibytes(gpu.readings.memory_used_bytes)),
    _field(
        "mig_mode_current",
        "MIG mode: 1 if enabled, else 0.",
        lambda gpu: None if gpu.mig_enabled is None else int(gpu.mig_enabled),
    ),
    _field("pcie_link_gen_current", "PCIe generation in use.", lambda gpu: gpu.readings.pcie_generation),
    _field("pcie_link_gen_max", "Maximum PCIe generation.", lambda gpu: gpu.identity.pcie_generation_max),
    _field("pcie_link_width_current", "PCIe lanes in use.", lambda gpu: gpu.readings.pcie_width),
    _field("pcie_link_width_max", "Maximum number of PCIe lanes.", lambda gpu: gpu.identity.pcie_width_max),
    _field("persistence_mode", "Persistence mode: 1 if enabled, else 0.", lambda gpu: gpu.readings.persistence_mode),
    _field(
        "power_default_limit_watts",
        "Default power limit.",
        lambda gpu: _watts(gpu.identity.power_limit_default_watts),
    ),
    _field("power_draw_watts", "Power draw.", lambda gpu: _watts(gpu.readings.power_watts)),
    _field("power_limit_watts", "Power limit that was set.", lambda gpu: _watts(gpu.readings.power_limit_set_watts)),
    _field("power_max_limit_watts", "Highest power limit.", lambda gpu: _watts(gpu.identity.power_limit_max_watts)),
    _field("power_min_limit_watts", "Lowest power limit.", lambda gpu: _watts(gpu.identity.power_limit_min_watts)),
    _field("pstate", "Performance state: 0 is the fastest.", lambda gpu: gpu.readings.performance_state),
    _field(
        "remapped_rows_correctable",
        "Rows remapped for correctable errors.",
        lambda gpu: gpu.readings.remapped_rows_corrected,
    ),
    _field(
        "remapped_rows_uncorrectable",
        "Rows remapped for uncorrectable errors.",
        lambda gpu: gpu.readings.remapped_rows_uncorrected,
    ),
    _field(
        "remapped_rows_pending",
        "Pending row remapping: 1 if a reset is needed, else 0.",
        lambda gpu: gpu.readings.remapped_rows_pending,
    ),
    _field(
        "remapped_rows_failure",
        "Result of row remapping: 1 if it has failed, else 0.",
        lambda gpu: gpu.readings.remapped_rows_failed,
    ),
    _field(
        "retired_pages_single_bit_ecc_count",
        "Pages retired for single-bit errors.",
        lambda gpu: gpu.readings.retired_pages_single_bit,
    ),
    _field(
        "retired_pages_double_bit_count",
        "Pages retired for double-bit errors.",
        lambda gpu: gpu.readings.retired_pages_double_bit,
    ),
    _field(
        "retired_pages_pending",
        "Pending page retirement: 1 if pages wait to be retired, else 0.",
        lambda gpu: gpu.readings.retired_pages_pending,
    ),
    _field(
        "temperature_gpu", "Temperature of the GPU in degrees Celsius.", lambda gpu: gpu.readings.temperature_celsius
    ),
    _field(
        "temperature_memory",
        "Temperature of the memory in degrees Celsius.",
        lambda gpu: gpu.readings.memory_temperature_celsius,
    ),
    _field(
        "utilization_gpu_ratio", "Ratio of time the GPU was busy.", lambda g: _ratio(g.readings.utilization_percent)
    ),
    _field(
        "utilization_memory_ratio",
        "Ratio of time the memory was read or written.",
        lambda gpu: _ratio(gpu.readings.memory_utilization_percent),
    ),
    _field(
        "utilization_encoder_ratio", "Utilization of the encoder.", lambda gpu: _ratio(gpu.readings.encoder_percent)
    ),
    _field(
        "utilization_decoder_ratio", "Utilization of the decoder.", lambda gpu: _ratio(gpu.readings.decoder_percent)
    ),
    _field("utilization_jpeg_ratio", "Utilization of the JPEG engine.", lambda gpu: _ratio(gpu.readings.jpeg_percent)),
    _field(
        "utilization_ofa_ratio", "Utilization of the optical flow engine.", lambda gpu: _ratio(gpu.readings.ofa_percent)
    ),
)
COUNT = gauge(f"{_PREFIX}count", "GPUs of the node.", "uuid")
INFO = gauge(
    f"{_PREFIX}gpu_info",
    "Identity of a GPU; always 1.",
    *("uuid", "name", "driver_model_current", "driver_model_pending", "vbios_version", "driver_version", "pci_bus_id"),
    *("serial", "compute_cap", "pci_sub_device_id", "index", "cuda_version"),
)

ENERGY = counter(f"{_PREFIX}energy_joules_total", "Energy used since the driver was loaded.", "uuid")
PCIE_TX = gauge(f"{_PREFIX}pcie_throughput_tx_bytes_per_second", "PCIe data that the GPU sent.", "uuid")
PCIE_RX = gauge(f"{_PREFIX}pcie_throughput_rx_bytes_per_second", "PCIe data that the GPU received.", "uuid")

XID_ERRORS = counter(f"{_PREFIX}xid_errors_total", "XID errors since the agent started.", "uuid", "xid")
XID_LAST = gauge(
    f"{_PREFIX}xid_last_timestamp_seconds",
    "Time of the last XID error of a code since the agent started.",
    "uuid",
    "xid",
)

_APP = ("uuid", "pid", "process_name")
APP_INFO = gauge(f"{_PREFIX}compute_app_info", "Process with a compute context on a GPU; always 1.", *_APP)
APP_MEMORY = gauge(f"{_PREFIX}compute_app_used_memory_bytes", "GPU memory of a process.", *_APP)
APPS = gauge(f"{_PREFIX}compute_apps", "Processes with a compute context on a GPU.", "uuid")
APPS_SUCCESS = gauge(
    f"{_PREFIX}compute_apps_last_collect_success", "Result of listing the processes: 1 if all GPUs were read, else 0."
)

_INSTANCE = ("uuid", "gpu_instance_id")
MIG_INFO = gauge(
    f"{_PREFIX}mig_info",
    "Identity of a MIG device; always 1.",
    *_INSTANCE[:1],
    "mig_uuid",
    *_INSTANCE[1:],
    "compute_instance_id",
    "profile",
)
MIG_MEMORY: tuple[tuple[Metric, Callable[[MigInstance], Value]], ...] = (
    (
        gauge(f"{_PREFIX}mig_memory_total_bytes", "Memory of a GPU instance.", *_INSTANCE),
        lambda instance: None if instance.memory is None else instance.memory.total_bytes,
    ),
    (
        gauge(f"{_PREFIX}mig_memory_used_bytes", "Used memory of a GPU instance.", *_INSTANCE),
        lambda instance: None if instance.memory is None else instance.memory.used_bytes,
    ),
    (
        gauge(f"{_PREFIX}mig_memory_free_bytes", "Free memory of a GPU instance.", *_INSTANCE),
        lambda instance: None if instance.memory is None else instance.memory.free_bytes,
    ),
    (
        gauge(f"{_PREFIX}mig_memory_reserved_bytes", "Memory of a GPU instance that the driver reserves.", *_INSTANCE),
        lambda instance: None if instance.memory is None else instance.memory.reserved_bytes,
    ),
)


def _activity(
    name: str, help: str, read: Callable[[GpmReading], Value]
) -> tuple[Metric, Callable[[GpmReading], Value]]:
    return gauge(f"{_PREFIX}mig_{name}", help, *_INSTANCE), read


MIG_ACTIVITY: tuple[tuple[Metric, Callable[[GpmReading], Value]], ...] = (
    _activity("graphics_activity_ratio", "Activity of a GPU instance's engines.", lambda gpm: gpm.graphics_ratio),
    _activity("sm_activity_ratio", "Activity of a GPU instance's SMs.", lambda gpm: gpm.sm_ratio),
    _activity("sm_occupancy_ratio", "Occupancy of a GPU instance's SMs.", lambda gpm: gpm.sm_occupancy_ratio),
    _activity("tensor_activity_ratio", "Activity of a GPU instance's tensor pipes.", lambda gpm: gpm.tensor_ratio),
    _activity(
        "pcie_throughput_tx_bytes_per_second",
        "PCIe data that a GPU instance sent.",
        lambda gpm: gpm.pcie_tx_bytes_per_s,
    ),
    _activity(
        "pcie_throughput_rx_bytes_per_second",
        "PCIe data that a GPU instance received.",
        lambda gpm: gpm.pcie_rx_bytes_per_s,
    ),
)

FAILED = counter(f"{_PREFIX}failed_scrapes_total", "Reads of the GPUs that failed.")
SUCCESS = gauge(f"{_PREFIX}last_collect_success", "Result of the last read of the GPUs: 1 if it succeeded, else 0.")
SUCCESS_TIME = gauge(f"{_PREFIX}last_collect_success_timestamp_seconds", "Time of the last successful read.")
DURATION = gauge(f"{_PREFIX}last_collect_duration_seconds", "Duration of the last read of the GPUs.")

CATALOGUE = (
    *(metric for metric, _ in FIELDS),
    *(COUNT, INFO, ENERGY, PCIE_TX, PCIE_RX, XID_ERRORS, XID_LAST, APP_INFO, APP_MEMORY, APPS, APPS_SUCCESS, MIG_INFO),
    *(metric for metric, _ in MIG_MEMORY),
    *(metric for metric, _ in MIG_ACTIVITY),
    *(FAILED, SUCCESS, SUCCESS_TIME, DURATION),
)


def normalize_uuid(uuid: str) -> str:
    """As in the exporter's labels: lower case, without GPU- or MIG-."""
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")


def collect(snapshot: Snapshot) -> Iterator[Family]:
    yield from _health(snapshot)
    reading = snapshot.readings.gpus
    if reading is None:
        return
    yield from _xids([(normalize_uuid(gpu.identity.uuid), gpu) for gpu in reading.gpus])
    gpus = [(normalize_uuid(gpu.identity.uuid), gpu) for gpu in reading.present_gpus()]
    for metric, read in (*FIELDS, (PCIE_TX, _pcie_tx), (PCIE_RX, _pcie_rx), (ENERGY, _joules)):
        yield metric.of(((uuid,), value) for uuid, gpu in gpus if (value := read(gpu)) is not None)
    yield COUNT.of(((uuid,), len(gpus)) for uuid, _ in gpus)
    yield INFO.of((_info(uuid, gpu, reading.driver_version, reading.cuda_version), 1) for uuid, gpu in gpus)
    yield from _mig(gpus)
    yield from _apps(gpus, snapshot)


def _pcie_tx(gpu: Gpu) -> Value:
    return gpu.pcie_tx_bytes_per_s


def _pcie_rx(gpu: Gpu) -> Value:
    return gpu.pcie_rx_bytes_per_s


def _joules(gpu: Gpu) -> Value:
    energy = gpu.readings.energy_millijoules
    return None if energy is None else energy / 1000


def _health(snapshot: Snapshot) -> Iterator[Family]:
    state = snapshot.sources.get("nvml")
    if state is None:
        return
    yield FAILED.value(sum(state.failures.values()))
    yield SUCCESS.value(int(state.up))
    yield SUCCESS_TIME.value(None if state.last_success_wall_s is None else int(state.last_success_wall_s))
    yield DURATION.value(state.duration_s)


def _info(uuid: str, gpu: Gpu, driver_version: str, cuda_version: str) -> tuple[str, ...]:
    identity = gpu.identity
    subsystem = identity.pci_subsystem_id
    return (
        uuid,
        identity.name,
        # Only Windows has driver models.
        _NOT_AVAILABLE,
        _NOT_AVAILABLE,
        identity.vbios_version or _NOT_AVAILABLE,
        driver_version,
        identity.pci_bus_id,
        identity.serial or _NOT_AVAILABLE,
        identity.compute_capability or _NOT_AVAILABLE,
        _NOT_AVAILABLE if subsystem is None else f"0x{subsystem:08X}",
        str(identity.index),
        cuda_version,
    )


def _xids(gpus: list[tuple[str, Gpu]]) -> Iterator[Family]:
    yield XID_ERRORS.of(
        ((uuid, str(code)), number) for uuid, gpu in gpus for code, number in sorted(gpu.xid.counts.items())
    )
    yield XID_LAST.of(point for uuid, gpu in gpus for point in _last_xids(uuid, gpu))


def _last_xids(uuid: str, gpu: Gpu) -> Iterator[Point]:
    """By the second, for codes of the last hour and the last code."""
    last: dict[int, float] = {}
    for second, code in gpu.xid.recent:
        last[code] = max(last.get(code, 0), second)
    if gpu.xid.last_code is not None and gpu.xid.last_wall_s is not None:
        last[gpu.xid.last_code] = gpu.xid.last_wall_s
    for code, wall_s in sorted(last.items()):
        yield (uuid, str(code)), wall_s


def _mig(gpus: list[tuple[str, Gpu]]) -> Iterator[Family]:
    yield MIG_INFO.of(
        (
            (
                uuid,
                normalize_uuid(instance.uuid),
                str(instance.gpu_instance_id),
                str(instance.compute_instance_id),
                instance.profile,
            ),
            1,
        )
        for uuid, gpu in gpus
        for instance in gpu.mig
    )
    instances = [
        ((uuid, str(instance.gpu_instance_id)), instance) for uuid, gpu in gpus for instance in gpu.gpu_instances()
    ]
    for metric, read in MIG_MEMORY:
        yield metric.of((labels, value) for labels, instance in instances if (value := read(instance)) is not None)
    for metric, pick in MIG_ACTIVITY:
        yield metric.of(
            (labels, value)
            for labels, instance in instances
            if instance.gpm is not None and (value := pick(instance.gpm)) is not None
        )


def _apps(gpus: list[tuple[str, Gpu]], snapshot: Snapshot) -> Iterator[Family]:
    """Processes beyond the limit of their owner share one series, as in the gpucommons dialect."""
    readings = snapshot.readings
    commands = {} if readings.command_lines is None else readings.command_lines.by_key
    beyond = processes_beyond_limit(() if readings.attribution is None else readings.attribution.processes)
    rows: list[tuple[tuple[str, str, str], GpuProcess]] = []
    counts: dict[str, int] = {}
    for uuid, gpu in gpus:
        if gpu.processes is None:
            continue
        compute = [process for process in gpu.processes if process.kind == _COMPUTE]
        counts[uuid] = len(compute)
        hidden = beyond.get(gpu.identity.uuid, ())
        rows += [
            ((uuid, OVERFLOW, OVERFLOW), process)
            if process.pid in hidden
            else ((uuid, pid_label(process.pid), _name(process, commands)), process)
            for process in compute
        ]
    yield APP_INFO.of((labels, 1) for labels in dict.fromkeys(labels for labels, _ in rows))
    yield APP_MEMORY.of(
        sum_points(
            (labels, used)
            for labels, process in rows
            if (used := _whole_mebibytes(process.used_memory_bytes)) is not None
        )
    )
    yield APPS.of(((uuid,), number) for uuid, number in counts.items())
    yield APPS_SUCCESS.value(int(len(counts) == len(gpus)))


def _name(process: GpuProcess, commands: Mapping[ProcessKey, tuple[str, ...]]) -> str:
    """The first word of the command line, as nvidia-smi shows it."""
    command = commands.get(process.key, ()) if process.key is not None else ()
    return command[0] if command else "[Not Found]"


NVIDIASMI = Dialect(
    name="nvidiasmi",
    port=PORT,
    summary="GPUs in the names of nvidia_gpu_exporter, without nvidia-smi",
    catalogue=CATALOGUE,
    collect=collect,
    # The values of the dcgm and gpucommons dialects again, under other names.
    on_main=False,
)
