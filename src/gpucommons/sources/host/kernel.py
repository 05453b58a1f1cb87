"""Reads the kernel's counters, part by part. A part that fails does not affect the others; the outcome is kept."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpucommons.model.host import KernelReading, ReadRun
from gpucommons.sources.host.clock import read_clock, read_clock_discipline
from gpucommons.sources.host.conntrack import read_conntrack
from gpucommons.sources.host.diskstats import DiskReader, read_raids
from gpucommons.sources.host.filefd import read_file_handles
from gpucommons.sources.host.netdev import read_links
from gpucommons.sources.host.network import read_bonds, read_devices, read_protocols, read_softnet
from gpucommons.sources.host.sockstat import read_sockets
from gpucommons.sources.host.uname import read_uname
from gpucommons.sources.host.vmstat import read_vmstat


class KernelReader:
    """Devices whose names match `disks_exclude`, `links_exclude` (counters) or `devices_ignored` (properties) are left
    out; an empty pattern excludes none. `protocol_fields` fits the protocol counters that are kept."""

    def __init__(
        self,
        procfs: Path,
        sysfs: Path,
        rootfs: Path,
        disks_exclude: str,
        links_exclude: str,
        devices_ignored: str = "",
        protocol_fields: str = "",
    ) -> None:
        disks = DiskReader(procfs, rootfs / "run/udev/data", re.compile(disks_exclude or "(?!)"))
        links = re.compile(links_exclude) if links_exclude else None
        ignored = re.compile(devices_ignored) if devices_ignored else None
        fields = re.compile(protocol_fields)
        self._readers: dict[str, Callable[[], Any]] = {
            "vmstat": lambda: read_vmstat(procfs),
            "disks": disks.read,
            "links": lambda: read_links(links),
            "file_handles": lambda: read_file_handles(procfs),
            "conntrack": lambda: read_conntrack(procfs),
            "sockets": lambda: read_sockets(procfs),
            "uname": lambda: read_uname(procfs),
            "clock": lambda: read_clock(sysfs),
            "clock_discipline": read_clock_discipline,
            "protocols": lambda: read_protocols(procfs, fields),
            "softnet": lambda: read_softnet(procfs),
            "devices": lambda: read_devices(sysfs, ignored),
            "bonds": lambda: read_bonds(sysfs),
            "raids": lambda: read_raids(procfs),
        }

    def read(self) -> KernelReading:
        values: dict[str, Any] = {}
        runs: dict[str, ReadRun] = {}
        for part, read in self._readers.items():
            begun_s, error = time.perf_counter(), ""
            try:
                values[part] = read()
            # A file of an unexpected format fails in its parser.
            except (OSError, ValueError, IndexError) as failure:
                error = str(failure) or type(failure).__name__
            runs[part] = ReadRun(time.perf_counter() - begun_s, error)
        return KernelReading(**values, runs=runs)
