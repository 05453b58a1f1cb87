"""DS01's event log: follows events.jsonl through its rotations and counts the last 24 hours by type."""

import base64
import json
import logging
import math
import struct
import time
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from gpucommons.base.files import FileFollower, Lines, Position, replace_state_file
from gpucommons.model.events import BadLine, EventsReading, Stamp, parse_stamp
from gpucommons.sources.source import SourceAbsent, SourceError

# Events of the last 24 hours by type: a sliding window, exact to the second. Pure.
#
# At time t it counts the events of the 86,400 whole seconds up to and including t. Memory is bounded by the number of
# types, not of events: at most about half a megabyte for a type that occurs every second.

WINDOW_S = 86_400
OTHER = "other"

# Slack for a clock that is set back. A time further ahead than this is invalid.
_SLACK_S = 3600
_MAX_AHEAD_S = 86_400
_MAX_TYPES = 200
_STEPS = 600
_MINUTE = struct.Struct("q")
_CHUNK_BYTES = 60 * array("I").itemsize


class _Series:
    """One type: counts by second, in chunks of a minute, and the sum over the window at one time."""

    __slots__ = ("chunks", "sum", "sum_at")

    def __init__(self) -> None:
        self.chunks: dict[int, array[int]] = {}
        self.sum = 0
        self.sum_at = 0

    def get(self, second: int) -> int:
        chunk = self.chunks.get(second // 60)
        return 0 if chunk is None else chunk[second % 60]

    def add(self, second: int, count: int) -> None:
        chunk = self.chunks.get(second // 60)
        if chunk is None:
            chunk = self.chunks[second // 60] = array("I", bytes(_CHUNK_BYTES))
        chunk[second % 60] += count
        if self.sum_at - WINDOW_S < second <= self.sum_at:
            self.sum += count

    def at(self, now: int) -> int:
        step = now - self.sum_at
        if 0 <= step <= _STEPS:
            for second in range(self.sum_at + 1, now + 1):
                self.sum += self.get(second) - self.get(second - WINDOW_S)
        else:
            self.sum = sum(count for second, count in self.seconds() if now - WINDOW_S < second <= now)
        self.sum_at = now
        return self.sum

    def seconds(self) -> Iterable[tuple[int, int]]:
        for minute, chunk in self.chunks.items():
            for offset, count in enumerate(chunk):
                if count:
                    yield minute * 60 + offset, count

    def pack(self) -> bytes:
        return b"".join(_MINUTE.pack(minute) + chunk.tobytes() for minute, chunk in self.chunks.items())

    def forget_before(self, second: int) -> None:
        for minute in [minute for minute in self.chunks if minute * 60 + 60 <= second]:
            del self.chunks[minute]


class EventWindow:
    def __init__(self) -> None:
        self._series: dict[str, _Series] = {}
        self._swept = -math.inf

    def add(self, type: str, wall_s: float, now_s: float, count: int = 1) -> None:
        """Add an event, in any order. An event that is too old to be counted is dropped."""
        if not now_s - WINDOW_S - _SLACK_S < wall_s < now_s + _MAX_AHEAD_S:
            return
        series = self._series.get(type)
        if series is None:
            if len(self._series) >= _MAX_TYPES:
                type = OTHER
            series = self._series.setdefault(type, _Series())
        series.add(math.floor(wall_s), count)

    def counts(self, now_s: float) -> dict[str, int]:
        """Counts by type. A type without events in the window is 0 for a while, then removed."""
        now = math.floor(now_s)
        self._sweep(now)
        return {type: series.at(now) for type, series in self._series.items()}

    def save(self) -> dict[str, bytes]:
        """The state by type, for `restore`: each minute with events, followed by the counts of its seconds."""
        return {type: zlib.compress(series.pack(), 1) for type, series in self._series.items()}

    def restore(self, saved: Mapping[str, bytes], now_s: float) -> None:
        """Raises ValueError if the data are damaged; the window must not be used then."""
        for type, packed in saved.items():
            try:
                seconds = list(_unpack(zlib.decompress(packed)))
            except zlib.error as error:
                raise ValueError(f"the counts of {type!r} are damaged") from error
            for second, count in seconds:
                self.add(type, second, now_s, count)

    def _sweep(self, now: int) -> None:
        """Once a minute, drop what is older than the window and its slack."""
        if abs(now - self._swept) < 60:
            return
        self._swept = now
        for type, series in list(self._series.items()):
            series.forget_before(now - WINDOW_S - _SLACK_S)
            if not series.chunks:
                del self._series[type]


def _unpack(packed: bytes) -> Iterable[tuple[int, int]]:
    size = _MINUTE.size + _CHUNK_BYTES
    if len(packed) % size:
        raise ValueError("the counts are cut short")
    for at in range(0, len(packed), size):
        (minute,) = _MINUTE.unpack_from(packed, at)
        chunk = array("I", packed[at + _MINUTE.size : at + size])
        for offset, count in enumerate(chunk):
            if count:
                yield minute * 60 + offset, count


# DS01's event log: follows events.jsonl through its rotations and counts the last 24 hours by type.
#
# The position in the log is saved in a small file together with the counts up to there, so that a restart neither
# misses nor repeats an event.

# A long file is read over several reads: each stays well within the deadline.
_READ_S = 1.0
_SAVE_EVERY_S = 30.0
_STATE_VERSION = 1

log = logging.getLogger(__name__)


class Ds01EventsReader:
    def __init__(
        self,
        path: Path,
        state: Path,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._state = state
        self._wall = wall
        self._window = EventWindow()
        self._follower = FileFollower(path, self._restore())
        self._lines = 0
        self._bad: Counter[str] = Counter()
        self._saved: Position | None = None
        self._saved_s = time.monotonic()
        self._saving_works = True

    def read(self) -> EventsReading:
        path = self._follower.path
        try:
            self._read_new()
            behind_bytes = self._follower.behind_bytes()
        except FileNotFoundError:
            raise SourceAbsent(
                f"no event log: {path} does not exist", "set [events] file to DS01's event log"
            ) from None
        except OSError as error:
            raise SourceError("unreadable", f"{path}: {error.strerror}") from error
        if time.monotonic() - self._saved_s >= _SAVE_EVERY_S:
            self.save_position()
        return EventsReading(
            self._window.counts(self._wall()),
            self._lines,
            dict(self._bad),
            behind_bytes,
            self._follower.rotations_lost,
        )

    def save_position(self) -> None:
        """Save the position and the counts up to it, both or neither."""
        self._saved_s = time.monotonic()
        position = self._follower.position
        if position == self._saved:
            return
        state = {
            "version": _STATE_VERSION,
            "position": [
                position.inode,
                position.offset,
                base64.b64encode(position.tail).decode(),
                position.rotated_ns,
            ],
            "window": {type: base64.b64encode(packed).decode() for type, packed in self._window.save().items()},
        }
        try:
            replace_state_file(self._state, json.dumps(state, separators=(",", ":")).encode())
        except OSError as error:
            if self._saving_works:
                log.warning("events: cannot save the position in the log: %s: %s", error.filename, error.strerror)
            self._saving_works = False
        else:
            self._saved, self._saving_works = position, True

    def _read_new(self) -> None:
        until_s, now_s = time.monotonic() + _READ_S, self._wall()
        for piece in self._follower.poll():
            self._count(piece, now_s)
            if time.monotonic() >= until_s:
                break

    def _count(self, piece: Lines, now_s: float) -> None:
        self._lines += len(piece.lines)
        if piece.too_long:
            self._bad[BadLine.TOO_LONG] += piece.too_long
        add = self._window.add
        for line in piece.lines:
            stamp = parse_stamp(line)
            if isinstance(stamp, Stamp):
                add(stamp.type, stamp.wall_s, now_s)
            elif line.strip():
                self._bad[stamp] += 1

    def _restore(self) -> Position:
        """The saved position; without one, the start of the last 24 hours, rotated copies included."""
        now_s = self._wall()
        try:
            state = json.loads(self._state.read_bytes())
            if state["version"] != _STATE_VERSION:
                raise ValueError(f"version {state['version']}")
            inode, offset, tail, rotated_ns = state["position"]
            position = Position(int(inode), int(offset), base64.b64decode(tail), int(rotated_ns))
            window = {type: base64.b64decode(packed) for type, packed in state["window"].items()}
            self._window.restore(window, now_s)
            return position
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("events: cannot use %s (%s); reading the log again from the start", self._state, error)
            self._window = EventWindow()
        return Position(rotated_ns=int((now_s - WINDOW_S) * 1e9))
