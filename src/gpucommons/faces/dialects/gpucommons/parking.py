"""gpucommons_parking_*: programs whose GPU memory is in host memory, how much it is, and how long moving it took."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, HistogramPoint, counter, gauge, histogram, summed
from gpucommons.model.sharing import MOVE_BUCKETS
from gpucommons.model.snapshot import Snapshot

_OWNER = ("user",)
_STAGES = ("parking", "parked", "waking", "stranded")

PROGRAMS = gauge("gpucommons_parking_programs", "Programs that are parked or on their way, by stage.", "stage")
HOST_BYTES = gauge(
    "gpucommons_parking_host_bytes", "Host memory that holds the GPU memory of a user's parked programs.", *_OWNER
)
PARKED = counter("gpucommons_parking_parked_total", "Programs parked since the agent started.")
WOKEN = counter("gpucommons_parking_woken_total", "Parked programs brought back since the agent started.")
REFUSED = counter("gpucommons_parking_refused_total", "Programs that could not be parked, by reason.", "reason")
PARK = histogram(
    "gpucommons_parking_park_seconds", "Time to move the memory of a program to host memory.", buckets=MOVE_BUCKETS
)
WAKE = histogram(
    "gpucommons_parking_wake_seconds", "Time to move the memory of a program back to the GPU.", buckets=MOVE_BUCKETS
)

CATALOGUE = (PROGRAMS, HOST_BYTES, PARKED, WOKEN, REFUSED, PARK, WAKE)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    sharing = snapshot.readings.sharing
    parking = None if sharing is None else sharing.parking
    if sharing is None or parking is None:
        return
    stages = [one.stage for one in parking.programs]
    yield PROGRAMS.of(((stage,), stages.count(stage)) for stage in _STAGES)
    yield HOST_BYTES.of(summed(((one.user,), one.host_bytes) for one in parking.programs))
    yield PARKED.value(parking.parks)
    yield WOKEN.value(parking.wakes)
    yield REFUSED.of(((reason,), count) for reason, count in parking.refusals.items())
    for metric, durations in ((PARK, sharing.park_seconds), (WAKE, sharing.wake_seconds)):
        if durations is not None:
            yield metric.histogram([HistogramPoint((), durations.counts, durations.sum)])
