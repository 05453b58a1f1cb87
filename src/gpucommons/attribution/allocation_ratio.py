"""Reads the text of gpu_allocation.txt: one number, or a line such as `0=2` for each GPU. Pure."""

import math
import re

from gpucommons.model.gpu import AllocationRatios

_LINE = re.compile(r"(?:([0-9]{1,4})\s*=)?\s*(\S+)")
_WANTS = "wants a number above 0, such as 2, or a line such as 0=2 for each GPU"
_MOST_QUOTED = 40


class RatioError(Exception):
    """One line that says what is wrong and what would be right."""


def parse_allocation_ratios(text: str) -> AllocationRatios:
    everywhere: float | None = None
    by_gpu_index: dict[int, float] = {}
    for line in filter(None, (line.partition("#")[0].strip() for line in text.splitlines())):
        match = _LINE.fullmatch(line)
        ratio = _number(match[2]) if match else None
        if match is None or ratio is None:
            raise RatioError(f"'{line[:_MOST_QUOTED]}' is no ratio; {_WANTS}")
        if match[1] is not None and int(match[1]) not in by_gpu_index:
            by_gpu_index[int(match[1])] = ratio
        elif match[1] is None and everywhere is None:
            everywhere = ratio
        else:
            raise RatioError(f"'{line[:_MOST_QUOTED]}' says the same again; {_WANTS}")
    if everywhere is None and not by_gpu_index:
        raise RatioError(f"it is empty; {_WANTS}")
    return AllocationRatios(everywhere, by_gpu_index)


def _number(text: str) -> float | None:
    try:
        # Python would also read 1_0 and the digits of other scripts.
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None
