"""node_cpu_*: the time of each core by mode, thermal throttling, and isolated cores."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, counter, gauge
from gpucommons.model.host import CoreTimes
from gpucommons.model.snapshot import Snapshot

_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")

SECONDS = counter("node_cpu_seconds_total", "Seconds that a CPU spent in each mode since boot.", "cpu", "mode")
GUEST_SECONDS = counter(
    "node_cpu_guest_seconds_total",
    "Seconds that a CPU ran virtual machines since boot; included in the modes user and nice.",
    "cpu",
    "mode",
)
CORE_THROTTLES = counter(
    "node_cpu_core_throttles_total", "Thermal throttling events of a core since boot.", "package", "core"
)
PACKAGE_THROTTLES = counter(
    "node_cpu_package_throttles_total", "Thermal throttling events of a CPU package since boot.", "package"
)
ISOLATED = gauge("node_cpu_isolated", "CPU that is isolated from the scheduler; always 1.", "cpu")

CATALOGUE = (SECONDS, GUEST_SECONDS, CORE_THROTTLES, PACKAGE_THROTTLES, ISOLATED)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    cpu, hardware = snapshot.readings.cpu, snapshot.readings.hardware
    if cpu is not None:
        modes = [(mode, CoreTimes._fields.index(mode)) for mode in _MODES]
        cores = cpu.core_times.items()
        yield SECONDS.of(((core, mode), times[place]) for core, times in cores for mode, place in modes)
        yield GUEST_SECONDS.of(
            point
            for core, times in cores
            for point in (((core, "user"), times.guest), ((core, "nice"), times.guest_nice))
        )
    if hardware is not None:
        yield CORE_THROTTLES.of(hardware.throttles.cores.items())
        yield PACKAGE_THROTTLES.of(((package,), count) for package, count in hardware.throttles.packages.items())
        yield ISOLATED.of(((str(number),), 1) for number in hardware.isolated_cpus)
