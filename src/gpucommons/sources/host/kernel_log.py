"""XID errors in the kernel log: the process that each of them hit, which NVML does not report.

The driver writes one line for each error. Its form changed with the driver's release:

    NVRM: Xid (PCI:0000:01:00): 31, Ch 00000003, engmask 00000101, intr 10000000          before 450
    NVRM: Xid (PCI:0000:01:00): 79, pid=1122, GPU has fallen off the bus.                  450 to 495
    NVRM: Xid (PCI:0000:c1:00): 31, pid=2646416, name=python, channel 0x0000001a, ...      since 510
    NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp ...  where it does not know

Reading /dev/kmsg needs the capability CAP_SYSLOG where kernel.dmesg_restrict is set, as on Debian and Ubuntu.
"""

import errno
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from gpucommons.model.gpu import KernelLogReading, XidLine
from gpucommons.sources.source import SourceAbsent, SourceError

_XID = re.compile(
    r"NVRM: Xid \(PCI:([0-9a-fA-F:.]{1,20})\): (\d{1,5})"
    r"(?:, pid='?(\d{1,10}|<unknown>)'?)?"
    r"(?:, name=([^,]{1,64}))?"
)
_UNKNOWN = "<unknown>"
# One read of /dev/kmsg is one record of at most this length.
_RECORD_BYTES = 8192
# A kernel that writes without end must not hold up the pass: the rest comes with the next one.
_MAX_READS = 2000
_KEPT_LINES = 100


class KernelLogReader:
    """Reads what was written since its first read. `wall` is the time of the lines that are new."""

    def __init__(self, path: Path, wall: Callable[[], float] = time.time) -> None:
        self._path = path
        self._wall = wall
        self._file: int | None = None
        self._rest = b""
        self._count = 0
        self._lines: deque[XidLine] = deque(maxlen=_KEPT_LINES)
        self._reading = KernelLogReading()

    def read(self) -> KernelLogReading:
        """The same object until there is a new line."""
        if self._file is None:
            self._file = self._open()
        before = self._count
        for text in self._new_texts(self._file):
            xid = xid_line(text, self._count + 1, self._wall())
            if xid is not None:
                self._count += 1
                self._lines.append(xid)
        if self._count != before:
            self._reading = KernelLogReading(tuple(self._lines))
        return self._reading

    def _open(self) -> int:
        try:
            file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except PermissionError:
            raise SourceAbsent(
                f"{self._path} may not be read, so that an XID error does not name its process",
                "give the agent CAP_SYSLOG: deploy/systemd/kernel-log.conf",
            ) from None
        except OSError as error:
            raise SourceAbsent(
                f"{self._path}: {error.strerror}, so that an XID error does not name its process",
                "nothing to do where the machine has no kernel log",
            ) from None
        try:
            os.lseek(file, 0, os.SEEK_END)
        except OSError as error:
            # A pipe has no end to go to.
            if error.errno != errno.ESPIPE:
                os.close(file)
                raise SourceError("unreadable", f"{self._path}: {error.strerror}") from None
        return file

    def _new_texts(self, file: int) -> Iterator[str]:
        for _ in range(_MAX_READS):
            try:
                data = os.read(file, _RECORD_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                # The kernel has overwritten records that were not read yet: the next read has the oldest one left.
                if error.errno == errno.EPIPE:
                    continue
                os.close(file)
                self._file = None
                raise SourceError("unreadable", f"{self._path}: {error.strerror}") from None
            if not data:
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._rest = self._rest[-_RECORD_BYTES:]
            yield from (line.decode(errors="replace") for line in lines)


def xid_line(text: str, number: int, wall_s: float) -> XidLine | None:
    """None for a line that reports no XID. Pure."""
    match = _XID.search(text)
    if match is None:
        return None
    place, code, pid, name = match.groups()
    return XidLine(
        number,
        wall_s,
        place.lower(),
        int(code),
        None if pid in (None, _UNKNOWN) else int(pid),
        "" if name in (None, _UNKNOWN) else name.strip(),
    )
