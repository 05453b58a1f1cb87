"""gpucommons_mps_*: the MPS daemons of leases. Absent where leases do not use MPS."""

from collections import Counter
from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, counter, gauge
from gpucommons.model.snapshot import Snapshot

_STAGES = ("starting", "running", "stopping", "broken")

AVAILABLE = gauge("gpucommons_mps_available", "State of MPS for leases: 1 if daemons can be started, 0 if not.")
DAEMONS = gauge(
    "gpucommons_mps_daemons", "MPS daemons for leases by stage: starting, running, stopping or broken.", "stage"
)
STARTS = counter("gpucommons_mps_starts_total", "MPS daemons started since the agent started.")
FAILURES = counter("gpucommons_mps_failures_total", "Starts of MPS daemons that failed since the agent started.")
DEATHS = counter(
    "gpucommons_mps_deaths_total", "MPS daemons that ended by themselves, or did not answer, since the agent started."
)

CATALOGUE = (AVAILABLE, DAEMONS, STARTS, FAILURES, DEATHS)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    leases = snapshot.readings.leases
    reading = None if leases is None else leases.mps
    if reading is None:
        return
    yield AVAILABLE.value(int(not reading.unavailable))
    counts = Counter(daemon.stage for daemon in reading.daemons)
    yield DAEMONS.of(((stage,), counts[stage]) for stage in _STAGES)
    yield STARTS.value(reading.starts)
    yield FAILURES.value(reading.failures)
    yield DEATHS.value(reading.deaths)
