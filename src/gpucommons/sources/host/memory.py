"""Memory of the host from /proc/meminfo."""

from pathlib import Path

from gpucommons.model.host import MemoryReading
from gpucommons.sources.host.procfs import read_required
from gpucommons.sources.source import SourceError


def parse_meminfo(text: bytes) -> MemoryReading:
    """Before Linux 3.14 there is no MemAvailable: then it is None, not an estimate."""
    sizes: dict[str, int] = {}
    counts: dict[str, int] = {}
    for line in text.decode("ascii", "replace").splitlines():
        name, _, rest = line.partition(":")
        value, *unit = rest.split()
        # The only unit is kB, of 1024 bytes.
        if unit:
            sizes[name] = int(value) * 1024
        else:
            counts[name] = int(value)
    return MemoryReading(sizes["MemTotal"], sizes.get("MemAvailable"), sizes, counts)


def read_memory(procfs: Path) -> MemoryReading:
    text = read_required(procfs, "meminfo", "memory figures")
    try:
        return parse_meminfo(text)
    except (ValueError, IndexError, KeyError) as error:
        raise SourceError("garbage", f"{procfs / 'meminfo'} has no MemTotal") from error
