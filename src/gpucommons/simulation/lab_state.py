"""DS01's state directory in scenario lab: a newer install, which keeps no state file, on a disk that fills slowly."""

from gpucommons.model.ds01 import Ds01Reading
from gpucommons.simulation.scenario import wobble

_TOTAL_BYTES = 894 * 2**30


def state(elapsed_s: float) -> Ds01Reading:
    used = int(_TOTAL_BYTES * (0.61 + 0.004 * wobble(elapsed_s, 240)))
    return Ds01Reading(
        entries=None, disk_total_bytes=_TOTAL_BYTES, disk_free_bytes=_TOTAL_BYTES - used, disk_used_bytes=used
    )
