"""Accept and Accept-Encoding -> what to serve. Pure: any header text has an answer, none is an error.

Whoever asks for nothing that we have gets the plain text: a scraper can use it, and 406 helps nobody.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

_QUALITY = re.compile(r"(?:1(?:\.0*)?|0(?:\.[0-9]*)?|\.[0-9]+)")
_OPENMETRICS = "application/openmetrics-text"
_OPENMETRICS_VERSIONS = ("", "1.0.0")
_TEXT_VERSIONS = ("", "0.0.4")
# The exact type counts before the wildcards, whatever their order in the header.
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
    """Cached: every scraper sends the same two headers with every scrape."""
    return Choice(wants_openmetrics(accept), wants_gzip(accept_encoding))


def wants_openmetrics(accept: str) -> bool:
    """Only when asked for by name, and no less than plain text."""
    offers = list(_offers(accept))
    asked = max(
        (o.quality for o in offers if o.name == _OPENMETRICS and o.version in _OPENMETRICS_VERSIONS),
        default=0.0,
    )
    return asked > 0 and asked >= _text_quality(offers)


def wants_gzip(accept_encoding: str) -> bool:
    """When gzip is allowed, and not liked less than an identity that was named."""
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
    """The items of a header; one whose q is no number is left out, as if it had not been sent."""
    for item in header.split(","):
        name, *rest = item.split(";")
        parameters = dict(_parameter(text) for text in rest)
        quality = parameters.get("q", "1")
        if name.strip() and _QUALITY.fullmatch(quality):
            yield _Offer(name.strip().lower(), parameters.get("version", ""), float(quality))


def _parameter(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    return key.strip().lower(), value.strip().strip('"')
