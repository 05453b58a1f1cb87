"""Reads JSON from other programs: each value has the expected type or is empty. Never raises on a value.

Strings can always be encoded as UTF-8, whatever escapes they contained.
"""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime

from gpucommons.sources.source import SourceError

JsonObject = Mapping[str, object]


def parse(data: bytes, whose: str) -> object:
    """The document in `data`. Invalid or too deeply nested JSON is a SourceError."""
    try:
        document: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SourceError("garbage", f"the response of {whose} is not JSON: {error}") from None
    return document


def mapping(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}


def items(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()


def text(value: object) -> str:
    if not isinstance(value, str):
        return ""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def texts(value: object) -> tuple[str, ...]:
    return tuple(text(item) for item in items(value) if isinstance(item, str))


def text_mapping(value: object) -> dict[str, str]:
    return {text(key): text(item) for key, item in mapping(value).items() if isinstance(item, str)}


def integer(value: object, default: int = 0) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def wall_s(value: object) -> float | None:
    """An RFC 3339 time in seconds since 1970. None for the year 1, which runtimes write for "never"."""
    try:
        parsed_s = datetime.fromisoformat(text(value)).timestamp()
    except (ValueError, OverflowError):
        return None
    return parsed_s if parsed_s > 0 and math.isfinite(parsed_s) else None
