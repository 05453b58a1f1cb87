"""The lab whose programs share GPUs under the real scheduler, and whose users ask for leases.

Stand-ins for the pauser, the meter and the machine's memory take the place of the driver.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gpucommons.leases.policy.values import LeaseRefused
from gpucommons.leases.protocol import Line, RunRequest
from gpucommons.leases.service.service import LeaseClient, LeaseService
from gpucommons.model.host import HostMemory
from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser.client import PauserSettings
from gpucommons.simulation import lab_host
from gpucommons.simulation.lab_gpus import LabGpus
from gpucommons.simulation.lab_jobs import LabJob
from gpucommons.simulation.lab_people import RUNS, LabRun
from gpucommons.simulation.lab_workloads import lab_world
from gpucommons.simulation.scenario import Scenario
from gpucommons.simulation.scenarios import SCENARIOS, FaultyGpus, node_sources
from gpucommons.simulation.shared_load import SharedLoad, SimulatedMeter
from gpucommons.simulation.simulated_pauser import SimulatedPauser
from gpucommons.sources.source import Source

# The users of the lab that run commands with `gpucommons run`: simulated clients of the lease service.
#
# Each requests a slot, runs its command for a while once it has one, is away for a while, and requests again. There are
# more of them than free slots, so that some wait. Their names in the queue say that they are simulated.

_GIB: Final = 2**30
# A client that was refused tries again after so long.
_AGAIN_S: Final = 20.0
# A command starts its program on the GPU a moment after it has its slot.
_START_S: Final = 2.0


@dataclass(slots=True)
class _Player:
    """`id` is that of its lease or request; `begins_s` and `ends_s` are set once it has its slot."""

    run: LabRun
    next_s: float
    times: int = 0
    id: str = ""
    slot: str = ""
    begins_s: float = 0.0
    ends_s: float | None = None
    job: ProcessKey | None = None


class LabLeaseUsers:
    """Call `step` about once a second, on the thread of the lease service. `own` is the process of the agent.

    The agent is the process that the record names for their leases: after a restart they are not waited for.
    """

    def __init__(self, load: SharedLoad, gpus: LabGpus, clock: Callable[[], float], runs: Iterable[LabRun]) -> None:
        self._load = load
        self._gpus = gpus
        self._clock = clock
        self._players = [_Player(run, run.first_s) for run in runs]

    def step(self, service: LeaseService, own: ProcessKey) -> None:
        now_s = self._clock()
        for player in self._players:
            if not player.id and now_s >= player.next_s:
                self._request(player, service, own)
            elif player.ends_s is not None and now_s >= player.ends_s:
                id = player.id
                self._leave(player, player.run.away_s)
                service.finish(id, report=False)
            elif player.ends_s is not None and player.job is None and now_s >= player.begins_s:
                self._start(player)

    def _request(self, player: _Player, service: LeaseService, own: ProcessKey) -> None:
        run = player.run

        def hear(line: Line) -> None:
            self._hear(player, line)

        client = LeaseClient(run.person.uid, run.person.name, own.pid, own.start_ticks, False, hear)
        request = RunRequest(
            memory_bytes=int(run.memory_gib * _GIB),
            share=run.share,
            limit_s=run.limit_s,
            name=run.name,
            program=run.program,
        )
        player.times += 1
        try:
            player.id = service.open(client, request)
        except LeaseRefused:
            self._leave(player, _AGAIN_S)

    def _hear(self, player: _Player, line: Line) -> None:
        match line:
            case {"event": "queued", "id": str(id)}:
                player.id = id
            case {"event": "granted", "slots": [{"uuid": str(uuid)}]}:
                player.slot = uuid
                player.begins_s = self._clock() + _START_S
                player.ends_s = player.begins_s + player.run.runs_s
            case {"event": "cancelled" | "error"}:
                self._leave(player, _AGAIN_S)

    def _start(self, player: _Player) -> None:
        place = self._gpus.place(player.slot)
        if place is None:
            return
        run = player.run
        # A program is its pid and its start time: each run is another one.
        key = player.job = ProcessKey(run.pid, 1000 * (run.number + 1) + player.times)
        gpu, instance = place
        job = LabJob(key, run.command, gpu, "compute", run.used_gib, run.level, run.level, 1.0, 2.0, instance)
        self._load.start(job)

    def _leave(self, player: _Player, away_s: float) -> None:
        if player.job is not None:
            self._load.end(player.job)
        player.id, player.slot, player.ends_s, player.job = "", "", None, None
        player.next_s = self._clock() + away_s


# The lab whose programs share GPUs under the real scheduler: stand-ins for the pauser, the meter and the machine.


class SharedLab:
    """`scenario` takes the place of the one without sharing: it has no source of turns, because the scheduler runs."""

    def __init__(self, name: str) -> None:
        started_s = time.monotonic()

        def elapsed_s() -> float:
            return time.monotonic() - started_s

        self._elapsed_s = elapsed_s
        self.load = SharedLoad(elapsed_s)
        self.gpus = LabGpus(time.time(), load=self.load)
        self.meter = SimulatedMeter(self.load, self.gpus)
        self.host = SimulatedParkHost(self.load, elapsed_s)
        self.lease_users = LabLeaseUsers(self.load, self.gpus, elapsed_s, RUNS)
        plain = SCENARIOS[name]
        self.scenario = Scenario(name, plain.summary, self._sources, lab_world(self.load))

    def pauser(self, max_pause_s: float) -> PauserSettings:
        """A new pauser, of the lab's programs alone."""
        return PauserSettings(max_pause_s=max_pause_s, stand_in=SimulatedPauser(self.load, max_pause_s).connect)

    def free_memory(self, devices: Iterable[str]) -> Mapping[str, int]:
        amounts = {device: self.gpus.free_bytes(device, self._elapsed_s()) for device in devices}
        return {device: amount for device, amount in amounts.items() if amount is not None}

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

    def container_room_bytes(self, pids: Iterable[int]) -> float | None:
        return math.inf

    def thread_seconds(self, pids: Iterable[int]) -> Mapping[int, float] | None:
        jobs = self._jobs(pids)
        return {job.key.pid: self._load.cpu_seconds(job, self._elapsed_s()) for job in jobs} if jobs else None

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
