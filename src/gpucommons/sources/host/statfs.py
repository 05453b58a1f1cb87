"""Reads the space of file systems within a deadline. A file system that hangs (a dead NFS server, a stopped FUSE
daemon) blocks one daemon thread until its call returns; until then it is not read again.

Usually one thread reads all of them in turn. If that takes too long, each of the remaining ones gets its own thread, so
that one that hangs, or many that are slow, do not delay the others.
"""

import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gpucommons.model.host import Space


def space_of(path: str) -> Space:
    answer = os.statvfs(path)
    # Blocks times block size, as in node_exporter; a FUSE file system may count its blocks in fragments.
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
    """One pass over the file systems. `changed` guards the fields and is notified of each answer."""

    changed: threading.Condition
    answers: dict[str, Space | None] = field(default_factory=dict)
    current: str = ""
    in_turn: bool = True


class SpaceReader:
    """A file system has `deadline_s` to answer; after `patience_s` they are no longer read in turn.

    `read_space` is the system call; it may block indefinitely.
    """

    def __init__(self, patience_s: float, deadline_s: float, read_space: Callable[[str], Space] = space_of) -> None:
        self._patience_s = patience_s
        self._deadline_s = deadline_s
        self._read_space = read_space
        self._lock = threading.Lock()
        self._stuck: set[str] = set()

    @property
    def stuck(self) -> frozenset[str]:
        """The file systems whose call has not returned yet."""
        with self._lock:
            return frozenset(self._stuck)

    def read(self, paths: Iterable[str]) -> dict[str, Space | None]:
        """The space of each; None if the call failed or did not return in time."""
        paths = list(dict.fromkeys(paths))
        stuck = self.stuck
        pending = [path for path in paths if path not in stuck]
        round = _Round(threading.Condition(self._lock))
        if pending:
            _start(self._read_in_turn, round, pending)
            with round.changed:
                if not _all_answered(round, pending, self._patience_s):
                    round.in_turn = False
                    for path in pending:
                        if path not in round.answers and path != round.current:
                            _start(self._read_one, round, path)
                    _all_answered(round, pending, self._deadline_s)
                self._stuck.update(path for path in pending if path not in round.answers)
        return {path: round.answers.get(path) for path in paths}

    def _read_in_turn(self, round: _Round, paths: list[str]) -> None:
        for path in paths:
            with round.changed:
                if not round.in_turn:
                    return
                round.current = path
            self._read_one(round, path)

    def _read_one(self, round: _Round, path: str) -> None:
        try:
            answer = self._read_space(path)
        except OSError:
            answer = None
        with round.changed:
            if path in self._stuck:
                # Too late for its round, which has ended: the next round reads it again.
                self._stuck.discard(path)
            else:
                round.answers[path] = answer
                round.changed.notify()


def _all_answered(round: _Round, paths: list[str], within_s: float) -> bool:
    return round.changed.wait_for(lambda: all(path in round.answers for path in paths), within_s)


def _start(target: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=target, args=arguments, name="statfs", daemon=True).start()
