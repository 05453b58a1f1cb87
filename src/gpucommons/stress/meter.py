"""The utilisation of one GPU, from NVML."""

from dataclasses import dataclass

import pynvml


class NoGpu(Exception):
    """One line: why there is no GPU to measure."""


@dataclass(frozen=True, slots=True)
class Meter:
    """`handle` is NVML's handle of the GPU."""

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
            raise NoGpu(f"--device: no GPU {index}; this machine has {_range(count)}")
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        return Meter(handle, str(pynvml.nvmlDeviceGetName(handle)), str(pynvml.nvmlDeviceGetUUID(handle)))
    except pynvml.NVMLError as error:
        raise NoGpu(f"the NVIDIA driver does not answer: {error}; run stress on a machine with a GPU") from error


def _range(count: int) -> str:
    return "none" if count == 0 else f"GPUs 0 to {count - 1}" if count > 1 else "only GPU 0"
