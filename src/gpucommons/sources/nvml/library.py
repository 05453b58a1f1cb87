"""The driver's library, libnvidia-ml: start, stop, find functions, and reload it after an upgrade.

Its error codes decide what follows from a failure: some end the session, some lose one GPU, some are permanent.
"""

import _ctypes
import ctypes
import threading
from collections.abc import Callable

from gpucommons.sources.nvml.header import ERRORS

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
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
VERSION_MISMATCH = 18

# The session with the driver is over: no handle is valid any more.
SESSION_LOST = frozenset({1, DRIVER_NOT_LOADED, VERSION_MISMATCH})
# This GPU is gone, whatever the call was: lost, reset required, not found.
GPU_LOST = frozenset({GPU_IS_LOST, 16, 28})
# The result will be the same for as long as this driver runs: not supported, no permission, function not found,
# argument version mismatch, deprecated.
SETTLED = frozenset({3, NO_PERMISSION, FUNCTION_NOT_FOUND, 25, 26})


def name_of(code: int) -> str:
    """A code as a label value: `gpu_is_lost`."""
    return ERRORS.get(code, f"code_{code}")


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


# The library of this process.
#
# Its functions are called as they are: NVIDIA's binding, nvidia-ml-py, allocates the arguments of each call and
# requests every list twice, which costs more than most of the calls themselves.

Function = Callable[..., int]

_FILE = "libnvidia-ml.so.1"


class _Library:
    """Loaded by the first session. The driver counts the sessions of a process, as `sessions` does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: ctypes.CDLL | None = None
        self._functions: dict[str, Function | None] = {}
        self.sessions = 0

    def load(self) -> bool:
        with self._lock:
            if self._file is None:
                try:
                    self._file = ctypes.CDLL(_FILE)
                except OSError:
                    return False
            return True

    def unload(self) -> None:
        with self._lock:
            # The functions of a session in another thread must stay where they are.
            if self._file is not None and not self.sessions:
                file, self._file, self._functions = self._file, None, {}
                _ctypes.dlclose(file._handle)

    def count_session(self, change: int) -> None:
        with self._lock:
            self.sessions = max(0, self.sessions + change)

    def function(self, name: str) -> Function | None:
        file, functions = self._file, self._functions
        if name not in functions and file is not None:
            functions[name] = getattr(file, name, None)
        return functions.get(name)

    def describe(self, code: int) -> str:
        call = getattr(self._file, "nvmlErrorString", None)
        if call is None:
            return ""
        call.restype = ctypes.c_char_p
        return (call(code) or b"").decode("utf-8", "replace")


_library = _Library()


def start() -> None:
    """Load the library, if it is not loaded yet, and initialise it. Raises SessionLost with the code."""
    code = LIBRARY_NOT_FOUND
    if _library.load():
        initialise = function("nvmlInitWithFlags")
        code = FUNCTION_NOT_FOUND if initialise is None else initialise(0)
    if code:
        raise SessionLost(code)
    _library.count_session(1)


def stop() -> None:
    """End the session. A session that the driver has already ended is not an error."""
    shut_down = function("nvmlShutdown")
    if shut_down is not None:
        shut_down()
    _library.count_session(-1)


def unload() -> None:
    """Unload the library, so that the next start loads the file that an upgrade has installed.

    Otherwise the old library stays mapped and every start fails with a version mismatch.
    """
    _library.unload()


def function(name: str) -> Function | None:
    """A function of the library as a ctypes function, or None if this driver lacks it."""
    return _library.function(name)


def text(name: str, *arguments: object) -> str:
    """A string of the driver, such as a version or a name; empty if the call fails."""
    call = function(name)
    buffer = ctypes.create_string_buffer(256)
    if call is None or call(*arguments, buffer, 256) != OK:
        return ""
    return buffer.value.decode("utf-8", "replace")


def error_text(code: int) -> str:
    """A code in the driver's words."""
    if code == LIBRARY_NOT_FOUND:
        return f"{_FILE} was not found"
    return _library.describe(code) or name_of(code)
