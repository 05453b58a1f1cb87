"""The price of a GPU-hour as a setting: a number for all GPUs, or a table by GPU model. Pure.

As text, such as in an environment variable, it is `2.5` or `*H100*=2.5, *=1`.
"""

import math
from decimal import Decimal, InvalidOperation

_LONGEST_CURRENCY = 8
_HIGHEST = 10**9


def price_text(value: object) -> object:
    """The text of a number or of a table in the file; all other values as they are. Raises ValueError."""
    if isinstance(value, dict):
        return ", ".join(f"{_pattern(pattern)}={_number(price, pattern)}" for pattern, price in value.items())
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number(value, "*")
    return value


def parse_prices(text: str) -> tuple[tuple[str, int], ...]:
    """Patterns of GPU models with their prices in billionths, in their order; empty if no price is set.

    Raises ValueError.
    """
    if "=" not in text:
        return (("*", _price(text, "*")),) if text.strip() else ()
    prices = []
    for part in text.split(","):
        pattern, equals, price = part.rpartition("=")
        if not equals or not pattern.strip():
            raise ValueError(f"invalid price {part.strip()!r}: use PATTERN=PRICE, such as *H100*=2.5")
        prices.append((pattern.strip(), _price(price, pattern.strip())))
    return tuple(prices)


def check_currency(text: str) -> None:
    if len(text) > _LONGEST_CURRENCY or not text.isprintable() or " " in text:
        raise ValueError(f"invalid currency {text!r}: use at most {_LONGEST_CURRENCY} characters without spaces")


def _pattern(text: str) -> str:
    if not text.strip() or "=" in text or "," in text:
        raise ValueError(f"invalid pattern {text!r}: use a shell pattern of the GPU's model, such as *H100*")
    return text


def _number(value: object, pattern: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"invalid price {value!r} for {pattern!r}: use a number")
    _price(repr(value), pattern)
    return repr(value)


def _price(text: str, pattern: str) -> int:
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        raise ValueError(f"invalid price {text.strip()!r} for {pattern!r}: use a number") from None
    if not math.isfinite(number) or not 0 <= number <= _HIGHEST:
        raise ValueError(f"invalid price {text.strip()} for {pattern!r}: use 0 to {_HIGHEST}")
    return in_billionths(number)


def in_billionths(number: Decimal | float) -> int:
    """As it is written: 0.1 is a tenth."""
    return round(Decimal(str(number)) * 10**9)
