"""Amounts of memory and shares of a GPU as people write them: `8Gi`, `512Mi`, `50%`. Pure."""

import re
from typing import Final

from gpucommons.base.decimal_text import parse_decimal

_UNITS: Final = {
    "": 1,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
}
_QUANTITY: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*(Ki|Mi|Gi|K|M|G|)B?", re.ASCII)
LARGEST_BYTES: Final = 1 << 60


def parse_memory(text: str) -> int:
    """Bytes of `8Gi`, `512Mi`, `10G`, `1073741824`; raises ValueError on anything else."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"invalid amount of memory {text!r}: use bytes, or a number with Ki, Mi, Gi, K, M or G")
    amount = int(float(match[1]) * _UNITS[match[2]])
    if not 0 < amount <= LARGEST_BYTES:
        raise ValueError(f"invalid amount of memory {text!r}: use more than 0 and at most 1024 PiB")
    return amount


def parse_core(text: str) -> int:
    """Percent of the GPU's time, 1..100; raises ValueError on anything else."""
    percent = parse_decimal(text.strip().removesuffix("%"))
    if percent is None or not 1 <= percent <= 100:
        raise ValueError(f"invalid share of a GPU {text!r}: use a whole number from 1 to 100")
    return percent
