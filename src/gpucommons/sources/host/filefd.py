"""Open file handles of the whole system, from /proc/sys/fs/file-nr."""

from pathlib import Path

from gpucommons.model.host import FileHandles
from gpucommons.sources.host.procfs import read_file


def read_file_handles(procfs: Path) -> FileHandles:
    # The number in the middle, of free handles, has been 0 since Linux 2.6.
    allocated, _, maximum = read_file(procfs, "sys/fs/file-nr").split()
    return FileHandles(int(allocated), int(maximum))
