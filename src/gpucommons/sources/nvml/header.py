"""What the agent uses of the driver's header, nvml.h: numbers and structures, by their names there.

NVIDIA's binding, nvidia-ml-py, defines all of it: 206 structures and 500 functions, 4 MB in an agent of 50 MB. The
tests compare every number and every field with it.
"""

from ctypes import (
    Structure,
    Union,
    c_char,
    c_double,
    c_int,
    c_longlong,
    c_uint,
    c_ulong,
    c_ulonglong,
    c_ushort,
    c_void_p,
    sizeof,
)

# Error codes, as the values of a label.
ERRORS = {
    1: "uninitialized",
    2: "invalid_argument",
    3: "not_supported",
    4: "no_permission",
    5: "already_initialized",
    6: "not_found",
    7: "insufficient_size",
    8: "insufficient_power",
    9: "driver_not_loaded",
    10: "timeout",
    11: "irq_issue",
    12: "library_not_found",
    13: "function_not_found",
    14: "corrupted_inforom",
    15: "gpu_is_lost",
    16: "reset_required",
    17: "operating_system",
    18: "lib_rm_version_mismatch",
    19: "in_use",
    20: "memory",
    21: "no_data",
    22: "vgpu_ecc_not_supported",
    23: "insufficient_resources",
    24: "freq_not_supported",
    25: "argument_version_mismatch",
    26: "deprecated",
    27: "not_ready",
    28: "gpu_not_found",
    29: "invalid_state",
    30: "reset_type_not_supported",
    999: "unknown",
}
ARCHITECTURES = {
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada",
    9: "hopper",
    10: "blackwell",
    11: "dla",
    12: "dla2",
    13: "rubin",
    15: "npu3",
}
BRANDS = {
    1: "Quadro",
    2: "Tesla",
    3: "Nvs",
    4: "Grid",
    5: "Geforce",
    6: "Titan",
    7: "Nvidia Vapps",
    8: "Nvidia Vpc",
    9: "Nvidia Vcs",
    10: "Nvidia Vws",
    11: "Nvidia Vgaming",
    12: "Quadro Rtx",
    13: "Nvidia Rtx",
    14: "Nvidia",
    15: "Geforce Rtx",
    16: "Titan Rtx",
    17: "Nvidia Dla",
    18: "Nvidia Vgamedev",
    19: "Nvidia Npu",
}

NVML_CLOCK_GRAPHICS = 0
NVML_CLOCK_SM = 1
NVML_CLOCK_MEM = 2
NVML_CLOCK_VIDEO = 3
NVML_TEMPERATURE_GPU = 0
NVML_TEMPERATURE_THRESHOLD_SHUTDOWN = 0
NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1
NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
NVML_VOLATILE_ECC = 0
NVML_AGGREGATE_ECC = 1
NVML_PERF_POLICY_POWER = 0
NVML_PERF_POLICY_THERMAL = 1
NVML_INFOROM_OEM = 0
NVML_INFOROM_ECC = 1
NVML_INFOROM_POWER = 2
NVML_P2P_CAPS_INDEX_NVLINK = 2
NVML_NVLINK_MAX_LINKS = 36
NVML_GPM_SUPPORT_VERSION = 1
NVML_GPM_METRICS_GET_VERSION = 1
NVML_FI_DEV_RETIRED_SBE = 29
NVML_FI_DEV_RETIRED_DBE = 30
NVML_FI_DEV_RETIRED_PENDING = 31
NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL = 38
NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL = 45
NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL = 52
NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL = 59
NVML_FI_DEV_PERF_POLICY_SYNC_BOOST = 76
NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT = 77
NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION = 78
NVML_FI_DEV_PERF_POLICY_RELIABILITY = 79
NVML_FI_DEV_MEMORY_TEMP = 82
NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX = 138
NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 139
# The most metrics of one request; the agent requests a few.
NVML_GPM_METRIC_MAX = 477


class OpaquePointer(c_void_p):
    """The driver's handle of a GPU, a MIG device, an instance, a sample or a set of events."""


class Utilization(Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class Memory(Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class MemoryV2(Structure):
    _fields_ = (
        ("version", c_uint),
        ("total", c_ulonglong),
        ("reserved", c_ulonglong),
        ("free", c_ulonglong),
        ("used", c_ulonglong),
    )


# The size of a structure and its version, as the driver expects it.
MEMORY_V2_VERSION = sizeof(MemoryV2) | 2 << 24


class Value(Union):
    _fields_ = (
        ("double", c_double),
        ("uint", c_uint),
        ("ulong", c_ulong),
        ("ulonglong", c_ulonglong),
        ("longlong", c_longlong),
        ("int", c_int),
    )


# The member of the union for each value type.
VALUE_MEMBERS = ("double", "uint", "ulong", "ulonglong", "longlong", "int")


class FieldValue(Structure):
    _fields_ = (
        ("field_id", c_uint),
        ("scope_id", c_uint),
        ("timestamp", c_longlong),
        ("latency_us", c_longlong),
        ("value_type", c_uint),
        ("code", c_uint),
        ("value", Value),
    )


class Violation(Structure):
    _fields_ = (("reference_time_us", c_ulonglong), ("violation_ns", c_ulonglong))


class PciInfo(Structure):
    """`bus_id` is the address on the bus."""

    _fields_ = (
        ("bus_id_legacy", c_char * 16),
        ("domain", c_uint),
        ("bus", c_uint),
        ("device", c_uint),
        ("device_id", c_uint),
        ("subsystem_id", c_uint),
        ("bus_id", c_char * 32),
    )


class LicenceExpiry(Structure):
    _fields_ = (
        ("year", c_uint),
        ("month", c_ushort),
        ("day", c_ushort),
        ("hour", c_ushort),
        ("minute", c_ushort),
        ("second", c_ushort),
        ("status", c_char),
    )


class LicensableFeature(Structure):
    _fields_ = (
        ("code", c_uint),
        ("state", c_uint),
        ("licence_info", c_char * 128),
        ("product_name", c_char * 128),
        ("enabled", c_uint),
        ("expiry", LicenceExpiry),
    )


class LicensableFeatures(Structure):
    """Version 4."""

    _fields_ = (("is_supported", c_int), ("count", c_uint), ("features", LicensableFeature * 3))


class DeviceAttributes(Structure):
    """Of a MIG device."""

    _fields_ = (
        ("multiprocessors", c_uint),
        ("copy_engines", c_uint),
        ("decoders", c_uint),
        ("encoders", c_uint),
        ("jpeg_engines", c_uint),
        ("ofa_engines", c_uint),
        ("gpu_instance_slices", c_uint),
        ("compute_instance_slices", c_uint),
        ("memory_mib", c_ulonglong),
    )


class GpuInstancePlacement(Structure):
    _fields_ = (("start", c_uint), ("size", c_uint))


class GpuInstanceInfo(Structure):
    _fields_ = (
        ("device", c_void_p),
        ("id", c_uint),
        ("profile_id", c_uint),
        ("placement", GpuInstancePlacement),
    )


class EventData(Structure):
    _fields_ = (
        ("device", c_void_p),
        ("event_type", c_ulonglong),
        ("event_data", c_ulonglong),
        ("gpu_instance_id", c_uint),
        ("compute_instance_id", c_uint),
    )


class GpmSupport(Structure):
    _fields_ = (("version", c_uint), ("is_supported", c_uint))


class GpmMetricInfo(Structure):
    _fields_ = (("short_name", c_void_p), ("long_name", c_void_p), ("unit", c_void_p))


class GpmMetric(Structure):
    _fields_ = (("id", c_uint), ("code", c_uint), ("value", c_double), ("info", GpmMetricInfo))


class GpmMetricsGet(Structure):
    _fields_ = (
        ("version", c_uint),
        ("count", c_uint),
        ("sample1", c_void_p),
        ("sample2", c_void_p),
        ("metrics", GpmMetric * NVML_GPM_METRIC_MAX),
    )


# Where the metrics begin.
GPM_METRICS_AT = sizeof(GpmMetricsGet) - NVML_GPM_METRIC_MAX * sizeof(GpmMetric)
