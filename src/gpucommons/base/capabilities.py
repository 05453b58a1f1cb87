"""The capabilities of this process (capabilities(7)), in order to give one up that it needs only at its start."""

import ctypes
import os
import struct
from typing import Final

CAP_PERFMON: Final = 38

# linux/capability.h: version 3 has two structures, for the capabilities 0 to 31 and for those from 32 on.
_VERSION_3: Final = 0x20080522
_HEADER: Final = struct.Struct("Ii")
_SETS: Final = struct.Struct("6I")


def drop_capability(capability: int) -> None:
    """Removes it from the effective, permitted, inheritable and ambient set of this thread.

    Threads that it starts later do not have it either. Raises OSError where it has the capability
    and the call is forbidden. Linux only.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header = ctypes.create_string_buffer(_HEADER.pack(_VERSION_3, 0), _HEADER.size)
    sets = ctypes.create_string_buffer(_SETS.size)
    _check(libc.capget(header, sets))
    half, bit = divmod(capability, 32)
    held = _SETS.unpack(sets.raw)
    kept = tuple(value & ~(1 << bit) if index // 3 == half else value for index, value in enumerate(held))
    if kept != held:
        _check(libc.capset(header, ctypes.create_string_buffer(_SETS.pack(*kept), _SETS.size)))


def _check(status: int) -> None:
    if status != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
