"""Limits of connections: their number, times, header bytes and unread responses. Values only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """`header_s` runs from the accept (including the TLS handshake), later from the first byte of a request.
    `request_s` includes the time that the peer takes to read the response."""

    connections: int = 512
    header_s: float = 10.0
    request_s: float = 30.0
    idle_s: float = 300.0
    header_field_bytes: int = 8192
    sweep_s: float = 1.0
    stop_s: float = 1.5
    unread_bytes: int = 64_000_000

    @property
    def per_origin(self) -> int:
        """Three quarters, so that one origin cannot take every connection."""
        return self.connections - self.connections // 4

    @property
    def for_newcomers(self) -> int:
        """One eighth is reserved for origins that have scraped before."""
        return self.connections - self.connections // 8
