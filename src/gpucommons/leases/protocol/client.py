"""A client of the lease socket, for the commands. Blocks; used by one thread."""

import select
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gpucommons.base.json_lines import LineSplitter, LineTooLong
from gpucommons.leases.protocol.messages import LeaseMessageError, Line, decoded_line, encoded_line

_CONNECT_S: Final = 5.0
# The answer to `queue` is one line.
_MOST_ANSWER_BYTES: Final = 16 << 20


class LeaseServiceGone(Exception):
    """No agent answers at these sockets, or the connection is lost. One line."""


class LeaseConnection:
    """A connection to the first of these sockets that an agent serves. Raises LeaseServiceGone."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._splitter = LineSplitter(_MOST_ANSWER_BYTES)
        self._lines: list[dict[str, object]] = []
        tried = []
        for path in paths:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(_CONNECT_S)
            try:
                _connect(self._socket, path)
                return
            except OSError as error:
                self._socket.close()
                tried.append(f"{path}: {error.strerror or error}")
        raise LeaseServiceGone("; ".join(tried))

    def __enter__(self) -> "LeaseConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, line: Line) -> None:
        try:
            self._socket.sendall(encoded_line(line))
        except OSError as error:
            raise LeaseServiceGone(f"the agent does not answer: {error.strerror or error}") from None

    def receive(self, timeout_s: float | None) -> dict[str, object] | None:
        """The next line; None if none came in time."""
        while not self._lines:
            ready, _, _ = select.select([self._socket], [], [], timeout_s)
            if not ready:
                return None
            self._read()
        return self._lines.pop(0)

    def _read(self) -> None:
        try:
            chunk = self._socket.recv(65536)
            if not chunk:
                raise LeaseServiceGone("the agent has closed the connection")
            self._lines += map(decoded_line, self._splitter.feed(chunk))
        except (OSError, LineTooLong, LeaseMessageError) as error:
            raise LeaseServiceGone(f"the agent does not answer: {error}") from None


def _connect(connecting: socket.socket, path: Path) -> None:
    """While many clients connect at once, the queue of the socket may be full for a moment."""
    deadline_s = time.monotonic() + _CONNECT_S
    while True:
        try:
            connecting.connect(str(path))
            return
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                raise
        time.sleep(0.05)


def answer_of(paths: Iterable[Path], request: Line, timeout_s: float = _CONNECT_S) -> dict[str, object]:
    """The one line that answers a request. Raises LeaseServiceGone."""
    with LeaseConnection(paths) as connection:
        connection.send(request)
        line = connection.receive(timeout_s)
    if line is None:
        raise LeaseServiceGone(f"the agent has not answered within {timeout_s:g} s")
    return line
