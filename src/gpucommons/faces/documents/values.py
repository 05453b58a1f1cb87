"""JSON values and their encoding. A missing number, and one that is not finite, is null."""

import json
import math
from collections.abc import Mapping, Sequence

from gpucommons.base.text import Printable, printable_json

Json = Mapping[str, "Json"] | Sequence["Json"] | str | int | float | bool | None


def round_value(value: float | None, digits: int) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, digits)


def percent_as_ratio(percent: float | None) -> float | None:
    return None if percent is None else round(percent / 100, 4)


def encode(value: Json) -> bytes:
    """JSON that every parser accepts: invalid Unicode is replaced, and numbers that are not finite are null."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace")


def indent(value: Json) -> Printable:
    """Indented JSON with the same values, for a terminal."""
    return printable_json(json.dumps(json.loads(encode(value)), indent=2, ensure_ascii=False) + "\n")


def one_line(value: Json) -> Printable:
    """JSON with the same values in one line, for a command that prints one document after another."""
    return printable_json(encode(value).decode())


def _finite(value: Json) -> Json:
    if isinstance(value, Mapping):
        return {key: _finite(inside) for key, inside in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inside) for inside in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
