"""The name and the command line of a process from procfs. Never raises."""

import os
from pathlib import Path

from gpucommons.base.processes import start_ticks
from gpucommons.model.process_identity import ProcessKey
from gpucommons.sources.host.process_details import read_process_file

# A command line may have megabytes. What names a program is at its beginning.
MOST_COMMAND_BYTES = 4096
_NAME_BYTES = 64
_STAT_BYTES = 4 * 1024


class CommandReader:
    def __init__(self, procfs: Path) -> None:
        self._procfs = str(procfs)

    def name(self, pid: int) -> str | None:
        """The kernel's name of the process that has this pid now; None where there is none."""
        try:
            descriptor = os.open(f"{self._procfs}/{pid}/comm", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return os.read(descriptor, _NAME_BYTES).decode("utf-8", "replace")
            finally:
                os.close(descriptor)
        except OSError:
            return None

    def command_line(self, key: ProcessKey) -> tuple[str, ...]:
        """Its first 4 KiB; empty where that process has ended, has none, or may not be read."""
        try:
            process = os.open(f"{self._procfs}/{key.pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if start_ticks(read_process_file(process, "stat", _STAT_BYTES)) != key.start_ticks:
                    return ()
                text = read_process_file(process, "cmdline", MOST_COMMAND_BYTES)
            finally:
                os.close(process)
        except (OSError, ValueError, IndexError):
            return ()
        # A program that writes its own title leaves it padded.
        return tuple(text.rstrip(b"\0").decode("utf-8", "replace").split("\0"))
