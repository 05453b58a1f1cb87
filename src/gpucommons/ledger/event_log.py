"""Our own event log: one JSON line for each event, in DS01's format, written off the event loop.

A daemon thread reads the existing log and appends new events. If the disk fails, the last events stay in memory.
A log that has grown long is renamed; one older log is kept.
"""

import errno
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpucommons.base.files import open_state_file
from gpucommons.ledger.event_detector import DetectorState, state_after
from gpucommons.model.events import Event, EventLogReading, Numbering, format_line, parse_line

_KEPT = 1000
_MAX_BYTES = 16 << 20
_MAX_UNWRITTEN = 10_000

log = logging.getLogger(__name__)


def read_events(path: Path) -> Iterator[Event]:
    """All events of the older log and the log, oldest first. Bad lines are skipped."""
    for file in (older(path), path):
        try:
            with file.open("rb") as lines:
                for line in lines:
                    event = parse_line(line)
                    if isinstance(event, Event):
                        yield event
        except OSError:
            continue


def older(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


class EventLog:
    """`detector_state` is None until the log was read; `record` may be called from the event loop."""

    def __init__(self, path: Path, max_bytes: int = _MAX_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._queue: queue.SimpleQueue[list[Event] | None] = queue.SimpleQueue()
        self._unwritten: deque[Event] = deque(maxlen=_MAX_UNWRITTEN)
        self._recent: deque[Event] = deque(maxlen=_KEPT)
        self._numbered = Numbering()
        self._reading = EventLogReading(())
        self._thread = threading.Thread(target=self._work, name="event-log", daemon=True)
        self.detector_state: DetectorState | None = None
        self.writing = True

    def start(self) -> None:
        self._thread.start()

    def record(self, events: list[Event]) -> None:
        if events:
            self._queue.put(events)

    def reading(self) -> EventLogReading:
        return self._reading

    def close(self, timeout_s: float) -> bool:
        """False if the events were not written in time."""
        if self._thread.ident is None:
            return True
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        state = state_after(self._remembered(read_events(self._path)))
        self._publish()
        self.detector_state = state
        while (events := self._queue.get()) is not None:
            self._unwritten.extend(self._remembered(events))
            self._publish()
            self._write()
        if self._unwritten:
            self._write()

    def _remembered(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in self._numbered(events):
            self._recent.appendleft(event)
            yield event

    def _publish(self) -> None:
        self._reading = EventLogReading(tuple(self._recent))

    def _write(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._append(b"".join(map(format_line, self._unwritten)))
        except OSError as error:
            if self.writing:
                log.error("event log %s: %s; the last events are kept in memory", self._path, error.strerror)
            self.writing = False
        else:
            self._unwritten.clear()
            self.writing = True

    def _append(self, lines: bytes) -> None:
        """One write. It starts on a new line, also after a crash in the middle of one."""
        descriptor = open_state_file(self._path, os.O_RDWR | os.O_APPEND)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                lines = b"\n" + lines
            if os.write(descriptor, lines) < len(lines):
                # The disk is full. A partial line would be read as damaged, and its event written again later.
                os.ftruncate(descriptor, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)
        if size + len(lines) > self._max_bytes:
            os.replace(self._path, older(self._path))
