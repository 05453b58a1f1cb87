"""Cuts a stream of bytes into lines, with a bound on how long one may get. Does no I/O."""


class LineTooLong(Exception):
    """The peer sent more than a line may hold: what it speaks is not what was asked for."""


class LineSplitter:
    """Feed it chunks as they come; it hands out whole lines only. What was cut off never comes out."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._parts: list[bytes] = []
        self._held_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes, empty ones left out."""
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
