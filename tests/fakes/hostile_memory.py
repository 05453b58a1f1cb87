"""A program of an ordinary user that chooses what /proc shows of its memory.

    python hostile_memory.py UID MIB

Its command line and its environment have so many MiB: the kernel lets each process say where they are
(PR_SET_MM_MAP). Prints `ready`, or ends with the reason why this kernel does not.
"""

import ctypes
import os
import struct
import sys

_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
_READ_ONLY, _PRIVATE, _ANONYMOUS, _NO_RESERVE = 1, 2, 0x20, 0x4000
# Fields of /proc/self/stat, from 1.
_CODE, _STACK, _DATA, _HEAP = (26, 27), 28, (45, 46), 47

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.sbrk.restype = ctypes.c_void_p
_libc.prctl.argtypes = (ctypes.c_int, *(4 * (ctypes.c_ulong,)))


def place_arguments(size: int) -> None:
    """The command line and the environment are this mapping from now on."""
    start = _libc.mmap(None, size, _READ_ONLY, _PRIVATE | _ANONYMOUS | _NO_RESERVE, -1, 0)
    # As bytes: this user may not be able to read the modules of Python, such as an encoding.
    with open("/proc/self/stat", "rb") as stat:
        fields = [b"", b"", *stat.read().rpartition(b")")[2].split()]

    def field(number: int) -> int:
        return int(fields[number - 1])

    places = (*map(field, _CODE), *map(field, _DATA), field(_HEAP), _libc.sbrk(0), field(_STACK))
    packed = struct.pack("<11Q Q I I", *places, *2 * (start, start + size), 0, 0, 0xFFFFFFFF)
    given = ctypes.create_string_buffer(packed)
    if _libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.addressof(given), len(packed), 0) != 0:
        sys.exit(f"PR_SET_MM_MAP: {os.strerror(ctypes.get_errno())}")


def main() -> None:
    uid, mebibytes = int(sys.argv[1]), int(sys.argv[2])
    os.setgid(uid)
    os.setuid(uid)
    place_arguments(mebibytes << 20)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
