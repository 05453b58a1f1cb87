"""DS01's event log: follows events.jsonl through its rotations and counts the last 24 hours by type.

Where it stood is kept in a small file, together with the counts up to there, so that a restart neither
misses nor repeats an event.
"""

import base64
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from gpucommons.base.follow import FileFollower, Lines, Position
from gpucommons.model.events import BadLine, EventsReading, Stamp, parse_stamp
from gpucommons.sources.ds01.window import WINDOW_S, EventWindow
from gpucommons.sources.source import SourceAbsent, SourceError

# A long file is read in several turns: each stays well within the deadline.
_TURN_S = 1.0
_DEADLINE_S = 5.0
_KEEP_EVERY_S = 30.0
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
        self._kept: Position | None = None
        self._kept_s = monotonic()
        self._keeping = True

    def read(self) -> EventsReading:
        path = self._follower.path
        try:
            self._turn()
            behind_bytes = self._follower.behind_bytes()
        except FileNotFoundError:
            raise SourceAbsent(f"no event log: {path} does not exist", "name DS01's with [events] file") from None
        except OSError as error:
            raise SourceError("unreadable", f"{path}: {error.strerror}") from error
        if self._monotonic() - self._kept_s >= _KEEP_EVERY_S:
            self.keep_place()
        return EventsReading(
            self._window.counts(self._wall()),
            self._lines,
            dict(self._bad),
            behind_bytes,
            self._follower.rotations_lost,
            self._keeping,
        )

    def keep_place(self) -> None:
        """Write down where we are and what was counted up to here, both or neither."""
        self._kept_s = self._monotonic()
        place = self._follower.position
        if place == self._kept:
            return
        told = {
            "version": _STATE_VERSION,
            "position": [place.inode, place.offset, base64.b64encode(place.tail).decode(), place.rotated_ns],
            "window": {type: base64.b64encode(packed).decode() for type, packed in self._window.saved().items()},
        }
        beside = self._state.with_name(f"{self._state.name}.new")
        try:
            self._state.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(json.dumps(told, separators=(",", ":")))
            os.replace(beside, self._state)
        except OSError as error:
            if self._keeping:
                log.warning("events: the place in the log cannot be kept: %s: %s", error.filename, error.strerror)
            self._keeping = False
        else:
            self._kept, self._keeping = place, True

    def _turn(self) -> None:
        until_s, now_s = self._monotonic() + _TURN_S, self._wall()
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
        """The place that was kept; without one, the beginning of the day's log, rotated copies included."""
        now_s = self._wall()
        try:
            told = json.loads(self._state.read_bytes())
            if told["version"] != _STATE_VERSION:
                raise ValueError(f"version {told['version']}")
            inode, offset, tail, rotated_ns = told["position"]
            place = Position(int(inode), int(offset), base64.b64decode(tail), int(rotated_ns))
            window = {type: base64.b64decode(packed) for type, packed in told["window"].items()}
            self._window.restore(window, now_s)
            return place
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("events: %s cannot be used (%s); the log is read anew", self._state, error)
            self._window = EventWindow()
        return Position(rotated_ns=int((now_s - WINDOW_S) * 1e9))
