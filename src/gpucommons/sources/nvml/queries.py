"""Questions to the driver at this moment, outside of the regular readings. Each call blocks until the driver answers.

A command has a session of its own, and so has the agent before it brings a parked program back.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_uint, create_string_buffer

from gpucommons.sources.nvml import library
from gpucommons.sources.nvml.calls import Handle
from gpucommons.sources.nvml.header import MEMORY_V2_VERSION, MemoryV2, OpaquePointer, Utilization


class DriverError(Exception):
    """A call has failed; the text is the driver's."""

    def __init__(self, code: int) -> None:
        super().__init__(library.error_text(code))


@contextmanager
def open_session() -> Iterator[None]:
    """Raises DriverError."""
    try:
        library.start()
    except library.SessionLost as lost:
        raise DriverError(lost.code) from lost
    try:
        yield
    finally:
        library.stop()


def _call(name: str, *arguments: object) -> None:
    function = library.function(name)
    code = library.FUNCTION_NOT_FOUND if function is None else function(*arguments)
    if code:
        raise DriverError(code)


def _text(name: str, device: Handle) -> str:
    """Unlike library.text, a failure is not an empty text: that would be the wrong GPU for a command."""
    buffer = create_string_buffer(256)
    _call(name, device, buffer, 256)
    return buffer.value.decode("utf-8", "replace")


# Within a session. Each raises DriverError.


def count_gpus() -> int:
    count = c_uint()
    _call("nvmlDeviceGetCount_v2", byref(count))
    return count.value


def gpu_at(index: int) -> Handle:
    handle = OpaquePointer()
    _call("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(handle))
    return handle


def device_of(uuid: str) -> Handle:
    """A GPU or a MIG device."""
    handle = OpaquePointer()
    _call("nvmlDeviceGetHandleByUUID", c_char_p(uuid.encode()), byref(handle))
    return handle


def uuid_of(device: Handle) -> str:
    return _text("nvmlDeviceGetUUID", device)


def name_of(device: Handle) -> str:
    return _text("nvmlDeviceGetName", device)


def free_bytes(device: Handle) -> int:
    out = MemoryV2()
    out.version = MEMORY_V2_VERSION
    _call("nvmlDeviceGetMemoryInfo_v2", device, byref(out))
    return int(out.free)


def utilization(device: Handle) -> float:
    """Of the GPU, from 0 to 1."""
    out = Utilization()
    _call("nvmlDeviceGetUtilizationRates", device, byref(out))
    return int(out.gpu) / 100


def free_memory(devices: Iterable[str]) -> Mapping[str, int]:
    """In a session of its own: the free bytes of GPUs and MIG devices by UUID, without those that could not be read."""
    free: dict[str, int] = {}
    try:
        with open_session():
            for uuid in devices:
                try:
                    free[uuid] = free_bytes(device_of(uuid))
                except DriverError:
                    continue
    except DriverError:
        return {}
    return free
