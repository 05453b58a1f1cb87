"""DS01's event log: follows events.jsonl through its rotations and counts the last 24 hours by type.

The position in the log is saved in a small file together with the counts up to there, so that a restart neither
misses nor repeats an event.
"""

import base64
import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from gpucommons.base.files import FileFollower, Lines, Position, replace_state_file
from gpucommons.model.events import BadLine, EventsReading, Stamp, parse_stamp
from gpucommons.sources.ds01.window import WINDOW_S, EventWindow
from gpucommons.sources.source import SourceAbsent, SourceError

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
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._wall = wall
        self._monotonic = monotonic
        self._window = EventWindow()
        self._follower = FileFollower(path, self._restored())
        self._lines = 0
        self._bad: Counter[str] = Counter()
        self._saved: Position | None = None
        self._saved_s = monotonic()
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
        if self._monotonic() - self._saved_s >= _SAVE_EVERY_S:
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
        self._saved_s = self._monotonic()
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
            "window": {type: base64.b64encode(packed).decode() for type, packed in self._window.saved().items()},
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
        until_s, now_s = self._monotonic() + _READ_S, self._wall()
        for piece in self._follower.poll():
            self._count(piece, now_s)
            if self._monotonic() >= until_s:
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

    def _restored(self) -> Position:
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
