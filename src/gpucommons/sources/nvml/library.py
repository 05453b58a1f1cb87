"""The driver's library through nvidia-ml-py: start, stop, find functions, and reload it after an upgrade.

The only file that uses nvidia-ml-py's internals.
"""

import _ctypes
import ctypes
from collections.abc import Callable

import pynvml

from gpucommons.sources.nvml.codes import OK, SessionLost

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
        found: Function = pynvml._nvmlGetFunctionPointer(name)
    except pynvml.NVMLError:
        return None
    return found


def text(name: str, *arguments: object) -> str:
    """A string of the driver, such as a version or a name; empty if the call fails."""
    call = function(name)
    buffer = ctypes.create_string_buffer(256)
    if call is None or call(*arguments, buffer, 256) != OK:
        return ""
    return buffer.value.decode("utf-8", "replace")


def error_text(code: int) -> str:
    return str(pynvml.NVMLError(code))
