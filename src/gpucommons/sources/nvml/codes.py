"""The driver's error codes: which end the session, which lose one GPU, and which are permanent.

Does not call the driver.
"""

import pynvml

OK = 0
INVALID_ARGUMENT = 2
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
GPU_IS_LOST = 15
VERSION_MISMATCH = 18

# The session with the driver is over: no handle is valid any more.
SESSION_LOST = frozenset({1, DRIVER_NOT_LOADED, VERSION_MISMATCH})
# This GPU is gone, whatever the call was: lost, reset required, not found.
GPU_LOST = frozenset({GPU_IS_LOST, 16, 28})
# The result will be the same for as long as this driver runs: not supported, no permission, function not found,
# argument version mismatch, deprecated.
SETTLED = frozenset({3, 4, 13, 25, 26})

_NAMES: dict[int, str] = {
    value: name.removeprefix("NVML_ERROR_").lower()
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int)
}


def name_of(code: int) -> str:
    """A code as a label value: `gpu_is_lost`."""
    return _NAMES.get(code, f"code_{code}")


class SessionLost(Exception):
    """The session with the driver is lost: start a new one."""

    def __init__(self, code: int) -> None:
        super().__init__(name_of(code))
        self.code = code


class GpuLost(Exception):
    """One GPU no longer answers; the others may."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
