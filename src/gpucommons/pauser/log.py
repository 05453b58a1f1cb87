"""Log lines of the pauser. A terminal or pipe that takes no more lines must never hold up a thread that resumes."""

import queue
import sys
import threading
from typing import Final

_MAX_WAITING: Final = 1000


class Log:
    """`name` begins each line."""

    def __init__(self, name: str = "pauser") -> None:
        self._name = name
        self._lines: queue.Queue[str | threading.Event] = queue.Queue(_MAX_WAITING)
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def line(self, text: str) -> None:
        try:
            self._lines.put_nowait(text)
        except queue.Full:
            return

    def drain(self, within_s: float) -> None:
        """Let the lines so far be written, if that is soon."""
        written = threading.Event()
        try:
            self._lines.put_nowait(written)
        except queue.Full:
            return
        written.wait(within_s)

    def _run(self) -> None:
        while True:
            text = self._lines.get()
            if isinstance(text, threading.Event):
                text.set()
                continue
            try:
                sys.stderr.write(f"{self._name}: {text}\n")
                sys.stderr.flush()
            except (OSError, ValueError):
                return
