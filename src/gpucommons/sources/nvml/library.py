"""The driver's library through nvidia-ml-py: start, stop, find functions, and load it anew after an upgrade.

The only file that knows nvidia-ml-py's insides.
"""

import _ctypes
import ctypes
from collections.abc import Callable

import pynvml

from gpucommons.sources.nvml.codes import OK, SessionLost

Function = Callable[..., int]


def start() -> None:
    """Load the library where that has not happened, and initialise it. SessionLost tells the code."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise SessionLost(error.value) from error


def stop() -> None:
    """End the session; one that the driver has ended already is as good."""
    try:
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return


def unload() -> None:
    """Let go of the library's file, so that the next start loads the one that an upgrade has put there.

    Without this a process keeps the old library mapped and every start ends in a version mismatch.
    """
    library = pynvml.nvmlLib
    if library is None:
        return
    pynvml.nvmlLib = None
    pynvml._nvmlGetFunctionPointer_cache.clear()
    _ctypes.dlclose(library._handle)


def function(name: str) -> Function | None:
    """A function of the library as ctypes has it, or None where this driver lacks it.

    Called without nvidia-ml-py's wrapper on the paths that run each second: the wrapper allocates its
    arguments and asks for every list twice, which costs more than most of the calls themselves.
    """
    try:
        found: Function = pynvml._nvmlGetFunctionPointer(name)
    except pynvml.NVMLError:
        return None
    return found


def text(name: str, *arguments: object) -> str:
    """A string that the driver gives (a version, a name), or empty where it does not."""
    call = function(name)
    buffer = ctypes.create_string_buffer(256)
    if call is None or call(*arguments, buffer, 256) != OK:
        return ""
    return buffer.value.decode("utf-8", "replace")


def error_text(code: int) -> str:
    return str(pynvml.NVMLError(code))
