"""Asks file systems for their space, within a deadline. A file system that hangs (a dead NFS server, a stopped
FUSE daemon) holds one daemon thread until its call returns; until then it is not asked again.

Usually one thread asks all of them in turn. Where that takes too long, each that was not asked yet gets a thread of
its own, so that one that hangs, or many that are slow, delay no other.
"""

import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gpucommons.model.filesystems import Space


def space_of(path: str) -> Space:
    answer = os.statvfs(path)
    # Blocks times the block size, as node_exporter has it; a FUSE file system may count its blocks in fragments.
    unit = answer.f_bsize
    return Space(
        size_bytes=answer.f_blocks * unit,
        free_bytes=answer.f_bfree * unit,
        available_bytes=answer.f_bavail * unit,
        files=answer.f_files,
        files_free=answer.f_ffree,
    )


@dataclass(slots=True)
class _Round:
    """One pass over the file systems. `changed` is notified of each answer and guards what is here."""

    changed: threading.Condition
    answers: dict[str, Space | None] = field(default_factory=dict)
    asking: str = ""
    in_turn: bool = True


class SpaceReader:
    """A file system has `deadline_s` to answer; after `patience_s` they are no longer asked in turn.

    `ask` is the system call; it may block for as long as it likes.
    """

    def __init__(self, patience_s: float, deadline_s: float, ask: Callable[[str], Space] = space_of) -> None:
        self._patience_s = patience_s
        self._deadline_s = deadline_s
        self._ask = ask
        self._lock = threading.Lock()
        self._stuck: set[str] = set()

    @property
    def stuck(self) -> frozenset[str]:
        """Those whose call has not returned yet."""
        with self._lock:
            return frozenset(self._stuck)

    def read(self, paths: Iterable[str]) -> dict[str, Space | None]:
        """The space of each; None where the answer is an error or did not come in time."""
        paths = list(dict.fromkeys(paths))
        stuck = self.stuck
        asked = [path for path in paths if path not in stuck]
        round = _Round(threading.Condition(self._lock))
        if asked:
            _start(self._ask_in_turn, round, asked)
            with round.changed:
                if not _all_answered(round, asked, self._patience_s):
                    round.in_turn = False
                    for path in asked:
                        if path not in round.answers and path != round.asking:
                            _start(self._ask_one, round, path)
                    _all_answered(round, asked, self._deadline_s)
                self._stuck.update(path for path in asked if path not in round.answers)
        return {path: round.answers.get(path) for path in paths}

    def _ask_in_turn(self, round: _Round, paths: list[str]) -> None:
        for path in paths:
            with round.changed:
                if not round.in_turn:
                    return
                round.asking = path
            self._ask_one(round, path)

    def _ask_one(self, round: _Round, path: str) -> None:
        try:
            answer = self._ask(path)
        except OSError:
            answer = None
        with round.changed:
            if path in self._stuck:
                # Too late for its round, which has ended: the next one asks again.
                self._stuck.discard(path)
            else:
                round.answers[path] = answer
                round.changed.notify()


def _all_answered(round: _Round, paths: list[str], within_s: float) -> bool:
    return round.changed.wait_for(lambda: all(path in round.answers for path in paths), within_s)


def _start(target: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=target, args=arguments, name="statfs", daemon=True).start()
