"""Stands in for nvidia-smi: prints the values of the NVML library that it finds, in nvidia-smi's words.

It knows the options that nvidia_gpu_exporter uses, and asks NVML on its own, not through the agent's reader.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml

Device = Any
_MIB = 1 << 20
_RECOVERY_ACTION = 230
_RECOVERY_ACTIONS = ("None", "Reset", "Reboot", "Drain P2P", "Drain and Reset")
_COMPUTE_MODES = ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")
_REASONS = {
    "gpu_idle": 0x001,
    "applications_clocks_setting": 0x002,
    "sw_power_cap": 0x004,
    "hw_slowdown": 0x008,
    "sync_boost": 0x010,
    "sw_thermal_slowdown": 0x020,
    "hw_thermal_slowdown": 0x040,
    "hw_power_brake_slowdown": 0x080,
}
_CLOCKS = {
    "graphics": pynvml.NVML_CLOCK_GRAPHICS,
    "sm": pynvml.NVML_CLOCK_SM,
    "memory": pynvml.NVML_CLOCK_MEM,
    "video": pynvml.NVML_CLOCK_VIDEO,
}


def _watts(milliwatts: int) -> str:
    return f"{milliwatts / 1000:.2f} W"


def _mebibytes(count: int) -> str:
    """nvidia-smi rounds up: 501481472 bytes, 478.25 MiB, are 479 MiB on an H100."""
    return f"{-(-count // _MIB)} MiB"


def _switch(value: int) -> str:
    return "Enabled" if value else "Disabled"


def _yes(value: int) -> str:
    return "Yes" if value else "No"


def _field(device: Device, number: int) -> int:
    (value,) = pynvml.nvmlDeviceGetFieldValues(device, [number])
    if value.nvmlReturn:
        raise pynvml.NVMLError(value.nvmlReturn)
    return int(value.value.ullVal if value.valueType in (2, 3) else value.value.uiVal)


def _memory(part: str) -> Callable[[Device], str]:
    return lambda device: _mebibytes(
        getattr(pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2), part)
    )


def _clock(call: Callable[[Device, int], int], kind: int) -> Callable[[Device], str]:
    return lambda device: f"{call(device, kind)} MHz"


def _ecc(error: int, counter: int) -> Callable[[Device], str]:
    return lambda device: str(pynvml.nvmlDeviceGetTotalEccErrors(device, error, counter))


def _reason(bit: int) -> Callable[[Device], str]:
    return lambda device: "Active" if pynvml.nvmlDeviceGetCurrentClocksEventReasons(device) & bit else "Not Active"


def _remapped(place: int, word: Callable[[int], str]) -> Callable[[Device], str]:
    return lambda device: word(pynvml.nvmlDeviceGetRemappedRows(device)[place])


def _engine(call: Callable[[Device], list[int]]) -> Callable[[Device], str]:
    return lambda device: f"{call(device)[0]} %"


# (name of the query, its unit in the heading, value)
FIELDS: dict[str, tuple[str, Callable[[Device], str]]] = {
    "uuid": ("", pynvml.nvmlDeviceGetUUID),
    "name": ("", pynvml.nvmlDeviceGetName),
    "driver_model.current": ("", lambda _: "[N/A]"),
    "driver_model.pending": ("", lambda _: "[N/A]"),
    "vbios_version": ("", pynvml.nvmlDeviceGetVbiosVersion),
    "driver_version": ("", lambda _: pynvml.nvmlSystemGetDriverVersion()),
    "pci.bus_id": ("", lambda device: pynvml.nvmlDeviceGetPciInfo(device).busId),
    "serial": ("", pynvml.nvmlDeviceGetSerial),
    "compute_cap": ("", lambda device: "{}.{}".format(*pynvml.nvmlDeviceGetCudaComputeCapability(device))),
    "pci.sub_device_id": ("", lambda device: f"0x{pynvml.nvmlDeviceGetPciInfo(device).pciSubSystemId:08X}"),
    "index": ("", lambda device: str(pynvml.nvmlDeviceGetIndex(device))),
    "count": ("", lambda _: str(pynvml.nvmlDeviceGetCount())),
    **{
        f"clocks.current.{name}": ("MHz", _clock(pynvml.nvmlDeviceGetClockInfo, kind)) for name, kind in _CLOCKS.items()
    },
    **{
        f"clocks.max.{name}": ("MHz", _clock(pynvml.nvmlDeviceGetMaxClockInfo, kind))
        for name, kind in _CLOCKS.items()
        if name != "video"
    },
    "clocks_event_reasons.active": (
        "",
        lambda device: f"0x{pynvml.nvmlDeviceGetCurrentClocksEventReasons(device):016X}",
    ),
    **{f"clocks_event_reasons.{name}": ("", _reason(bit)) for name, bit in _REASONS.items()},
    "compute_mode": ("", lambda device: _COMPUTE_MODES[pynvml.nvmlDeviceGetComputeMode(device)]),
    **{
        f"ecc.errors.{words[0]}.{words[1]}.total": ("", _ecc(error, counter))
        for error, counter, words in (
            (0, 0, ("corrected", "volatile")),
            (1, 0, ("uncorrected", "volatile")),
            (0, 1, ("corrected", "aggregate")),
            (1, 1, ("uncorrected", "aggregate")),
        )
    },
    "enforced.power.limit": ("W", lambda device: _watts(pynvml.nvmlDeviceGetEnforcedPowerLimit(device))),
    "fan.speed": ("%", lambda device: f"{pynvml.nvmlDeviceGetFanSpeed(device)} %"),
    "gpu_recovery_action": ("", lambda device: _RECOVERY_ACTIONS[_field(device, _RECOVERY_ACTION)]),
    **{f"memory.{part}": ("MiB", _memory(part)) for part in ("free", "reserved", "total", "used")},
    "mig.mode.current": ("", lambda device: _switch(pynvml.nvmlDeviceGetMigMode(device)[0])),
    "pcie.link.gen.current": ("", lambda device: str(pynvml.nvmlDeviceGetCurrPcieLinkGeneration(device))),
    "pcie.link.gen.max": ("", lambda device: str(pynvml.nvmlDeviceGetMaxPcieLinkGeneration(device))),
    "pcie.link.width.current": ("", lambda device: str(pynvml.nvmlDeviceGetCurrPcieLinkWidth(device))),
    "pcie.link.width.max": ("", lambda device: str(pynvml.nvmlDeviceGetMaxPcieLinkWidth(device))),
    "persistence_mode": ("", lambda device: _switch(pynvml.nvmlDeviceGetPersistenceMode(device))),
    "power.default_limit": ("W", lambda device: _watts(pynvml.nvmlDeviceGetPowerManagementDefaultLimit(device))),
    "power.draw": ("W", lambda device: _watts(pynvml.nvmlDeviceGetPowerUsage(device))),
    "power.limit": ("W", lambda device: _watts(pynvml.nvmlDeviceGetPowerManagementLimit(device))),
    "power.max_limit": (
        "W",
        lambda device: _watts(pynvml.nvmlDeviceGetPowerManagementLimitConstraints(device)[1]),
    ),
    "power.min_limit": (
        "W",
        lambda device: _watts(pynvml.nvmlDeviceGetPowerManagementLimitConstraints(device)[0]),
    ),
    "pstate": ("", lambda device: f"P{pynvml.nvmlDeviceGetPerformanceState(device)}"),
    "remapped_rows.correctable": ("", _remapped(0, str)),
    "remapped_rows.uncorrectable": ("", _remapped(1, str)),
    "remapped_rows.pending": ("", _remapped(2, _yes)),
    "remapped_rows.failure": ("", _remapped(3, _yes)),
    "retired_pages.single_bit_ecc.count": (
        "",
        lambda device: str(_field(device, pynvml.NVML_FI_DEV_RETIRED_SBE)),
    ),
    "retired_pages.double_bit.count": ("", lambda device: str(_field(device, pynvml.NVML_FI_DEV_RETIRED_DBE))),
    "retired_pages.pending": ("", lambda device: _yes(_field(device, pynvml.NVML_FI_DEV_RETIRED_PENDING))),
    "temperature.gpu": ("", lambda device: str(pynvml.nvmlDeviceGetTemperature(device, 0))),
    "temperature.memory": ("", lambda device: str(_field(device, pynvml.NVML_FI_DEV_MEMORY_TEMP))),
    "utilization.gpu": ("%", lambda device: f"{pynvml.nvmlDeviceGetUtilizationRates(device).gpu} %"),
    "utilization.memory": ("%", lambda device: f"{pynvml.nvmlDeviceGetUtilizationRates(device).memory} %"),
    "utilization.encoder": ("%", _engine(pynvml.nvmlDeviceGetEncoderUtilization)),
    "utilization.decoder": ("%", _engine(pynvml.nvmlDeviceGetDecoderUtilization)),
    "utilization.jpeg": ("%", _engine(pynvml.nvmlDeviceGetJpgUtilization)),
    "utilization.ofa": ("%", _engine(pynvml.nvmlDeviceGetOfaUtilization)),
}


def devices() -> Iterator[Device]:
    for number in range(pynvml.nvmlDeviceGetCount()):
        yield pynvml.nvmlDeviceGetHandleByIndex(number)


def cell(name: str, device: Device) -> str:
    try:
        return FIELDS[name][1](device)
    except pynvml.NVMLError:
        return "[N/A]"


def query_gpu(names: list[str]) -> Iterator[str]:
    yield ", ".join(f"{name} [{unit}]" if (unit := FIELDS[name][0]) else name for name in names)
    for device in devices():
        yield ", ".join(cell(name, device) for name in names)


def query_compute_apps() -> Iterator[str]:
    yield "gpu_uuid, pid, process_name, used_gpu_memory [MiB]"
    for device in devices():
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(device):
            try:
                command = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")[0].decode()
            except OSError:
                command = "[Not Found]"
            used = "[N/A]" if process.usedGpuMemory is None else _mebibytes(process.usedGpuMemory)
            yield f"{pynvml.nvmlDeviceGetUUID(device)}, {process.pid}, {command}, {used}"


def main(argument: str) -> None:
    pynvml.nvmlInit()
    option, _, value = argument.partition("=")
    if option == "--query-gpu":
        lines = list(query_gpu(value.split(",")))
    elif option == "--query-compute-apps":
        lines = list(query_compute_apps())
    elif option == "--version":
        version = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        lines = [f"CUDA Version        : {version // 1000}.{version % 1000 // 10}"]
    else:
        raise SystemExit(f"unknown option {argument}")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
