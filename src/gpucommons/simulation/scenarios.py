"""The scenarios that `--simulate` knows, by name."""

import time
from collections.abc import Callable

from gpucommons.model.container_usage import ContainerUsageReading
from gpucommons.model.containers import ContainerReading
from gpucommons.model.ds01 import Ds01Reading
from gpucommons.model.events import EventsReading
from gpucommons.model.gpu import GpuReading
from gpucommons.model.host import CpuReading, MemoryReading, PressureReading
from gpucommons.model.processes import ProcessTable
from gpucommons.model.users import UsersReading
from gpucommons.simulation import lab_ds01, lab_host, lab_people
from gpucommons.simulation.faults import FaultyGpus
from gpucommons.simulation.lab_containers import LabContainerUsage
from gpucommons.simulation.lab_gpus import LabGpus
from gpucommons.simulation.scenario import Scenario, SimulatedSource
from gpucommons.sources.source import Source

_BUSIEST = 100


def _lab(cadence_s: float) -> list[Source]:
    now_s = time.time()
    return _node(cadence_s, now_s, LabGpus(now_s).at)


def _faults(cadence_s: float) -> list[Source]:
    now_s = time.time()
    return _node(cadence_s, now_s, FaultyGpus(LabGpus(now_s)).at)


def _node(cadence_s: float, started_wall_s: float, gpus: Callable[[float], GpuReading]) -> list[Source]:
    containers = lab_people.containers(started_wall_s)
    return [
        SimulatedSource("cpu", "cpu", CpuReading, lab_host.cpu, cadence_s, essential=True),
        SimulatedSource("memory", "memory", MemoryReading, lab_host.memory, cadence_s, essential=True),
        SimulatedSource("pressure", "pressure", PressureReading, lab_host.pressure, cadence_s),
        SimulatedSource("processes", "processes", ProcessTable, lab_host.LabProcesses(_BUSIEST).at, cadence_s),
        SimulatedSource("nvml", "gpus", GpuReading, gpus, cadence_s),
        SimulatedSource("docker", "docker", ContainerReading, lambda _: containers, cadence_s),
        SimulatedSource(
            "container_usage", "container_usage", ContainerUsageReading, LabContainerUsage(containers).at, cadence_s
        ),
        SimulatedSource("users", "users", UsersReading, lab_people.users, cadence_s),
        SimulatedSource("ds01", "ds01", Ds01Reading, lab_ds01.state, cadence_s),
        SimulatedSource("events", "events", EventsReading, lab_ds01.events, cadence_s),
    ]


_LAB = "a research group's server on a busy day that lasts ten minutes"
_FAULTS = "the lab on a bad day: a GPU is lost, one throws XIDs, one runs hot"

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("lab", _LAB, _lab, lab_people.world()),
        Scenario("faults", _FAULTS, _faults, lab_people.world()),
    )
}
