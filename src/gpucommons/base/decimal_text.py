"""Whole numbers as other programs write them: ASCII digits only.

`str.isdigit` is also true for characters such as `²`, which `int` rejects, and `int` also accepts `١` and `1_000`.
"""

from typing import Final

# Enough for 64 bits, and far below the length limit of `int`.
_MOST_DIGITS: Final = 20


def parse_decimal(text: str) -> int | None:
    """The number in `text`; None if it is not a number or has more than 20 digits."""
    return int(text) if len(text) <= _MOST_DIGITS and text.isascii() and text.isdigit() else None
