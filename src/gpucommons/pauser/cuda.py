"""The CUDA driver's calls that pause a process: libcuda.so.1 through ctypes, which runs other threads meanwhile.

`load` initialises the driver (`cuInit`) and nothing else: no context, no GPU memory, no entry in NVML's process list.
"""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpucommons.base.processes import MAX_MAPS_BYTES, read_beginning
from gpucommons.pauser.backend import Code, Failure, State, failure

LIBRARY: Final = "libcuda.so.1"
_CALLS: Final = ("GetState", "Lock", "Checkpoint", "Restore", "Unlock")
# Settings of the agent's environment that would change what the driver shows to this process.
_NOT_OURS: Final = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY")
# Part of the name of a file by which the driver shares memory between processes.
_SHARED_MEMORY: Final = b"/dev/shm/cuda.shm."


class _LockArguments(ctypes.Structure):
    _fields_ = (
        ("timeout_ms", ctypes.c_uint),
        ("reserved0", ctypes.c_uint),
        ("reserved1", ctypes.c_uint64 * 7),
    )


class Cuda:
    """The calls of a driver that has them; made by `load`."""

    name = "cuda"
    hangs_on_stopped = True

    def __init__(self, calls: dict[str, Callable[..., int]]) -> None:
        self._get_state, self._lock, self._checkpoint, self._restore, self._unlock = (calls[name] for name in _CALLS)

    def state(self, pid: int) -> State | Failure:
        number = ctypes.c_int()
        code = self._get_state(pid, ctypes.byref(number))
        if code:
            return failure(code)
        try:
            return State(number.value)
        except ValueError:
            return failure(Code.WRONG_STATE, f"the driver reports the unknown state {number.value}")

    def lock(self, pid: int, timeout_ms: int) -> Failure | None:
        return _result(self._lock(pid, ctypes.byref(_LockArguments(timeout_ms=timeout_ms))))

    def checkpoint(self, pid: int) -> Failure | None:
        if _shares_memory(pid):
            return failure(Code.SHARED_MEMORY)
        return _result(self._checkpoint(pid, None))

    def restore(self, pid: int) -> Failure | None:
        return _result(self._restore(pid, None))

    def unlock(self, pid: int) -> Failure | None:
        return _result(self._unlock(pid, None))


def _shares_memory(pid: int) -> bool:
    """Whether it has given GPU memory to another process, or has some of another one. Both then map a file of the
    driver. Driver r580 moves such memory to the host, and the restore of the second process fails with error 1 for
    good; r610 is said to do it."""
    try:
        return _SHARED_MEMORY in read_beginning(Path(f"/proc/{pid}/maps"), MAX_MAPS_BYTES)
    except OSError:
        # It has ended. What may be moved may be read.
        return False


def _result(code: int) -> Failure | None:
    return failure(code) if code else None


def load(library: str = LIBRARY) -> Cuda | Failure:
    """The driver's calls, or why there are none here."""
    for name in _NOT_OURS:
        os.environ.pop(name, None)
    try:
        driver = ctypes.CDLL(library)
        initialise = driver.cuInit
    except (OSError, AttributeError) as error:
        return failure(Code.UNAVAILABLE, f"cannot load the NVIDIA driver's {library}: {error}")
    calls: dict[str, Callable[..., int]] = {}
    for name in _CALLS:
        call = getattr(driver, f"cuCheckpointProcess{name}", None)
        if call is None:
            return failure(Code.UNAVAILABLE, f"the driver lacks cuCheckpointProcess{name}; driver r570 or newer has it")
        call.argtypes = (ctypes.c_int, ctypes.c_void_p)
        call.restype = ctypes.c_int
        calls[name] = call
    if code := initialise(0):
        return failure(Code.UNAVAILABLE, f"cuInit failed: {failure(code).meaning} ({code})")
    return Cuda(calls)
