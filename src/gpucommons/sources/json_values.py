"""Reading JSON that others wrote: each value is what it should be, or empty. Never raises on a value.

Text comes out encodable as UTF-8, whatever escapes were in it.
"""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime

from gpucommons.sources.source import SourceError

JsonObject = Mapping[str, object]


def parse(data: bytes, whose: str) -> object:
    """The document in `data`; garbage (also one nested too deep to read) is a SourceError."""
    try:
        document: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SourceError("garbage", f"{whose} answered what is not JSON: {error}") from None
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
    """An RFC 3339 time in seconds since 1970. Runtimes write the year 1 for "never": None."""
    try:
        parsed_s = datetime.fromisoformat(text(value)).timestamp()
    except (ValueError, OverflowError):
        return None
    return parsed_s if parsed_s > 0 and math.isfinite(parsed_s) else None
