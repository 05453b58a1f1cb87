"""DCGM_FI_*: the names of dcgm-exporter's default set, without DCGM. What NVML cannot tell is absent.

A GPU that is split by MIG has its framebuffer and its PROF figures once per GPU instance, with GPU_I_PROFILE and
GPU_I_ID; what belongs to the whole board (power, temperature, clocks, errors) is there once, so that sums are right.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from gpucommons.dialects.dialect import Dialect
from gpucommons.exposition.families import Family, LabelValues, Metric, Point, counter, gauge
from gpucommons.model.gpu import GpmReading, Gpu, MigInstance
from gpucommons.model.ownership import Place
from gpucommons.model.pod_placement import PodLabels, dcgm_pod_labels, pods_by_place
from gpucommons.model.snapshot import Snapshot

PORT = 9400

_LABELS = (
    "gpu",
    "UUID",
    "pci_bus_id",
    "device",
    "modelName",
    "GPU_I_PROFILE",
    "GPU_I_ID",
    "hostname",
    "Hostname",
    "DCGM_FI_DRIVER_VERSION",
    "container",
    "namespace",
    "pod",
)
_OPTIONAL = ("GPU_I_PROFILE", "GPU_I_ID", "Hostname", "container", "namespace", "pod")
_KILOBYTE = 1000
_MEBIBYTE_SHIFT = 20

Value = float | None
T = TypeVar("T")


def _gauge(name: str, help: str) -> Metric:
    return gauge(f"DCGM_FI_{name}", help, *_LABELS, optional=_OPTIONAL)


def _counter(name: str, help: str) -> Metric:
    return counter(f"DCGM_FI_{name}", help, *_LABELS, optional=_OPTIONAL)


def _mebibytes(count: int | None) -> Value:
    return None if count is None else count >> _MEBIBYTE_SHIFT


def _kilobytes(rate: Value) -> Value:
    return None if rate is None else rate / _KILOBYTE


def _nvlink_total(gpu: Gpu) -> Value:
    sent, received = gpu.readings.nvlink_tx_kibibytes, gpu.readings.nvlink_rx_kibibytes
    return None if sent is None or received is None else sent + received


def _last_xid(gpu: Gpu) -> Value:
    """0 is a measured none: the events are watched and there was no XID."""
    return (gpu.xid.last_code or 0) if gpu.xid.watched else None


XID_ERRORS = _gauge("DEV_XID_ERRORS", "Code of the last XID error since the agent started; 0 if there was none.")

# Of the board as a whole.
_BOARD: tuple[tuple[Metric, Callable[[Gpu], Value]], ...] = (
    (_gauge("DEV_SM_CLOCK", "SM clock frequency (in MHz)."), lambda gpu: gpu.readings.clock_sm_mhz),
    (_gauge("DEV_MEM_CLOCK", "Memory clock frequency (in MHz)."), lambda gpu: gpu.readings.clock_memory_mhz),
    (_gauge("DEV_MEMORY_TEMP", "Memory temperature (in C)."), lambda gpu: gpu.readings.memory_temperature_celsius),
    (_gauge("DEV_GPU_TEMP", "GPU temperature (in C)."), lambda gpu: gpu.readings.temperature_celsius),
    (_gauge("DEV_POWER_USAGE", "Power draw (in W)."), lambda gpu: gpu.readings.power_watts),
    (
        _counter("DEV_TOTAL_ENERGY_CONSUMPTION", "Energy since the driver was loaded (in mJ)."),
        lambda gpu: gpu.readings.energy_millijoules,
    ),
    (
        _gauge("DEV_PCIE_TX_THROUGHPUT", "PCIe data sent (in KB/s)."),
        lambda gpu: _kilobytes(gpu.pcie_tx_bytes_per_s),
    ),
    (
        _gauge("DEV_PCIE_RX_THROUGHPUT", "PCIe data received (in KB/s)."),
        lambda gpu: _kilobytes(gpu.pcie_rx_bytes_per_s),
    ),
    (_counter("DEV_PCIE_REPLAY_COUNTER", "PCIe retries."), lambda gpu: gpu.readings.pcie_replays),
    (_gauge("DEV_GPU_UTIL", "GPU utilization (in %)."), lambda gpu: gpu.readings.utilization_percent),
    (
        _gauge("DEV_MEM_COPY_UTIL", "Memory utilization (in %)."),
        lambda gpu: gpu.readings.memory_utilization_percent,
    ),
    (_gauge("DEV_ENC_UTIL", "Encoder utilization (in %)."), lambda gpu: gpu.readings.encoder_percent),
    (_gauge("DEV_DEC_UTIL", "Decoder utilization (in %)."), lambda gpu: gpu.readings.decoder_percent),
    (
        _counter("DEV_POWER_VIOLATION", "Time that clocks were held down for power (in ns)."),
        lambda gpu: gpu.readings.power_violation_ns,
    ),
    (
        _counter("DEV_THERMAL_VIOLATION", "Time that clocks were held down for heat (in ns)."),
        lambda gpu: gpu.readings.thermal_violation_ns,
    ),
    (
        _counter("DEV_ECC_SBE_VOL_TOTAL", "Single-bit ECC errors since the driver was loaded."),
        lambda gpu: gpu.readings.ecc_corrected_volatile,
    ),
    (
        _counter("DEV_ECC_DBE_VOL_TOTAL", "Double-bit ECC errors since the driver was loaded."),
        lambda gpu: gpu.readings.ecc_uncorrected_volatile,
    ),
    (
        _counter("DEV_ECC_SBE_AGG_TOTAL", "Single-bit ECC errors of the board's lifetime."),
        lambda gpu: gpu.readings.ecc_corrected_aggregate,
    ),
    (
        _counter("DEV_ECC_DBE_AGG_TOTAL", "Double-bit ECC errors of the board's lifetime."),
        lambda gpu: gpu.readings.ecc_uncorrected_aggregate,
    ),
    (
        _counter("DEV_UNCORRECTABLE_REMAPPED_ROWS", "Rows remapped for uncorrectable errors."),
        lambda gpu: gpu.readings.remapped_rows_uncorrected,
    ),
    (
        _counter("DEV_CORRECTABLE_REMAPPED_ROWS", "Rows remapped for correctable errors."),
        lambda gpu: gpu.readings.remapped_rows_corrected,
    ),
    (
        _gauge("DEV_ROW_REMAP_FAILURE", "1 if remapping of rows has failed."),
        lambda gpu: gpu.readings.remapped_rows_failed,
    ),
    (
        _counter("DEV_NVLINK_BANDWIDTH_TOTAL", "NVLink data, sent and received, of all links (in KiB)."),
        _nvlink_total,
    ),
    (_gauge("DEV_VGPU_LICENSE_STATUS", "1 if the vGPU software is licensed."), lambda gpu: gpu.readings.vgpu_licensed),
)


@dataclass(frozen=True, slots=True)
class _Part:
    """A GPU that is whole, or one GPU instance of it: what has memory and GPM of its own."""

    labels: LabelValues
    used_bytes: int | None
    free_bytes: int | None
    reserved_bytes: int | None
    gpm: GpmReading | None


def _of_gpm(pick: Callable[[GpmReading], Value]) -> Callable[[_Part], Value]:
    return lambda part: None if part.gpm is None else pick(part.gpm)


_PARTITIONED: tuple[tuple[Metric, Callable[[_Part], Value]], ...] = (
    (_gauge("DEV_FB_FREE", "Framebuffer memory free (in MiB)."), lambda part: _mebibytes(part.free_bytes)),
    (_gauge("DEV_FB_USED", "Framebuffer memory used (in MiB)."), lambda part: _mebibytes(part.used_bytes)),
    (
        _gauge("DEV_FB_RESERVED", "Framebuffer memory that the driver keeps (in MiB)."),
        lambda part: _mebibytes(part.reserved_bytes),
    ),
    (
        _gauge("PROF_GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active."),
        _of_gpm(lambda gpm: gpm.graphics_ratio),
    ),
    (
        _gauge("PROF_SM_ACTIVE", "Ratio of cycles an SM has at least one warp assigned."),
        _of_gpm(lambda gpm: gpm.sm_ratio),
    ),
    (
        _gauge("PROF_SM_OCCUPANCY", "Ratio of warps resident on an SM to the most there can be."),
        _of_gpm(lambda gpm: gpm.sm_occupancy_ratio),
    ),
    (
        _gauge("PROF_PIPE_TENSOR_ACTIVE", "Ratio of cycles the tensor pipe is active."),
        _of_gpm(lambda gpm: gpm.tensor_ratio),
    ),
    (
        _gauge("PROF_PIPE_FP64_ACTIVE", "Ratio of cycles the fp64 pipe is active."),
        _of_gpm(lambda gpm: gpm.fp64_ratio),
    ),
    (
        _gauge("PROF_PIPE_FP32_ACTIVE", "Ratio of cycles the fp32 pipe is active."),
        _of_gpm(lambda gpm: gpm.fp32_ratio),
    ),
    (
        _gauge("PROF_PIPE_FP16_ACTIVE", "Ratio of cycles the fp16 pipe is active."),
        _of_gpm(lambda gpm: gpm.fp16_ratio),
    ),
    (
        _gauge("PROF_DRAM_ACTIVE", "Ratio of cycles the memory interface is sending or receiving."),
        _of_gpm(lambda gpm: gpm.dram_ratio),
    ),
    (
        _gauge("PROF_PCIE_TX_BYTES", "PCIe data sent (in bytes per second)."),
        _of_gpm(lambda gpm: gpm.pcie_tx_bytes_per_s),
    ),
    (
        _gauge("PROF_PCIE_RX_BYTES", "PCIe data received (in bytes per second)."),
        _of_gpm(lambda gpm: gpm.pcie_rx_bytes_per_s),
    ),
    (
        _gauge("PROF_NVLINK_TX_BYTES", "NVLink data sent (in bytes per second)."),
        _of_gpm(lambda gpm: gpm.nvlink_tx_bytes_per_s),
    ),
    (
        _gauge("PROF_NVLINK_RX_BYTES", "NVLink data received (in bytes per second)."),
        _of_gpm(lambda gpm: gpm.nvlink_rx_bytes_per_s),
    ),
)

CATALOGUE = (*(metric for metric, _ in _BOARD), XID_ERRORS, *(metric for metric, _ in _PARTITIONED))


@dataclass(frozen=True, slots=True)
class _Labeller:
    hostname: str
    older_hostname: str
    driver_version: str
    pods: Mapping[Place, tuple[PodLabels, ...]]

    def of(self, gpu: Gpu, instance: MigInstance | None = None) -> LabelValues:
        identity = gpu.identity
        place = Place(identity.uuid, identity.index, None if instance is None else instance.gpu_instance_id)
        return (
            str(identity.index),
            identity.uuid,
            identity.pci_bus_id,
            identity.device,
            identity.name,
            "" if instance is None else instance.gpu_instance_profile,
            "" if instance is None else str(instance.gpu_instance_id),
            self.hostname,
            self.older_hostname,
            self.driver_version,
            *dcgm_pod_labels(self.pods.get(place, ())),
        )


def _parts_of(gpu: Gpu, labeller: _Labeller) -> Iterator[_Part]:
    readings = gpu.readings
    if not gpu.mig:
        yield _Part(
            labeller.of(gpu),
            readings.memory_used_bytes,
            readings.memory_free_bytes,
            readings.memory_reserved_bytes,
            gpu.gpm,
        )
    for instance in gpu.gpu_instances():
        labels, memory = labeller.of(gpu, instance), instance.memory
        if memory is None:
            yield _Part(labels, None, None, None, instance.gpm)
        else:
            yield _Part(labels, memory.used_bytes, memory.free_bytes, memory.reserved_bytes, instance.gpm)


def _points(holders: Iterable[tuple[LabelValues, T]], read: Callable[[T], Value]) -> Iterator[Point]:
    for labels, holder in holders:
        value = read(holder)
        if value is not None:
            yield labels, value


def _collector(older_hostname: bool) -> Callable[[Snapshot], Iterator[Family]]:
    def collect(snapshot: Snapshot) -> Iterator[Family]:
        reading = snapshot.readings.gpus
        if reading is None:
            return
        devices = snapshot.readings.pod_devices
        labeller = _Labeller(
            snapshot.hostname,
            snapshot.hostname if older_hostname else "",
            reading.driver_version,
            {} if devices is None else pods_by_place(reading.gpus, devices),
        )
        boards = [(labeller.of(gpu), gpu) for gpu in reading.present_gpus()]
        for metric, of_board in _BOARD:
            yield metric.of(_points(boards, of_board))
        # Of the lost too: the code that tells why a GPU is gone must not go with it.
        yield XID_ERRORS.of(_points([(labeller.of(gpu), gpu) for gpu in reading.gpus], _last_xid))
        parts = [(part.labels, part) for _, gpu in boards for part in _parts_of(gpu, labeller)]
        for metric, of_part in _PARTITIONED:
            yield metric.of(_points(parts, of_part))

    return collect


def dcgm_dialect(older_hostname: bool = False) -> Dialect:
    """With the older label for dashboards that still ask for it: Hostname beside hostname."""
    return Dialect(
        name="dcgm",
        port=PORT,
        summary="GPUs in the names of dcgm-exporter, without DCGM",
        catalogue=CATALOGUE,
        collect=_collector(older_hostname),
    )


DCGM = dcgm_dialect()
