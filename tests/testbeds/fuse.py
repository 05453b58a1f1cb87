"""A FUSE file system without a library, which hangs until `answer` is called. Needs root and a private mount
namespace."""

import ctypes
import os
import struct
import threading
from pathlib import Path

_NOSUID_NODEV = 6
_INIT, _STATFS, _NO_SUCH_CALL = 26, 17, -38
_HEADER_IN = struct.Struct("=IIQQIIII")
_HEADER_OUT = struct.Struct("=IiQ")
# Version 7.22 of the protocol: its answer to INIT has six words.
_INIT_OUT = struct.pack("=IIIIHHI", 7, 22, 0, 0, 0, 0, 4096)
BLOCK_BYTES, BLOCKS, FREE, AVAILABLE, FILES, FILES_FREE = 4096, 1000, 400, 300, 50, 20
_STATFS_OUT = struct.pack("=5Q4I24x", BLOCKS, FREE, AVAILABLE, FILES, FILES_FREE, BLOCK_BYTES, 255, BLOCK_BYTES, 0)


class HungFilesystem:
    """Mounted at a directory. A call for its space blocks until `answer` is called."""

    def __init__(self, directory: Path) -> None:
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        libc = ctypes.CDLL(None, use_errno=True)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0"
        if libc.mount(b"hung", bytes(directory), b"fuse.hung", _NOSUID_NODEV, options.encode()) != 0:
            raise OSError(ctypes.get_errno(), "cannot mount a FUSE file system")

    def answer(self) -> None:
        """From now on, every request is answered."""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            request = os.read(self._device, 1 << 17)
            _, call, unique, *_ = _HEADER_IN.unpack_from(request)
            body = {_INIT: _INIT_OUT, _STATFS: _STATFS_OUT}.get(call)
            error = _NO_SUCH_CALL if body is None else 0
            os.write(self._device, _HEADER_OUT.pack(_HEADER_OUT.size + len(body or b""), error, unique) + (body or b""))
