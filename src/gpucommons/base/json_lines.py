"""Splits a stream of bytes into lines of limited length. Does no I/O."""


class LineTooLong(Exception):
    """A line exceeds the limit: the peer does not send what was requested."""


class LineSplitter:
    """Takes chunks as they arrive and returns whole lines. An incomplete last line is never returned."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._parts: list[bytes] = []
        self._held_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes, without empty ones."""
        *whole, rest = chunk.split(b"\n")
        lines = []
        for piece in whole:
            self._hold(piece)
            lines.append(b"".join(self._parts))
            self._parts.clear()
            self._held_bytes = 0
        self._hold(rest)
        return [line for line in lines if line.strip()]

    def _hold(self, piece: bytes) -> None:
        self._held_bytes += len(piece)
        if self._held_bytes > self._most_bytes:
            raise LineTooLong(f"a line of more than {self._most_bytes} bytes")
        self._parts.append(piece)
