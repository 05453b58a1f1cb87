"""The free memory of GPUs at this moment, outside of the regular readings: before a parked program is brought back."""

from collections.abc import Iterable, Mapping

import pynvml


def free_memory(devices: Iterable[str]) -> Mapping[str, int]:
    """The free bytes of GPUs and MIG devices by UUID; those that could not be read are left out. Blocks."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    found: dict[str, int] = {}
    try:
        for device in devices:
            try:
                handle = pynvml.nvmlDeviceGetHandleByUUID(device)
                found[device] = int(pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).free)
            except pynvml.NVMLError:
                continue
    finally:
        pynvml.nvmlShutdown()
    return found
