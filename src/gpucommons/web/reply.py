"""What a handler answers, as a value: status, body, headers. Nothing here touches a connection."""

from collections.abc import Mapping
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
class Reply:
    body: bytes
    content_type: str = _PLAIN_TEXT
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


def text(line: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    """A short answer for people."""
    return Reply(line.encode(), status=status, headers=headers or {})
