"""SMTP with limits: a mail server that answers byte by byte, or without an end, holds up no thread and fills no memory.

The standard library limits each receipt only. Here a limit of time and one of size are for the whole conversation.
"""

import smtplib
import socket
import ssl
import time
from contextlib import suppress
from typing import Final

# Of all that a server says. A usual conversation has less than 1 KiB.
_MAX_BYTES: Final = 64 * 1024
_PART_BYTES: Final = 4096


class _Replies:
    """What a server says, line by line: the file that smtplib reads."""

    def __init__(self, connected: socket.socket, until_s: float) -> None:
        self._connected = connected
        self._until_s = until_s
        self._unread = b""
        self._left_bytes = _MAX_BYTES

    def readline(self, max_bytes: int) -> bytes:
        """A line, or so many bytes of a longer one; what there is at the end. Raises OSError."""
        while b"\n" not in self._unread and len(self._unread) < max_bytes:
            left_s = self._until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("timed out")
            self._connected.settimeout(min(left_s, self._connected.gettimeout() or left_s))
            part = self._connected.recv(_PART_BYTES)
            if not part:
                break
            self._left_bytes -= len(part)
            if self._left_bytes < 0:
                raise OSError(f"an answer of more than {_MAX_BYTES} bytes")
            self._unread += part
        end = min(self._unread.find(b"\n") + 1 or len(self._unread), max_bytes)
        line, self._unread = self._unread[:end], self._unread[end:]
        return line

    def close(self) -> None:
        """The connection is closed by smtplib."""


class PlainSmtp(smtplib.SMTP):
    """A conversation; `timeout_s` is for each step of it, `total_s` for all. The constructor connects."""

    def __init__(self, host: str, port: int, timeout_s: float, total_s: float) -> None:
        self._until_s = time.monotonic() + total_s
        super().__init__(host, port, timeout=timeout_s)

    def getreply(self) -> tuple[int, bytes]:
        _limit(self, self._until_s)
        return super().getreply()


class TlsSmtp(smtplib.SMTP_SSL):
    """The same, with TLS from the beginning."""

    def __init__(self, host: str, port: int, timeout_s: float, total_s: float, context: ssl.SSLContext) -> None:
        self._until_s = time.monotonic() + total_s
        super().__init__(host, port, timeout=timeout_s, context=context)

    def getreply(self) -> tuple[int, bytes]:
        _limit(self, self._until_s)
        return super().getreply()


def _limit(connection: smtplib.SMTP, until_s: float) -> None:
    """The file is missing at the beginning, and again after STARTTLS."""
    if connection.file is None and connection.sock is not None:
        connection.file = _Replies(connection.sock, until_s)


def leave(connection: smtplib.SMTP) -> None:
    """What the server says to it does not matter: the message was taken or refused before."""
    with suppress(smtplib.SMTPException, OSError):
        connection.quit()
    connection.close()
