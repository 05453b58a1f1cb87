"""What an endpoint returns: status, body, headers. Values only."""

import gzip
from collections.abc import AsyncGenerator, Callable, Mapping
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
    """With `stream`, the body is what the generator yields, sent piece by piece."""

    body: bytes
    content_type: str = _PLAIN_TEXT
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: Callable[[], AsyncGenerator[bytes, None]] | None = None


def text(line: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(line.encode(), status=status, headers=headers or {})


NOT_SAMPLED_YET = text("no sample yet: try again in a second\n", 503, {"Retry-After": "1"})


def matches_etag(if_none_match: str, etag: str) -> bool:
    """Whether the peer has the current content already. Weak and strong tags compare alike here."""
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return etag in tags or "*" in tags


def compressed(body: bytes, level: int = 1) -> bytes:
    return gzip.compress(body, compresslevel=level, mtime=0)
