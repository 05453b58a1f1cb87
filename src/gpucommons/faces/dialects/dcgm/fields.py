"""DCGM_FI_*: which reading fills which DCGM field, and in which unit. A field that NVML does not provide is absent.

Fields of the board (power, temperature, clocks, errors) have one series per GPU, so that sums are right. Memory and
PROF fields of a GPU in MIG mode have one series per GPU instance.
"""

from collections.abc import Callable
from typing import NamedTuple

from gpucommons.faces.dialects.dcgm.labels import field_counter, field_gauge
from gpucommons.faces.exposition.families import Metric
from gpucommons.model.gpu import GpmReading, Gpu, MigInstance

_KILOBYTE = 1000
_MEBIBYTE_SHIFT = 20
# The number of links that DCGM has names for.
_LINKS = 18

Value = float | None


def _mebibytes(count: int | None) -> Value:
    return None if count is None else count >> _MEBIBYTE_SHIFT


def _kilobytes(rate: Value) -> Value:
    return None if rate is None else rate / _KILOBYTE


def _bandwidth(kibibytes_per_s: float | None) -> Value:
    """In DCGM's unit and with its rounding: whole thousands of KiB per second."""
    return None if kibibytes_per_s is None else int(kibibytes_per_s / 1000)


def _all_links(gpu: Gpu) -> Value:
    return None if gpu.nvlink_rates is None else _bandwidth(gpu.nvlink_rates.total_kibibytes_per_s)


def _link(number: int) -> Callable[[Gpu], Value]:
    def read(gpu: Gpu) -> Value:
        return None if gpu.nvlink_rates is None else _bandwidth(gpu.nvlink_rates.link_kibibytes_per_s.get(number))

    return read


def last_xid(gpu: Gpu) -> Value:
    """0 means that events are watched and there was no XID; None, that they are not watched."""
    return (gpu.xid.last_code or 0) if gpu.xid.watched else None


XID_ERRORS = field_gauge("DEV_XID_ERRORS", "Code of the last XID error since the agent started; 0 if none.")

# In virtual-GPU mode these two also have a value for each pod.
GPU_UTIL = field_gauge("DEV_GPU_UTIL", "GPU utilization (in %).")
FB_USED = field_gauge("DEV_FB_USED", "Framebuffer memory used (in MiB).")

BOARD: tuple[tuple[Metric, Callable[[Gpu], Value]], ...] = (
    (field_gauge("DEV_SM_CLOCK", "SM clock frequency (in MHz)."), lambda gpu: gpu.readings.clock_sm_mhz),
    (field_gauge("DEV_MEM_CLOCK", "Memory clock frequency (in MHz)."), lambda gpu: gpu.readings.clock_memory_mhz),
    (field_gauge("DEV_MEMORY_TEMP", "Memory temperature (in C)."), lambda gpu: gpu.readings.memory_temperature_celsius),
    (field_gauge("DEV_GPU_TEMP", "GPU temperature (in C)."), lambda gpu: gpu.readings.temperature_celsius),
    (field_gauge("DEV_POWER_USAGE", "Power draw (in W)."), lambda gpu: gpu.readings.power_watts),
    (
        field_counter("DEV_TOTAL_ENERGY_CONSUMPTION", "Energy used since the driver was loaded (in mJ)."),
        lambda gpu: gpu.readings.energy_millijoules,
    ),
    (
        field_gauge("DEV_PCIE_TX_THROUGHPUT", "PCIe data sent (in KB/s)."),
        lambda gpu: _kilobytes(gpu.pcie_tx_bytes_per_s),
    ),
    (
        field_gauge("DEV_PCIE_RX_THROUGHPUT", "PCIe data received (in KB/s)."),
        lambda gpu: _kilobytes(gpu.pcie_rx_bytes_per_s),
    ),
    (field_counter("DEV_PCIE_REPLAY_COUNTER", "PCIe retries."), lambda gpu: gpu.readings.pcie_replays),
    (GPU_UTIL, lambda gpu: gpu.readings.utilization_percent),
    (
        field_gauge("DEV_MEM_COPY_UTIL", "Memory utilization (in %)."),
        lambda gpu: gpu.readings.memory_utilization_percent,
    ),
    (field_gauge("DEV_ENC_UTIL", "Encoder utilization (in %)."), lambda gpu: gpu.readings.encoder_percent),
    (field_gauge("DEV_DEC_UTIL", "Decoder utilization (in %)."), lambda gpu: gpu.readings.decoder_percent),
    (
        field_counter("DEV_POWER_VIOLATION", "Time for which clocks were reduced for power (in ns)."),
        lambda gpu: gpu.readings.power_violation_ns,
    ),
    (
        field_counter("DEV_THERMAL_VIOLATION", "Time for which clocks were reduced for heat (in ns)."),
        lambda gpu: gpu.readings.thermal_violation_ns,
    ),
    (
        field_counter("DEV_SYNC_BOOST_VIOLATION", "Time for which clocks were reduced by sync boost (in ns)."),
        lambda gpu: gpu.readings.sync_boost_violation_ns,
    ),
    (
        field_counter("DEV_BOARD_LIMIT_VIOLATION", "Time for which clocks were reduced by the board's limit (in ns)."),
        lambda gpu: gpu.readings.board_limit_violation_ns,
    ),
    (
        field_counter("DEV_LOW_UTIL_VIOLATION", "Time for which clocks were reduced for low utilization (in ns)."),
        lambda gpu: gpu.readings.low_utilization_violation_ns,
    ),
    (
        field_counter("DEV_RELIABILITY_VIOLATION", "Time for which clocks were reduced for reliability (in ns)."),
        lambda gpu: gpu.readings.reliability_violation_ns,
    ),
    (
        field_counter("DEV_ECC_SBE_VOL_TOTAL", "Single-bit ECC errors since the driver was loaded."),
        lambda gpu: gpu.readings.ecc_corrected_volatile,
    ),
    (
        field_counter("DEV_ECC_DBE_VOL_TOTAL", "Double-bit ECC errors since the driver was loaded."),
        lambda gpu: gpu.readings.ecc_uncorrected_volatile,
    ),
    (
        field_counter("DEV_ECC_SBE_AGG_TOTAL", "Single-bit ECC errors over the lifetime of the board."),
        lambda gpu: gpu.readings.ecc_corrected_aggregate,
    ),
    (
        field_counter("DEV_ECC_DBE_AGG_TOTAL", "Double-bit ECC errors over the lifetime of the board."),
        lambda gpu: gpu.readings.ecc_uncorrected_aggregate,
    ),
    (
        field_counter("DEV_UNCORRECTABLE_REMAPPED_ROWS", "Rows remapped for uncorrectable errors."),
        lambda gpu: gpu.readings.remapped_rows_uncorrected,
    ),
    (
        field_counter("DEV_CORRECTABLE_REMAPPED_ROWS", "Rows remapped for correctable errors."),
        lambda gpu: gpu.readings.remapped_rows_corrected,
    ),
    (
        field_gauge("DEV_ROW_REMAP_FAILURE", "Result of row remapping: 1 if it has failed, else 0."),
        lambda gpu: gpu.readings.remapped_rows_failed,
    ),
    (
        field_counter("DEV_RETIRED_SBE", "Pages retired for single-bit errors."),
        lambda gpu: gpu.readings.retired_pages_single_bit,
    ),
    (
        field_counter("DEV_RETIRED_DBE", "Pages retired for double-bit errors."),
        lambda gpu: gpu.readings.retired_pages_double_bit,
    ),
    (
        field_gauge("DEV_RETIRED_PENDING", "Pending page retirement: 1 if pages wait to be retired, else 0."),
        lambda gpu: gpu.readings.retired_pages_pending,
    ),
    (
        field_counter("DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "Flow-control CRC errors on all NVLinks."),
        lambda gpu: gpu.readings.nvlink_crc_flit_errors,
    ),
    (
        field_counter("DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "Data CRC errors on all NVLinks."),
        lambda gpu: gpu.readings.nvlink_crc_data_errors,
    ),
    (
        field_counter("DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "Retries on all NVLinks."),
        lambda gpu: gpu.readings.nvlink_replays,
    ),
    (
        field_counter("DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "Recovery errors on all NVLinks."),
        lambda gpu: gpu.readings.nvlink_recoveries,
    ),
    (
        field_gauge("DEV_NVLINK_BANDWIDTH_TOTAL", "Data over all NVLinks, sent and received (in 1000 KiB per second)."),
        _all_links,
    ),
    *(
        (
            field_gauge(
                f"DEV_NVLINK_BANDWIDTH_L{number}",
                f"Data over NVLink {number}, sent and received (in 1000 KiB per second).",
            ),
            _link(number),
        )
        for number in range(_LINKS)
    ),
    (
        field_gauge("DEV_VGPU_LICENSE_STATUS", "License status of the vGPU software: 1 if licensed, else 0."),
        lambda gpu: gpu.readings.vgpu_licensed,
    ),
)


class GpuOrInstance(NamedTuple):
    """A whole GPU or one GPU instance: the unit that has memory and GPM readings."""

    gpu: Gpu
    instance: MigInstance | None
    used_bytes: int | None
    free_bytes: int | None
    reserved_bytes: int | None
    gpm: GpmReading | None


def parts_of(gpu: Gpu) -> list[GpuOrInstance]:
    if not gpu.mig:
        r = gpu.readings
        return [GpuOrInstance(gpu, None, r.memory_used_bytes, r.memory_free_bytes, r.memory_reserved_bytes, gpu.gpm)]
    return [_instance_part(gpu, instance) for instance in gpu.gpu_instances()]


def _instance_part(gpu: Gpu, instance: MigInstance) -> GpuOrInstance:
    memory = instance.memory
    if memory is None:
        return GpuOrInstance(gpu, instance, None, None, None, instance.gpm)
    return GpuOrInstance(gpu, instance, memory.used_bytes, memory.free_bytes, memory.reserved_bytes, instance.gpm)


def _of_gpm(pick: Callable[[GpmReading], Value]) -> Callable[[GpuOrInstance], Value]:
    return lambda part: None if part.gpm is None else pick(part.gpm)


PARTITIONED: tuple[tuple[Metric, Callable[[GpuOrInstance], Value]], ...] = (
    (field_gauge("DEV_FB_FREE", "Framebuffer memory free (in MiB)."), lambda part: _mebibytes(part.free_bytes)),
    (FB_USED, lambda part: _mebibytes(part.used_bytes)),
    (
        field_gauge("DEV_FB_RESERVED", "Framebuffer memory reserved by the driver (in MiB)."),
        lambda part: _mebibytes(part.reserved_bytes),
    ),
    (
        field_gauge("PROF_GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active."),
        _of_gpm(lambda gpm: gpm.graphics_ratio),
    ),
    (
        field_gauge("PROF_SM_ACTIVE", "Ratio of cycles an SM has at least one warp assigned."),
        _of_gpm(lambda gpm: gpm.sm_ratio),
    ),
    (
        field_gauge("PROF_SM_OCCUPANCY", "Ratio of resident warps on an SM to the maximum."),
        _of_gpm(lambda gpm: gpm.sm_occupancy_ratio),
    ),
    (
        field_gauge("PROF_PIPE_TENSOR_ACTIVE", "Ratio of cycles the tensor pipe is active."),
        _of_gpm(lambda gpm: gpm.tensor_ratio),
    ),
    (
        field_gauge("PROF_PIPE_FP64_ACTIVE", "Ratio of cycles the fp64 pipe is active."),
        _of_gpm(lambda gpm: gpm.fp64_ratio),
    ),
    (
        field_gauge("PROF_PIPE_FP32_ACTIVE", "Ratio of cycles the fp32 pipe is active."),
        _of_gpm(lambda gpm: gpm.fp32_ratio),
    ),
    (
        field_gauge("PROF_PIPE_FP16_ACTIVE", "Ratio of cycles the fp16 pipe is active."),
        _of_gpm(lambda gpm: gpm.fp16_ratio),
    ),
    (
        field_gauge("PROF_DRAM_ACTIVE", "Ratio of cycles the memory interface is sending or receiving."),
        _of_gpm(lambda gpm: gpm.dram_ratio),
    ),
    (
        field_gauge("PROF_PCIE_TX_BYTES", "PCIe data sent (in bytes per second)."),
        _of_gpm(lambda gpm: gpm.pcie_tx_bytes_per_s),
    ),
    (
        field_gauge("PROF_PCIE_RX_BYTES", "PCIe data received (in bytes per second)."),
        _of_gpm(lambda gpm: gpm.pcie_rx_bytes_per_s),
    ),
    (
        field_gauge("PROF_NVLINK_TX_BYTES", "NVLink data sent (in bytes per second)."),
        _of_gpm(lambda gpm: gpm.nvlink_tx_bytes_per_s),
    ),
    (
        field_gauge("PROF_NVLINK_RX_BYTES", "NVLink data received (in bytes per second)."),
        _of_gpm(lambda gpm: gpm.nvlink_rx_bytes_per_s),
    ),
)

CATALOGUE = (*(metric for metric, _ in BOARD), XID_ERRORS, *(metric for metric, _ in PARTITIONED))
