"""The scenarios that `--simulate` knows, by name.

Scenario faults is the lab in which GPUs and sources fail and come back.
"""

import math
import time
from collections.abc import Callable

from gpucommons.model.events import EventsReading
from gpucommons.model.gpu import RECENT_S, Gpu, GpuReading, XidRecord
from gpucommons.model.host import (
    CpuReading,
    FilesystemReading,
    HardwareReading,
    KernelReading,
    MemoryReading,
    PressureReading,
    TextFilesReading,
)
from gpucommons.model.process_identity import ProcessTable
from gpucommons.model.sharing import SharingReading
from gpucommons.model.workloads import (
    ContainerReading,
    ContainerUsageReading,
    Ds01Reading,
    JobMappingReading,
    PodDevicesReading,
    PodReading,
    UsersReading,
)
from gpucommons.simulation import lab_host, lab_people, lab_workloads
from gpucommons.simulation.day import DAY_S
from gpucommons.simulation.lab_gpus import LabGpus
from gpucommons.simulation.lab_jobs import LabLoad
from gpucommons.simulation.lab_people import LabUsers
from gpucommons.simulation.lab_sharing import LabSharing
from gpucommons.simulation.lab_workloads import CONTAINER_UIDS, LabContainers, lab_world
from gpucommons.simulation.scenario import Scenario, simulated_source
from gpucommons.sources.source import Source

# Scenario faults: the lab, where GPU 3 falls off the bus and comes back, GPU 5 reports XIDs, and GPU 1 overheats.
#
# Each simulated day is the same: an alert fires and resolves within ten minutes.

# Soon, but after the first readings: that a GPU was there before is what makes it lost.
LOST_GPU, LOST_FROM_S, LOST_UNTIL_S = 3, 6.0, 320.0
XID_GPU, XID_FROM_S, XID_EVERY_S, XID_BURST = 5, 10.0, 2.0, 12
HOT_GPU = 1
_FELL_OFF_THE_BUS, _MMU_FAULT, _RESET_CHANNEL = 79, 31, 45
_HW_THERMAL_SLOWDOWN, _HW_SLOWDOWN = 0x40, 0x8
_DAYS_AN_HOUR = int(RECENT_S / DAY_S)


class FaultyGpus:
    """Adds faults to the readings of the lab. Counters keep what has happened."""

    def __init__(self, lab: LabGpus) -> None:
        self._lab = lab

    def at(self, elapsed_s: float) -> GpuReading:
        reading = self._lab.at(elapsed_s)
        gpus = list(reading.gpus)
        gpus[HOT_GPU] = _hot(gpus[HOT_GPU])
        gpus[XID_GPU] = gpus[XID_GPU]._replace(xid=self._burst(elapsed_s))
        gpus[LOST_GPU] = self._lose(gpus[LOST_GPU], elapsed_s)
        # Lost GPUs come after the present ones, as in the real source.
        gpus.sort(key=lambda gpu: not gpu.up)
        return reading._replace(gpus=tuple(gpus), present=sum(gpu.up for gpu in gpus))

    def _burst(self, elapsed_s: float) -> XidRecord:
        """Twelve XIDs in half a minute, every day; each fourth has the other code."""
        day, of_day_s = divmod(elapsed_s, DAY_S)
        today = min(max(math.floor((of_day_s - XID_FROM_S) / XID_EVERY_S) + 1, 0), XID_BURST)
        count = int(day) * XID_BURST + today
        if count == 0:
            return XidRecord(watched=True)
        counts = {_MMU_FAULT: count - count // 4, _RESET_CHANNEL: count // 4}
        last = _RESET_CHANNEL if count % 4 == 0 else _MMU_FAULT
        last_day, last_number = divmod(count - 1, XID_BURST)
        last_s = last_day * DAY_S + XID_FROM_S + last_number * XID_EVERY_S
        by_code = {k: n for k, n in counts.items() if n}
        return XidRecord(True, by_code, last, self._lab.started_wall_s + last_s, recent=self._recent_burst(count))

    def _recent_burst(self, count: int) -> dict[tuple[int, int], int]:
        """The XIDs of the last hour, which is six simulated days."""
        recent: dict[tuple[int, int], int] = {}
        for number in range(max(0, count - _DAYS_AN_HOUR * XID_BURST), count):
            day, of_day = divmod(number, XID_BURST)
            second = int(self._lab.started_wall_s + day * DAY_S + XID_FROM_S + of_day * XID_EVERY_S)
            recent[(second, _MMU_FAULT if (number + 1) % 4 else _RESET_CHANNEL)] = 1
        return recent

    def _lose(self, gpu: Gpu, elapsed_s: float) -> Gpu:
        day, of_day_s = divmod(elapsed_s, DAY_S)
        times = int(day) + (of_day_s >= LOST_FROM_S)
        if times == 0:
            return gpu
        last_s = (times - 1) * DAY_S + LOST_FROM_S
        lost_wall_s = self._lab.started_wall_s + last_s
        recent = {(int(lost_wall_s), _FELL_OFF_THE_BUS): 1}
        xid = XidRecord(True, {_FELL_OFF_THE_BUS: times}, _FELL_OFF_THE_BUS, lost_wall_s, recent=recent)
        if LOST_FROM_S <= of_day_s < LOST_UNTIL_S:
            return Gpu(gpu.identity, False, lost_wall_s, "gpu_is_lost", xid=xid)
        returned_s = last_s + LOST_UNTIL_S - LOST_FROM_S
        return gpu._replace(since_wall_s=self._lab.started_wall_s + returned_s, xid=xid)


def _hot(gpu: Gpu) -> Gpu:
    readings = gpu.readings._replace(
        temperature_celsius=91,
        memory_temperature_celsius=99,
        clock_sm_mhz=870,
        clock_graphics_mhz=870,
        throttle_mask=_HW_THERMAL_SLOWDOWN | _HW_SLOWDOWN,
    )
    samples = tuple(sample._replace(throttle_mask=_HW_THERMAL_SLOWDOWN | _HW_SLOWDOWN) for sample in gpu.clock_samples)
    return gpu._replace(readings=readings, clock_samples=samples)


Clock = Callable[[], float]

_BUSIEST = 100


def _lab(cadence_s: float, monotonic: Clock) -> list[Source]:
    gpus = LabGpus(time.time())
    return [*node_sources(cadence_s, monotonic, gpus, gpus.at), _turns(cadence_s, monotonic, gpus)]


def _faults(cadence_s: float, monotonic: Clock) -> list[Source]:
    gpus = LabGpus(time.time())
    return [*node_sources(cadence_s, monotonic, gpus, FaultyGpus(gpus).at), _turns(cadence_s, monotonic, gpus)]


def _turns(cadence_s: float, monotonic: Clock, lab: LabGpus) -> Source:
    """The turns of clients in fixed rounds: no scheduler runs."""
    return simulated_source("scheduler", "sharing", SharingReading, LabSharing(lab).at, cadence_s, monotonic)


def node_sources(
    cadence_s: float,
    monotonic: Clock,
    lab: LabGpus,
    gpus: Callable[[float], GpuReading],
    load: LabLoad | None = None,
) -> list[Source]:
    """`lab` has the identities of the GPUs; `gpus` makes their readings; `load` is what the jobs do."""

    def source(name: str, feeds: str, produces: type, make: Callable[[float], object]) -> Source:
        return simulated_source(name, feeds, produces, make, cadence_s, monotonic, essential=name in ("cpu", "memory"))

    return [
        source("cpu", "cpu", CpuReading, lab_host.cpu),
        source("memory", "memory", MemoryReading, lab_host.memory),
        source("pressure", "pressure", PressureReading, lab_host.pressure),
        source("kernel", "kernel", KernelReading, lab_host.kernel),
        source("filesystems", "filesystems", FilesystemReading, lab_host.filesystems),
        source("hardware", "hardware", HardwareReading, lab_host.hardware),
        source("text_files", "text_files", TextFilesReading, lab_host.text_files),
        source("processes", "processes", ProcessTable, lab_host.LabProcesses(_BUSIEST, load).at),
        source("nvml", "gpus", GpuReading, gpus),
        source("docker", "docker", ContainerReading, LabContainers(lab).at),
        source("container_usage", "container_usage", ContainerUsageReading, lab_workloads.usage),
        source("kubernetes", "pods", PodReading, lab_workloads.pods),
        source("kubelet", "pod_devices", PodDevicesReading, lab_workloads.LabPodDevices(lab).at),
        source("job_mapping", "job_mapping", JobMappingReading, lab_people.jobs),
        source("users", "users", UsersReading, LabUsers(CONTAINER_UIDS).at),
        source("ds01", "ds01", Ds01Reading, lab_workloads.state),
        source("events", "events", EventsReading, lab_workloads.events),
    ]


_LAB = "a research group's server on a busy day that lasts ten minutes"
_FAULTS = "the lab on a bad day: a GPU is lost, one throws XIDs, one runs hot"

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("lab", _LAB, _lab, lab_world()),
        Scenario("faults", _FAULTS, _faults, lab_world()),
    )
}
