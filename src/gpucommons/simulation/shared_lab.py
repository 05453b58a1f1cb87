"""The lab whose programs share GPUs under the real scheduler: stand-ins for the pauser, the meter and the machine."""

import time
from collections.abc import Callable, Iterable, Mapping

from gpucommons.model.host import HostMemory
from gpucommons.model.process_identity import ProcessKey
from gpucommons.simulation import lab_host
from gpucommons.simulation.faults import FaultyGpus
from gpucommons.simulation.lab_gpus import LabGpus
from gpucommons.simulation.lab_jobs import LabJob
from gpucommons.simulation.lab_leases import LabLeaseUsers
from gpucommons.simulation.lab_runs import RUNS
from gpucommons.simulation.lab_world import lab_world
from gpucommons.simulation.scenario import Scenario
from gpucommons.simulation.scenarios import SCENARIOS, node_sources
from gpucommons.simulation.shared_load import SharedLoad
from gpucommons.simulation.simulated_meter import SimulatedMeter
from gpucommons.simulation.simulated_pauser import SimulatedPauser
from gpucommons.sources.source import Source


class SharedLab:
    """`scenario` takes the place of the one without sharing: it has no source of turns, because the scheduler runs."""

    def __init__(self, name: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        started_s = monotonic()

        def elapsed_s() -> float:
            return monotonic() - started_s

        self._elapsed_s = elapsed_s
        self.load = SharedLoad(elapsed_s)
        self.gpus = LabGpus(time.time(), load=self.load)
        self.meter = SimulatedMeter(self.load, self.gpus)
        self.host = SimulatedParkHost(self.load, elapsed_s)
        self.lease_users = LabLeaseUsers(self.load, self.gpus, elapsed_s, RUNS)
        plain = SCENARIOS[name]
        self.scenario = Scenario(name, plain.summary, self._sources, lab_world(self.load))

    def pauser(self, max_pause_s: float) -> SimulatedPauser:
        return SimulatedPauser(self.load, max_pause_s)

    def free_memory(self, devices: Iterable[str]) -> Mapping[str, int]:
        found = {device: self.gpus.free_bytes(device, self._elapsed_s()) for device in devices}
        return {device: amount for device, amount in found.items() if amount is not None}

    def _sources(self, cadence_s: float, monotonic: Callable[[], float]) -> list[Source]:
        read = FaultyGpus(self.gpus).at if self.scenario.name == "faults" else self.gpus.at
        return node_sources(cadence_s, monotonic, self.gpus, read, self.load)


def shared_lab(name: str) -> SharedLab | None:
    """None for a scenario whose programs are not simulated one by one."""
    return SharedLab(name) if name in SCENARIOS else None


class SimulatedParkHost:
    """The host of the lab, for parking: its memory, and the CPU time and memory of its jobs."""

    def __init__(self, load: SharedLoad, elapsed_s: Callable[[], float]) -> None:
        self._load = load
        self._elapsed_s = elapsed_s

    def host_memory(self) -> HostMemory | None:
        memory = lab_host.memory(self._elapsed_s())
        return None if memory.available_bytes is None else HostMemory(memory.total_bytes, memory.available_bytes)

    def container_room_bytes(self, pids: Iterable[int]) -> int | None:
        return None

    def cpu_seconds(self, pids: Iterable[int]) -> float | None:
        found = self._jobs(pids)
        return sum(self._load.cpu_seconds(job, self._elapsed_s()) for job in found) if found else None

    def waits_in(self, pids: Iterable[int]) -> tuple[int, ...] | None:
        """Not shown: the CPU time is enough."""
        return None

    def resident_bytes(self, pids: Iterable[int]) -> int:
        return sum(self._load.resident_bytes(job, self._elapsed_s()) for job in self._jobs(pids))

    def why_stopped(self, pids: Iterable[int]) -> str:
        return ""

    def has_ended(self, process: ProcessKey) -> bool:
        return self._load.job(process) is None

    def _jobs(self, pids: Iterable[int]) -> list[LabJob]:
        chosen = set(pids)
        return [job for job in self._load.jobs() if job.key.pid in chosen]
