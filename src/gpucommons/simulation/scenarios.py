"""The scenarios that `--simulate` knows, by name."""

import time
from collections.abc import Callable

from gpucommons.model.gpu import GpuReading
from gpucommons.model.host import CpuReading, MemoryReading, PressureReading
from gpucommons.model.processes import ProcessTable
from gpucommons.simulation import lab_host
from gpucommons.simulation.faults import FaultyGpus
from gpucommons.simulation.lab_gpus import LabGpus
from gpucommons.simulation.scenario import Scenario, SimulatedSource
from gpucommons.sources.source import Source

_BUSIEST = 100


def _lab(cadence_s: float) -> list[Source]:
    return _node(cadence_s, LabGpus(time.time()).at)


def _faults(cadence_s: float) -> list[Source]:
    return _node(cadence_s, FaultyGpus(LabGpus(time.time())).at)


def _node(cadence_s: float, gpus: Callable[[float], GpuReading]) -> list[Source]:
    return [
        SimulatedSource("cpu", "cpu", CpuReading, lab_host.cpu, cadence_s, essential=True),
        SimulatedSource("memory", "memory", MemoryReading, lab_host.memory, cadence_s, essential=True),
        SimulatedSource("pressure", "pressure", PressureReading, lab_host.pressure, cadence_s),
        SimulatedSource("processes", "processes", ProcessTable, lab_host.LabProcesses(_BUSIEST).at, cadence_s),
        SimulatedSource("nvml", "gpus", GpuReading, gpus, cadence_s),
    ]


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("lab", "a research group's server on a busy day that lasts ten minutes", _lab),
        Scenario("faults", "the lab on a bad day: a GPU is lost, one throws XIDs, one runs hot", _faults),
    )
}
