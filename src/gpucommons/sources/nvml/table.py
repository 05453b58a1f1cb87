"""Which getters fill which readings, and the lane each one starts in. Names are the `call` label of metrics.

Where a reading has several getters, the first that the driver has and does not refuse is used.
"""

from ctypes import c_int, c_ulonglong
from typing import NamedTuple

from gpucommons.sources.nvml import calls, header
from gpucommons.sources.nvml.calls import Lane, Maker

# No board exceeds these limits: a larger value is not a measurement.
_MAX_MILLIWATTS = 20_000_000
_MAX_CELSIUS = 200
_MAX_MHZ = 30_000
_UNKNOWN_PERFORMANCE_STATE = 32
# NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, which older nvidia-ml-py lacks.
_RECOVERY_ACTION = 230


class ReadingRow(NamedTuple):
    name: str
    lane: Lane
    getters: tuple[tuple[str, Maker], ...]
    # The PCIe throughput call measures for 20 ms: skipped where GPM provides the value.
    unless_gpm: bool = False


def _fast(name: str, *getters: tuple[str, Maker], unless_gpm: bool = False) -> ReadingRow:
    return ReadingRow(name, Lane.FAST, getters, unless_gpm)


def _slow(name: str, *getters: tuple[str, Maker]) -> ReadingRow:
    return ReadingRow(name, Lane.SLOW, getters)


def _clock(name: str, kind: int) -> ReadingRow:
    reading = calls.number(f"{name}_mhz", kind, at_most=_MAX_MHZ)
    return _fast(name, ("nvmlDeviceGetClockInfo", reading))


def _ecc(name: str, error: int, counter: int) -> ReadingRow:
    reading = calls.number(name, error, counter, ctype=c_ulonglong)
    return _slow(name, ("nvmlDeviceGetTotalEccErrors", reading))


def _field(name: str, field_id: int) -> tuple[str, Maker]:
    return "nvmlDeviceGetFieldValues", calls.field(name, field_id)


_THROTTLE = calls.number("throttle_mask", ctype=c_ulonglong)

ROWS: tuple[ReadingRow, ...] = (
    _fast("utilization", ("nvmlDeviceGetUtilizationRates", calls.utilization)),
    _fast(
        "memory",
        ("nvmlDeviceGetMemoryInfo_v2", calls.memory_v2),
        ("nvmlDeviceGetMemoryInfo", calls.memory_v1),
    ),
    _fast(
        "power",
        ("nvmlDeviceGetPowerUsage", calls.number("power_watts", scale=0.001, at_most=_MAX_MILLIWATTS)),
    ),
    _fast(
        "temperature",
        (
            "nvmlDeviceGetTemperature",
            calls.number("temperature_celsius", header.NVML_TEMPERATURE_GPU, at_most=_MAX_CELSIUS),
        ),
    ),
    _fast("memory_temperature", _field("memory_temperature_celsius", header.NVML_FI_DEV_MEMORY_TEMP)),
    _clock("clock_graphics", header.NVML_CLOCK_GRAPHICS),
    _clock("clock_sm", header.NVML_CLOCK_SM),
    _clock("clock_memory", header.NVML_CLOCK_MEM),
    _clock("clock_video", header.NVML_CLOCK_VIDEO),
    _fast("encoder", ("nvmlDeviceGetEncoderUtilization", calls.engine("encoder_percent"))),
    _fast("decoder", ("nvmlDeviceGetDecoderUtilization", calls.engine("decoder_percent"))),
    _fast("jpeg", ("nvmlDeviceGetJpgUtilization", calls.engine("jpeg_percent"))),
    _fast("ofa", ("nvmlDeviceGetOfaUtilization", calls.engine("ofa_percent"))),
    _fast(
        "performance_state",
        (
            "nvmlDeviceGetPerformanceState",
            calls.number("performance_state", ctype=c_int, unknown=_UNKNOWN_PERFORMANCE_STATE),
        ),
    ),
    _fast(
        "throttle_reasons",
        ("nvmlDeviceGetCurrentClocksEventReasons", _THROTTLE),
        ("nvmlDeviceGetCurrentClocksThrottleReasons", _THROTTLE),
    ),
    _fast("fan", ("nvmlDeviceGetFanSpeed", calls.number("fan_percent"))),
    _fast(
        "energy",
        ("nvmlDeviceGetTotalEnergyConsumption", calls.number("energy_millijoules", ctype=c_ulonglong)),
    ),
    _fast(
        "pcie_tx",
        ("nvmlDeviceGetPcieThroughput", calls.number("pcie_tx_bytes_per_s", 0, scale=1000)),
        unless_gpm=True,
    ),
    _fast(
        "pcie_rx",
        ("nvmlDeviceGetPcieThroughput", calls.number("pcie_rx_bytes_per_s", 1, scale=1000)),
        unless_gpm=True,
    ),
    _slow(
        "power_limit",
        ("nvmlDeviceGetEnforcedPowerLimit", calls.number("power_limit_watts", scale=0.001)),
    ),
    _slow(
        "power_limit_set",
        ("nvmlDeviceGetPowerManagementLimit", calls.number("power_limit_set_watts", scale=0.001)),
    ),
    _slow("pcie_generation", ("nvmlDeviceGetCurrPcieLinkGeneration", calls.number("pcie_generation"))),
    _slow("pcie_width", ("nvmlDeviceGetCurrPcieLinkWidth", calls.number("pcie_width"))),
    _slow("pcie_replays", ("nvmlDeviceGetPcieReplayCounter", calls.number("pcie_replays"))),
    _ecc("ecc_corrected_volatile", header.NVML_MEMORY_ERROR_TYPE_CORRECTED, header.NVML_VOLATILE_ECC),
    _ecc("ecc_uncorrected_volatile", header.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, header.NVML_VOLATILE_ECC),
    _ecc("ecc_corrected_aggregate", header.NVML_MEMORY_ERROR_TYPE_CORRECTED, header.NVML_AGGREGATE_ECC),
    _ecc("ecc_uncorrected_aggregate", header.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, header.NVML_AGGREGATE_ECC),
    _slow("remapped_rows", ("nvmlDeviceGetRemappedRows", calls.remapped_rows)),
    _slow(
        "power_violation",
        (
            "nvmlDeviceGetViolationStatus",
            calls.violation("power_violation_ns", header.NVML_PERF_POLICY_POWER),
        ),
    ),
    _slow(
        "thermal_violation",
        (
            "nvmlDeviceGetViolationStatus",
            calls.violation("thermal_violation_ns", header.NVML_PERF_POLICY_THERMAL),
        ),
    ),
    # As fields: nvmlDeviceGetViolationStatus takes 0.6 ms for each, and these four matter less.
    _slow("sync_boost_violation", _field("sync_boost_violation_ns", header.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST)),
    _slow("board_limit_violation", _field("board_limit_violation_ns", header.NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT)),
    _slow(
        "low_utilization_violation",
        _field("low_utilization_violation_ns", header.NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION),
    ),
    _slow("reliability_violation", _field("reliability_violation_ns", header.NVML_FI_DEV_PERF_POLICY_RELIABILITY)),
    _slow("retired_pages_single_bit", _field("retired_pages_single_bit", header.NVML_FI_DEV_RETIRED_SBE)),
    _slow("retired_pages_double_bit", _field("retired_pages_double_bit", header.NVML_FI_DEV_RETIRED_DBE)),
    _slow("retired_pages_pending", _field("retired_pages_pending", header.NVML_FI_DEV_RETIRED_PENDING)),
    _slow("nvlinks", ("nvmlDeviceGetNvLinkState", calls.nvlinks)),
    _slow("nvlink_replays", _field("nvlink_replays", header.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL)),
    _slow("nvlink_recoveries", _field("nvlink_recoveries", header.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL)),
    _slow(
        "nvlink_crc_flit_errors",
        _field("nvlink_crc_flit_errors", header.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL),
    ),
    _slow(
        "nvlink_crc_data_errors",
        _field("nvlink_crc_data_errors", header.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL),
    ),
    _slow("recovery_action", _field("recovery_action", _RECOVERY_ACTION)),
    _slow(
        "persistence_mode",
        ("nvmlDeviceGetPersistenceMode", calls.number("persistence_mode", ctype=c_int)),
    ),
    _slow("compute_mode", ("nvmlDeviceGetComputeMode", calls.number("compute_mode", ctype=c_int))),
    _slow("vgpu_licence", ("nvmlDeviceGetGridLicensableFeatures_v4", calls.licence)),
)
