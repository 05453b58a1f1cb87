"""The scenarios that `--simulate` knows, by name."""

from gpucommons.model.host import CpuReading, MemoryReading, PressureReading
from gpucommons.model.processes import ProcessTable
from gpucommons.simulation import lab_host
from gpucommons.simulation.scenario import Scenario, SimulatedSource
from gpucommons.sources.source import Source

_BUSIEST = 100


def _lab(cadence_s: float) -> list[Source]:
    return [
        SimulatedSource("cpu", "cpu", CpuReading, lab_host.cpu, cadence_s, essential=True),
        SimulatedSource("memory", "memory", MemoryReading, lab_host.memory, cadence_s, essential=True),
        SimulatedSource("pressure", "pressure", PressureReading, lab_host.pressure, cadence_s),
        SimulatedSource("processes", "processes", ProcessTable, lab_host.LabProcesses(_BUSIEST).at, cadence_s),
    ]


SCENARIOS = {
    scenario.name: scenario
    for scenario in (Scenario("lab", "a research group's server on a busy day that lasts ten minutes", _lab),)
}
