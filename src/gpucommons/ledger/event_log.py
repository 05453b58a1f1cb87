"""Our own event log: one line for each thing that happened, in the format of DS01's, written off the event loop.

A daemon thread reads what was written before and appends what comes. Whatever the disk does, the last events
are in memory. The log is turned over when it has grown long; one older one is kept.
"""

import errno
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpucommons.ledger.event_detector import DetectorState, state_after
from gpucommons.model.events import Event, EventLogReading, JournalEntry, format_line, parse_line

_KEPT = 1000
_MOST_BYTES = 16 << 20
_MOST_WAITING = 10_000

log = logging.getLogger(__name__)


def read_events(path: Path) -> Iterator[Event]:
    """Everything that is in the log and the older one beside it, oldest first. Bad lines are left out."""
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
    """`standing` is None until the log was read; `record` may be called from the event loop."""

    def __init__(self, path: Path, most_bytes: int = _MOST_BYTES) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._waiting: queue.SimpleQueue[list[Event] | None] = queue.SimpleQueue()
        self._unwritten: deque[Event] = deque(maxlen=_MOST_WAITING)
        self._recent: deque[JournalEntry] = deque(maxlen=_KEPT)
        self._count = 0
        self._reading = EventLogReading(())
        self._thread = threading.Thread(target=self._work, name="own-events", daemon=True)
        self.standing: DetectorState | None = None
        self.writing = True

    def start(self) -> None:
        self._thread.start()

    def record(self, events: list[Event]) -> None:
        if events:
            self._waiting.put(events)

    def journal(self) -> EventLogReading:
        """The last of what happened, newest first."""
        return self._reading

    def close(self, timeout_s: float) -> bool:
        if self._thread.ident is None:
            return True
        self._waiting.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        last: deque[Event] = deque(maxlen=_KEPT)
        standing = state_after(_passing(read_events(self._path), last))
        self._remember(last)
        self.standing = standing
        while (events := self._waiting.get()) is not None:
            self._remember(events)
            self._unwritten.extend(events)
            self._write()
        if self._unwritten:
            self._write()

    def _remember(self, events: Iterable[Event]) -> None:
        for event in events:
            self._count += 1
            details = {name: str(value) for name, value in event.details.items()}
            entry = JournalEntry(
                f"{int(event.wall_s * 1000)}-{self._count}", event.wall_s, event.type, event.user, event.source, details
            )
            self._recent.appendleft(entry)
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
        """One write, after the end of whatever a crash left as half a line."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                lines = b"\n" + lines
            if os.write(descriptor, lines) < len(lines):
                # The disk is full: what was written of it would be read as a damaged line, and then again.
                os.ftruncate(descriptor, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)
        if size + len(lines) > self._most_bytes:
            os.replace(self._path, older(self._path))


def _passing(events: Iterable[Event], last: deque[Event]) -> Iterator[Event]:
    """The events as they come; the last ones stay behind. A long log is never held as a whole."""
    for event in events:
        last.append(event)
        yield event
