"""The end of log files, and what is added to them, each line with the name of its service."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

_POLL_S = 0.3


def last_lines(file: Path, count: int) -> list[str]:
    try:
        with open(file, encoding="utf-8", errors="replace") as text:
            return [line.rstrip("\n") for line in deque(text, count)]
    except FileNotFoundError:
        return []


class Follower:
    """What is appended to one file since it was last asked, through truncation and replacement."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._inode, self._offset = self._end()
        self._partial = ""

    def new_lines(self) -> Iterator[str]:
        try:
            with open(self._file, "rb") as content:
                status = os.fstat(content.fileno())
                if status.st_ino != self._inode or status.st_size < self._offset:
                    self._inode, self._offset, self._partial = status.st_ino, 0, ""
                content.seek(self._offset)
                added = content.read()
                self._offset = content.tell()
        except FileNotFoundError:
            return
        *whole, self._partial = (self._partial + added.decode("utf-8", "replace")).split("\n")
        yield from whole

    def _end(self) -> tuple[int, int]:
        try:
            status = self._file.stat()
        except FileNotFoundError:
            return 0, 0
        return status.st_ino, status.st_size


def show_logs(logs: Mapping[str, Path], lines: int, follow: bool, say: Callable[[str], None]) -> None:
    """Until interrupted where `follow` is set."""
    followers = {name: Follower(file) for name, file in logs.items()}
    for name, file in logs.items():
        for line in last_lines(file, lines):
            say(f"{name} | {line}")
    while follow:
        for name, follower in followers.items():
            for line in follower.new_lines():
                say(f"{name} | {line}")
        time.sleep(_POLL_S)
