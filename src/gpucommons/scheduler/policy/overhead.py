"""The memory of a client's process on the GPU besides its allocations: contexts and libraries (O_base).

Pure. It is sampled only while the client has allocated little and runs no kernels. It is smoothed, and kept within
what a CUDA context can plausibly take.
"""

from typing import Final

MIB: Final = 1 << 20
_SMALL_ALLOCATION_BYTES: Final = 256 * MIB
_SMOOTHING: Final = 0.2
_LEAST_BYTES: Final = 256 * MIB
_MOST_BYTES: Final = 4096 * MIB


def next_overhead(known_bytes: int | None, allocated_bytes: int, nvml_bytes: int | None, hot: bool) -> int | None:
    """The estimate after one more sample; None while there was no usable sample."""
    if nvml_bytes is None or hot or allocated_bytes >= _SMALL_ALLOCATION_BYTES:
        return known_bytes
    sample = min(max(nvml_bytes - allocated_bytes, _LEAST_BYTES), _MOST_BYTES)
    if known_bytes is None:
        return sample
    return round(known_bytes + _SMOOTHING * (sample - known_bytes))
