"""What an endpoint reads of a request, what it returns, and the format and encoding that both agree on. Pure."""

import gzip
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from gpucommons.model.viewer import SEES_ALL, Viewer

# The part of an HTTP request that an endpoint reads. Values only.


class Request(NamedTuple):
    method: str
    path: str
    accept: str = ""
    accept_encoding: str = ""
    if_none_match: str = ""
    query: Sequence[tuple[str, str]] = ()
    viewer: Viewer = SEES_ALL


# What an endpoint returns: status, body, headers. Values only.

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
PLAIN_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Response:
    """With `stream`, the body is what the generator yields, sent piece by piece."""

    body: bytes
    content_type: str = PLAIN_TEXT
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


def gzip_body(body: bytes, level: int = 1) -> bytes:
    return gzip.compress(body, compresslevel=level, mtime=0)


# The format and encoding to serve, from Accept and Accept-Encoding. Pure: no header is an error.
#
# A request that accepts no format of ours gets plain text: a scraper can use that, and cannot use a 406.

_QUALITY = re.compile(r"(?:1(?:\.0*)?|0(?:\.[0-9]*)?|\.[0-9]+)")
_OPENMETRICS = "application/openmetrics-text"
_OPENMETRICS_VERSIONS = ("", "1.0.0")
_TEXT_VERSIONS = ("", "0.0.4")
# The exact type precedes the wildcards, whatever their order in the header.
_TEXT_PATTERNS = ("text/plain", "text/*", "*/*")


class Choice(NamedTuple):
    openmetrics: bool
    gzip: bool


class _Offer(NamedTuple):
    name: str
    version: str
    quality: float


@lru_cache(maxsize=64)
def negotiate(accept: str, accept_encoding: str) -> Choice:
    """Cached: a scraper sends the same two headers with every scrape."""
    return Choice(accepts_openmetrics(accept), accepts_gzip(accept_encoding))


def accepts_openmetrics(accept: str) -> bool:
    """Only if OpenMetrics is named, with at least the quality of plain text."""
    offers = list(_offers(accept))
    quality = max(
        (o.quality for o in offers if o.name == _OPENMETRICS and o.version in _OPENMETRICS_VERSIONS),
        default=0.0,
    )
    return quality > 0 and quality >= _text_quality(offers)


def accepts_gzip(accept_encoding: str) -> bool:
    """Only if gzip is allowed, with at least the quality of a named identity."""
    quality = {offer.name: offer.quality for offer in _offers(accept_encoding)}
    gzip = quality.get("gzip", quality.get("x-gzip", quality.get("*", 0.0)))
    return gzip > 0 and gzip >= quality.get("identity", 0.0)


def _text_quality(offers: list[_Offer]) -> float:
    for pattern in _TEXT_PATTERNS:
        named = [o.quality for o in offers if o.name == pattern and o.version in _TEXT_VERSIONS]
        if named:
            return max(named)
    return 0.0


def _offers(header: str) -> Iterator[_Offer]:
    """The items of a header. An item whose q is not a number is ignored."""
    for item in header.split(","):
        name, *rest = item.split(";")
        parameters = dict(_parameter(text) for text in rest)
        quality = parameters.get("q", "1")
        if name.strip() and _QUALITY.fullmatch(quality):
            yield _Offer(name.strip().lower(), parameters.get("version", ""), float(quality))


def _parameter(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    return key.strip().lower(), value.strip().strip('"')
