"""Small reads of /proc. The root is a parameter, so that a container can read the host's /proc."""

import os
from pathlib import Path

from gpucommons.sources.source import SourceAbsent, SourceError

_MAX_BYTES = 1 << 20
# Most files are shorter. A buffer of the largest size costs five times as much as the read.
_USUAL_BYTES = 16 << 10


def read_file(root: Path, name: str) -> bytes:
    """One file below the root, which the kernel writes at once. FileNotFoundError and PermissionError are left to the
    caller."""
    descriptor = os.open(f"{root}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(descriptor, _USUAL_BYTES)
        return text if len(text) < _USUAL_BYTES else text + os.read(descriptor, _MAX_BYTES)
    finally:
        os.close(descriptor)


def read_whole(root: Path, name: str) -> bytes:
    """Like read_file, for a file that the kernel writes line by line: one read of it returns at most a page."""
    descriptor = os.open(f"{root}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(descriptor, _USUAL_BYTES), b""))
    finally:
        os.close(descriptor)


def read_required(root: Path, name: str, what: str) -> bytes:
    """A file without which the source has no reading: if it does not exist, the source is absent."""
    try:
        return read_file(root, name)
    except FileNotFoundError:
        raise SourceAbsent(
            f"no {what}: {root / name} does not exist",
            "mount the host's /proc and set --path.procfs to it",
        ) from None
    except OSError as error:
        raise SourceError("unreadable", f"{root / name}: {error.strerror}") from error
