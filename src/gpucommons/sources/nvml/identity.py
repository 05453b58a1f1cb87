"""The static properties of a GPU, read once when it is found."""

from collections.abc import Callable
from ctypes import byref, c_int, c_uint

from gpucommons.model.gpu import GpuIdentity
from gpucommons.sources.nvml import header, library
from gpucommons.sources.nvml.calls import Handle


class StaticFacts:
    """Reads values of one GPU; None where they are not available. Raises GpuLost if the GPU is lost meanwhile."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def numbers(self, name: str, *arguments: int, count: int = 1) -> tuple[int, ...] | None:
        call = library.function(name)
        outs = tuple(c_int() if name.endswith("Capability") else c_uint() for _ in range(count))
        code = library.OK if call is None else call(self._handle, *arguments, *map(byref, outs))
        if code in library.GPU_LOST:
            raise library.GpuLost(library.name_of(code))
        if code in library.SESSION_LOST:
            raise library.SessionLost(code)
        return None if call is None or code else tuple(out.value for out in outs)

    def number(self, name: str, *arguments: int) -> int | None:
        values = self.numbers(name, *arguments)
        return None if values is None else values[0]

    def text(self, name: str) -> str | None:
        return library.text(name, self._handle) or None


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


_INFOROM_OBJECTS = {
    "oem": header.NVML_INFOROM_OEM,
    "ecc": header.NVML_INFOROM_ECC,
    "power": header.NVML_INFOROM_POWER,
}


def _pci(handle: Handle) -> tuple[str, int | None]:
    """The address on the bus, and the id of the subsystem."""
    call: Callable[..., int] | None = library.function("nvmlDeviceGetPciInfo_v3")
    out = header.PciInfo()
    if call is None or call(handle, byref(out)) != library.OK:
        return "", None
    return out.bus_id.decode("ascii", "replace"), out.subsystem_id or None


def _inforom_versions(handle: Handle) -> tuple[tuple[str, str], ...]:
    versions = {"image": library.text("nvmlDeviceGetInforomImageVersion", handle)}
    for name, number in _INFOROM_OBJECTS.items():
        versions[name] = library.text("nvmlDeviceGetInforomVersion", handle, number)
    return tuple((name, version) for name, version in versions.items() if version)


def _supports_gpm(handle: Handle) -> bool:
    call = library.function("nvmlGpmQueryDeviceSupport")
    out = header.GpmSupport()
    out.version = header.NVML_GPM_SUPPORT_VERSION
    return call is not None and call(handle, byref(out)) == library.OK and out.is_supported == 1


def read_identity(handle: Handle, index: int) -> GpuIdentity:
    """The identity of the GPU. Without a UUID it cannot be distinguished from others and counts as lost."""
    static = StaticFacts(handle)
    # The first call: it fails if the GPU is gone.
    minor = static.number("nvmlDeviceGetMinorNumber")
    uuid = static.text("nvmlDeviceGetUUID")
    if uuid is None:
        raise library.GpuLost("no_uuid")
    pci_bus_id, pci_subsystem_id = _pci(handle)
    brand = static.number("nvmlDeviceGetBrand")
    constraints = static.numbers("nvmlDeviceGetPowerManagementLimitConstraints", count=2) or (None, None)
    capability = static.numbers("nvmlDeviceGetCudaComputeCapability", count=2)
    architecture = static.number("nvmlDeviceGetArchitecture")
    return GpuIdentity(
        uuid=uuid,
        index=index,
        name=static.text("nvmlDeviceGetName") or "",
        pci_bus_id=pci_bus_id,
        minor=minor,
        serial=static.text("nvmlDeviceGetSerial"),
        architecture=None if architecture is None else header.ARCHITECTURES.get(architecture),
        compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        vbios_version=static.text("nvmlDeviceGetVbiosVersion"),
        cores=static.number("nvmlDeviceGetNumGpuCores"),
        power_limit_min_watts=_watts(constraints[0]),
        power_limit_max_watts=_watts(constraints[1]),
        power_limit_default_watts=_watts(static.number("nvmlDeviceGetPowerManagementDefaultLimit")),
        temperature_slowdown_celsius=static.number(
            "nvmlDeviceGetTemperatureThreshold", header.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        ),
        temperature_shutdown_celsius=static.number(
            "nvmlDeviceGetTemperatureThreshold", header.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN
        ),
        clock_sm_max_mhz=static.number("nvmlDeviceGetMaxClockInfo", header.NVML_CLOCK_SM),
        clock_memory_max_mhz=static.number("nvmlDeviceGetMaxClockInfo", header.NVML_CLOCK_MEM),
        clock_graphics_max_mhz=static.number("nvmlDeviceGetMaxClockInfo", header.NVML_CLOCK_GRAPHICS),
        pcie_generation_max=static.number("nvmlDeviceGetMaxPcieLinkGeneration"),
        pcie_width_max=static.number("nvmlDeviceGetMaxPcieLinkWidth"),
        gpm_supported=_supports_gpm(handle),
        brand=None if brand is None else header.BRANDS.get(brand),
        pci_subsystem_id=pci_subsystem_id,
        inforom_versions=_inforom_versions(handle),
    )
