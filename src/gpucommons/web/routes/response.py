"""What a handler answers, as a value: status, body, headers. Nothing here touches a connection."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

CLOSED_POLICY = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
SECURITY_HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": f"default-src 'none'; {CLOSED_POLICY}",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Server": "gpucommons",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_PLAIN_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Response:
    """`later` makes the answer, where that takes a while; `live` makes one that goes on: what it yields is sent
    as it comes."""

    body: bytes
    content_type: str = _PLAIN_TEXT
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    later: "Callable[[], Awaitable[Response]] | None" = None
    live: Callable[[], AsyncGenerator[bytes, None]] | None = None


def text(line: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A short answer for people."""
    return Response(line.encode(), status=status, headers=headers or {})


def matches_etag(if_none_match: str, etag: str) -> bool:
    """Whether what the peer has is what it would get. Weak and strong tags compare alike here."""
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return etag in tags or "*" in tags
