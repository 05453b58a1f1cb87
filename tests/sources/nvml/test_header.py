"""The numbers and structures of the driver's header are those of NVIDIA's own binding."""

import ctypes

import pynvml
import pytest

from gpucommons.sources.nvml import header

STRUCTURES = (
    (header.Utilization, "c_nvmlUtilization_t"),
    (header.Memory, "c_nvmlMemory_t"),
    (header.MemoryV2, "c_nvmlMemory_v2_t"),
    (header.FieldValue, "c_nvmlFieldValue_t"),
    (header.Violation, "c_nvmlViolationTime_t"),
    (header.PciInfo, "nvmlPciInfo_t"),
    (header.LicenceExpiry, "c_nvmlGridLicenseExpiry_t"),
    (header.LicensableFeature, "c_nvmlGridLicensableFeature_v4_t"),
    (header.LicensableFeatures, "c_nvmlGridLicensableFeatures_v4_t"),
    (header.DeviceAttributes, "c_nvmlDeviceAttributes"),
    (header.GpuInstancePlacement, "c_nvmlGpuInstancePlacement_t"),
    (header.GpuInstanceInfo, "c_nvmlGpuInstanceInfo_t"),
    (header.EventData, "c_nvmlEventData_t"),
    (header.GpmSupport, "c_nvmlGpmSupport_t"),
    (header.GpmMetricInfo, "c_metricInfo_t"),
    (header.GpmMetric, "c_nvmlGpmMetric_t"),
)


def _fields(structure: type[ctypes.Structure]) -> list[tuple[int, int]]:
    """Offset and size of each."""
    places = [getattr(structure, field[0]) for field in structure._fields_]
    return [(place.offset, place.size) for place in places]


@pytest.mark.parametrize(("ours", "name"), STRUCTURES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_structure_has_the_fields_of_the_driver(ours: type[ctypes.Structure], name: str) -> None:
    theirs = getattr(pynvml, name)
    assert _fields(ours) == _fields(theirs)
    assert ctypes.sizeof(ours) == ctypes.sizeof(theirs)


def test_every_structure_is_compared() -> None:
    defined = {
        value for value in vars(header).values() if isinstance(value, type) and value.__module__ == header.__name__
    }
    compared = {ours for ours, _ in STRUCTURES}
    assert defined - compared == {header.GpmMetricsGet, header.OpaquePointer, header.Value}


def test_a_request_for_metrics_begins_as_that_of_the_driver() -> None:
    """It has room for as many metrics as the newest driver has, and the driver reads as many as are requested."""
    ours, theirs = header.GpmMetricsGet, pynvml.c_nvmlGpmMetricsGet_t
    assert _fields(ours)[:-1] == _fields(theirs)[:-1]
    assert theirs.metrics.offset == header.GPM_METRICS_AT


def test_the_members_of_a_value_are_those_of_the_driver() -> None:
    theirs = dict(pynvml.c_nvmlValue_t._fields_)
    names = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal")
    members = dict(header.Value._fields_)
    assert [members[name] for name in header.VALUE_MEMBERS] == [theirs[name] for name in names]
    assert ctypes.sizeof(header.Value) == ctypes.sizeof(pynvml.c_nvmlValue_t)


def test_the_numbers_are_those_of_the_driver() -> None:
    ours = {name: value for name, value in vars(header).items() if name.startswith("NVML_") and "_MAX" not in name}
    assert ours
    assert ours == {name: getattr(pynvml, name) for name in ours}
    assert pynvml.nvmlMemory_v2 == header.MEMORY_V2_VERSION


@pytest.mark.parametrize(
    ("words", "prefix"),
    [
        (header.ERRORS, "NVML_ERROR_"),
        (header.ARCHITECTURES, "NVML_DEVICE_ARCH_"),
        (header.BRANDS, "NVML_BRAND_"),
    ],
    ids=["errors", "architectures", "brands"],
)
def test_the_words_are_those_of_the_driver(words: dict[int, str], prefix: str) -> None:
    names = {(name, value) for name, value in vars(pynvml).items() if name.startswith(prefix)}
    assert [
        word for number, word in words.items() if (prefix + word.upper().replace(" ", "_"), number) not in names
    ] == []
