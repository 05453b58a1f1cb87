"""The driver's library through nvidia-ml-py: start, stop, find functions, and reload it after an upgrade.

Its error codes decide what follows from a failure: some end the session, some lose one GPU, some are permanent.
"""

import _ctypes
import ctypes
from collections.abc import Callable

import pynvml

# The driver's error codes: which end the session, which lose one GPU, and which are permanent.
#
# Does not call the driver.

OK = 0
INVALID_ARGUMENT = 2
NO_PERMISSION = 4
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


# The driver's library through nvidia-ml-py: start, stop, find functions, and reload it after an upgrade.
#
# The only file that uses nvidia-ml-py's internals.

Function = Callable[..., int]


def start() -> None:
    """Load the library, if it is not loaded yet, and initialise it. Raises SessionLost with the code."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise SessionLost(error.value) from error


def stop() -> None:
    """End the session. A session that the driver has already ended is not an error."""
    try:
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return


def unload() -> None:
    """Unload the library, so that the next start loads the file that an upgrade has installed.

    Otherwise the old library stays mapped and every start fails with a version mismatch.
    """
    library = pynvml.nvmlLib
    if library is None:
        return
    pynvml.nvmlLib = None
    pynvml._nvmlGetFunctionPointer_cache.clear()
    _ctypes.dlclose(library._handle)


def function(name: str) -> Function | None:
    """A function of the library as a ctypes function, or None if this driver lacks it.

    Calls that run every second do without nvidia-ml-py's wrapper: it allocates its arguments and requests every list
    twice, which costs more than most of the calls themselves.
    """
    try:
        pointer: Function = pynvml._nvmlGetFunctionPointer(name)
    except pynvml.NVMLError:
        return None
    return pointer


def text(name: str, *arguments: object) -> str:
    """A string of the driver, such as a version or a name; empty if the call fails."""
    call = function(name)
    buffer = ctypes.create_string_buffer(256)
    if call is None or call(*arguments, buffer, 256) != OK:
        return ""
    return buffer.value.decode("utf-8", "replace")


def error_text(code: int) -> str:
    return str(pynvml.NVMLError(code))
