"""The last lines of log files and the lines added to them, each prefixed with the name of its service."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from gpucommons.base.files import FileFollower

_POLL_S = 0.3


def last_lines(file: Path, count: int) -> list[str]:
    return list(deque(_new_lines(FileFollower(file)), count))


def show_logs(logs: Mapping[str, Path], lines: int, follow: bool, say: Callable[[str], None]) -> None:
    """Passes the last lines to `say`. With `follow`, continues with new lines until interrupted."""
    followers = {name: FileFollower(file) for name, file in logs.items()}
    for name, follower in followers.items():
        for line in deque(_new_lines(follower), lines):
            say(f"{name} | {line}")
    while follow:
        time.sleep(_POLL_S)
        for name, follower in followers.items():
            for line in _new_lines(follower):
                say(f"{name} | {line}")


def _new_lines(follower: FileFollower) -> Iterator[str]:
    try:
        for piece in follower.poll():
            for line in piece.lines:
                yield line.decode("utf-8", "replace")
    except FileNotFoundError:
        return
