"""Memory of the host from /proc/meminfo."""

from pathlib import Path
from typing import Literal

from gpucommons.model.host import MemoryReading
from gpucommons.sources.procfs import read_required
from gpucommons.sources.source import SourceError


def parse_meminfo(text: bytes) -> MemoryReading:
    """MemAvailable is missing before Linux 3.14: then it is missing here, and not guessed."""
    kib: dict[bytes, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(b":")
        if name in (b"MemTotal", b"MemAvailable"):
            kib[name] = int(rest.split()[0])
    available = kib.get(b"MemAvailable")
    return MemoryReading(kib[b"MemTotal"] * 1024, None if available is None else available * 1024)


class MemorySource:
    name = "memory"
    feeds = "memory"
    produces = MemoryReading
    essential = True
    runs_on: Literal["thread"] = "thread"

    def __init__(self, procfs: Path, cadence_s: float) -> None:
        self.cadence_s = cadence_s
        self.deadline_s = max(2.0, cadence_s)
        self._procfs = procfs

    def read(self) -> MemoryReading:
        text = read_required(self._procfs, "meminfo", "memory figures")
        try:
            return parse_meminfo(text)
        except (ValueError, IndexError, KeyError) as error:
            raise SourceError("garbage", f"{self._procfs / 'meminfo'}: no MemTotal in it") from error
