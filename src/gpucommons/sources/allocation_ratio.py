"""The file with the number of virtual GPUs per GPU: read when it changes. While it is invalid, the old ratios apply."""

import logging
import math
import os
import re
from collections.abc import Callable
from pathlib import Path

from gpucommons.model.gpu import AllocationRatioReading, AllocationRatios

_MOST_BYTES = 64 * 1024

log = logging.getLogger(__name__)


class AllocationRatioReader:
    """`parse` raises an exception with a one-line text. While the file is invalid, the last valid ratios apply."""

    def __init__(self, path: Path, parse: Callable[[str], AllocationRatios]) -> None:
        self._path = path
        self._parse = parse
        self._stamp: tuple[int, int, int] | None = None
        self._reading = AllocationRatioReading(None)

    def read(self) -> AllocationRatioReading:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                status = os.fstat(descriptor)
                stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
                if stamp == self._stamp:
                    return self._reading
                text = os.read(descriptor, _MOST_BYTES).decode("utf-8", "replace")
            finally:
                os.close(descriptor)
        except OSError as error:
            self._stamp = None
            return self._invalid(f"{error.strerror}; create it with a number above 0, such as 2")
        self._stamp = stamp
        try:
            ratios = self._parse(text)
        except Exception as error:
            return self._invalid(str(error))
        if self._reading.problem:
            log.info("%s: valid again", self._path)
        self._reading = AllocationRatioReading(ratios)
        return self._reading

    def _invalid(self, why: str) -> AllocationRatioReading:
        """Keeps the last valid ratios, and logs each problem once."""
        problem = f"{self._path}: {why}"
        if problem != self._reading.problem:
            meanwhile = "the last valid ratio" if self._reading.ratios else "the device plugin's ratio, or 1"
            log.warning("%s; until then %s applies", problem, meanwhile)
            self._reading = AllocationRatioReading(self._reading.ratios, problem)
        return self._reading


_LINE = re.compile(r"(?:([0-9]{1,4})\s*=)?\s*(\S+)")
_EXPECTED = "expected a number above 0, such as 2, or a line such as 0=2 for each GPU"
_MOST_QUOTED = 40


class RatioError(Exception):
    """One line: what is wrong, and what is expected."""


def parse_allocation_ratios(text: str) -> AllocationRatios:
    everywhere: float | None = None
    by_gpu_index: dict[int, float] = {}
    for line in filter(None, (line.partition("#")[0].strip() for line in text.splitlines())):
        match = _LINE.fullmatch(line)
        ratio = _number(match[2]) if match else None
        if match is None or ratio is None:
            raise RatioError(f"invalid ratio '{line[:_MOST_QUOTED]}': {_EXPECTED}")
        if match[1] is not None and int(match[1]) not in by_gpu_index:
            by_gpu_index[int(match[1])] = ratio
        elif match[1] is None and everywhere is None:
            everywhere = ratio
        else:
            raise RatioError(f"repeated ratio '{line[:_MOST_QUOTED]}': {_EXPECTED}")
    if everywhere is None and not by_gpu_index:
        raise RatioError(f"the file is empty: {_EXPECTED}")
    return AllocationRatios(everywhere, by_gpu_index)


def _number(text: str) -> float | None:
    try:
        # Python also accepts 1_0 and digits of other scripts.
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None
