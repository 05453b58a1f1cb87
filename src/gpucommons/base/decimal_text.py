"""Whole numbers as other programs write them: ASCII digits only.

`str.isdigit` is also true of characters such as `²`, which `int` refuses, and `int` also takes `١` and `1_000`.
"""

from typing import Final

# Enough for 64 bits, and far below the length at which `int` refuses.
_MOST_DIGITS: Final = 20


def parse_decimal(text: str) -> int | None:
    """The number that `text` is; None where it is not one, or has more than 20 digits."""
    return int(text) if len(text) <= _MOST_DIGITS and text.isascii() and text.isdigit() else None
