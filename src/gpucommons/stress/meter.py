"""The utilisation of one GPU as the driver measures it, through NVML."""

from dataclasses import dataclass

import pynvml


class NoGpu(Exception):
    """One line that says what is missing."""


@dataclass(frozen=True, slots=True)
class Meter:
    """`handle` is NVML's. `name` and `uuid` tell which GPU it is."""

    handle: object
    name: str
    uuid: str

    def measure(self) -> float | None:
        try:
            return float(pynvml.nvmlDeviceGetUtilizationRates(self.handle).gpu) / 100
        except pynvml.NVMLError:
            return None


def open_meter(index: int) -> Meter:
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        if not 0 <= index < count:
            raise NoGpu(f"there is no GPU {index}; this machine has {_counted(count)}")
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        return Meter(handle, str(pynvml.nvmlDeviceGetName(handle)), str(pynvml.nvmlDeviceGetUUID(handle)))
    except pynvml.NVMLError as error:
        raise NoGpu(f"the NVIDIA driver does not answer ({error}); stress needs a real GPU") from error


def _counted(count: int) -> str:
    return "none" if count == 0 else f"0 to {count - 1}" if count > 1 else "only GPU 0"
