"""What one peer may cost: connections, time and header bytes. Values only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """`header_s` runs from the connection's first moment (TLS handshake included), later from a request's
    first byte. `request_s` includes the time that the peer takes to read the answer."""

    connections: int = 512
    header_s: float = 10.0
    request_s: float = 30.0
    idle_s: float = 300.0
    header_field_bytes: int = 8192
    sweep_s: float = 1.0
    stop_s: float = 1.5
