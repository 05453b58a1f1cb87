"""Every process from /proc/PID/stat: one small read each, parsed only if it has changed."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gpucommons.base.decimal_text import parse_decimal
from gpucommons.model.process_identity import ProcessKey, ProcessRow, ProcessTable
from gpucommons.rules.busiest import Busiest
from gpucommons.rules.tree_activity import TreeWatch
from gpucommons.sources.source import SourceAbsent, SourceError

# Fields of /proc/PID/stat, counted from the one after the name: state is 0.
_STATE, _PARENT, _UTIME, _STIME, _START, _RSS = 0, 1, 11, 12, 19, 21
_STAT_BYTES = 2048


def parse_stat(text: bytes, ticks_per_s: int, page_bytes: int) -> ProcessRow:
    """One process. Its name is in parentheses and may contain anything, including parentheses and newlines."""
    opened, closed = text.index(b"("), text.rindex(b")")
    fields = text[closed + 2 :].split(None, _RSS + 1)
    name = text[opened + 1 : closed].decode("utf-8", "replace")
    return ProcessRow(
        ProcessKey(int(text[:opened]), int(fields[_START])),
        name,
        (int(fields[_UTIME]) + int(fields[_STIME])) / ticks_per_s,
        int(fields[_RSS]) * page_bytes,
        int(fields[_PARENT]),
        fields[_STATE].decode("ascii", "replace"),
    )


class _Known(NamedTuple):
    text: bytes
    row: ProcessRow


class ProcessTableReader:
    def __init__(
        self,
        procfs: Path,
        busiest_limit: int,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._procfs = procfs
        self._monotonic = monotonic
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._busiest = Busiest(busiest_limit)
        self._trees = TreeWatch()
        self._known: dict[str, _Known] = {}

    def read(self) -> ProcessTable:
        try:
            root = os.open(self._procfs, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise SourceAbsent(
                f"no processes: {self._procfs}: {error.strerror}", "set --path.procfs to the host's /proc"
            ) from error
        try:
            known = self._pass(root)
        finally:
            os.close(root)
        if not known:
            raise SourceError("empty", f"no process in {self._procfs} can be read")
        self._known = known
        by_pid = {entry.row.key.pid: entry.row for entry in known.values()}
        now_s = self._monotonic()
        return ProcessTable(by_pid, self._busiest.choose(by_pid, now_s), self._trees.step(by_pid, now_s))

    def _pass(self, root: int) -> dict[str, _Known]:
        """All processes. One that ends between two reads, or cannot be read, is left out."""
        before, now = self._known, {}
        for pid in os.listdir(root):
            if parse_decimal(pid) is None:
                continue
            try:
                descriptor = os.open(f"{pid}/stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=root)
                try:
                    text = os.read(descriptor, _STAT_BYTES)
                finally:
                    os.close(descriptor)
            except OSError:
                continue
            entry = before.get(pid)
            if entry is None or entry.text != text:
                try:
                    entry = _Known(text, parse_stat(text, self._ticks_per_s, self._page_bytes))
                except (ValueError, IndexError):
                    continue
            now[pid] = entry
        return now
