"""node_memory_*: every field of /proc/meminfo. The kernel names the fields, so a newer kernel may add some."""

import re
from collections.abc import Iterator
from functools import cache

from gpucommons.faces.exposition.families import Family, Metric, gauge
from gpucommons.model.snapshot import Snapshot

PREFIX = "node_memory_"
_PARENTHESES = re.compile(r"\((.*)\)")
# The fields of Linux 6.x on x86-64, those in bytes and those that are numbers of pages.
_SIZES = (
    *("MemTotal", "MemFree", "MemAvailable", "Buffers", "Cached", "SwapCached"),
    *("Active", "Inactive", "Active(anon)", "Inactive(anon)", "Active(file)", "Inactive(file)"),
    *("Unevictable", "Mlocked", "SwapTotal", "SwapFree", "Zswap", "Zswapped", "Dirty", "Writeback"),
    *("AnonPages", "Mapped", "Shmem", "KReclaimable", "Slab", "SReclaimable", "SUnreclaim"),
    *("KernelStack", "PageTables", "SecPageTables", "NFS_Unstable", "Bounce", "WritebackTmp"),
    *("CommitLimit", "Committed_AS", "VmallocTotal", "VmallocUsed", "VmallocChunk", "Percpu"),
    *("HardwareCorrupted", "AnonHugePages", "ShmemHugePages", "ShmemPmdMapped"),
    *("FileHugePages", "FilePmdMapped", "CmaTotal", "CmaFree", "Unaccepted", "Balloon"),
    *("Hugepagesize", "Hugetlb", "DirectMap4k", "DirectMap2M", "DirectMap1G"),
)
_COUNTS = ("HugePages_Total", "HugePages_Free", "HugePages_Rsvd", "HugePages_Surp")


def _name(field: str) -> str:
    """Active(anon) becomes Active_anon."""
    return PREFIX + _PARENTHESES.sub(r"_\1", field)


@cache
def size_metric(field: str) -> Metric:
    return gauge(f"{_name(field)}_bytes", f"Value of {field} in /proc/meminfo, in bytes.")


@cache
def count_metric(field: str) -> Metric:
    return gauge(_name(field), f"Value of {field} in /proc/meminfo.")


CATALOGUE = (*map(size_metric, _SIZES), *map(count_metric, _COUNTS))


def collect(snapshot: Snapshot) -> Iterator[Family]:
    memory = snapshot.readings.memory
    if memory is not None:
        for field, size in memory.sizes.items():
            yield size_metric(field).value(size)
        for field, count in memory.counts.items():
            yield count_metric(field).value(count)
