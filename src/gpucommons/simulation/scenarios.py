"""The scenarios that `--simulate` knows, by name."""

import time
from collections.abc import Callable

from gpucommons.model.events import EventsReading
from gpucommons.model.gpu import GpuReading
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
from gpucommons.simulation import lab_batch, lab_containers, lab_ds01, lab_host, lab_kernel, lab_pods
from gpucommons.simulation.faults import FaultyGpus
from gpucommons.simulation.lab_containers import CONTAINER_UIDS, LabContainers
from gpucommons.simulation.lab_gpus import LabGpus
from gpucommons.simulation.lab_load import LabLoad
from gpucommons.simulation.lab_people import LabUsers
from gpucommons.simulation.lab_sharing import LabSharing
from gpucommons.simulation.lab_world import lab_world
from gpucommons.simulation.scenario import Scenario, simulated_source
from gpucommons.sources.source import Source

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
        source("kernel", "kernel", KernelReading, lab_kernel.kernel),
        source("filesystems", "filesystems", FilesystemReading, lab_kernel.filesystems),
        source("hardware", "hardware", HardwareReading, lab_kernel.hardware),
        source("text_files", "text_files", TextFilesReading, lab_kernel.text_files),
        source("processes", "processes", ProcessTable, lab_host.LabProcesses(_BUSIEST, load).at),
        source("nvml", "gpus", GpuReading, gpus),
        source("docker", "docker", ContainerReading, LabContainers(lab).at),
        source("container_usage", "container_usage", ContainerUsageReading, lab_containers.usage),
        source("kubernetes", "pods", PodReading, lab_pods.pods),
        source("kubelet", "pod_devices", PodDevicesReading, lab_pods.LabPodDevices(lab).at),
        source("job_mapping", "job_mapping", JobMappingReading, lab_batch.jobs),
        source("users", "users", UsersReading, LabUsers(CONTAINER_UIDS).at),
        source("ds01", "ds01", Ds01Reading, lab_ds01.state),
        source("events", "events", EventsReading, lab_ds01.events),
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
