"""Pausing of programs on leased GPUs in an agent that does not share programs: a thread, fed with every snapshot."""

from typing import Protocol

from gpucommons.agent.pausing import enforcement_terms, pauser_settings
from gpucommons.config.settings import Settings
from gpucommons.model.snapshot import Snapshot
from gpucommons.scheduler.programs.jobs import read_programs
from gpucommons.scheduler.programs.trespass import TrespassReport, TrespassStanding
from gpucommons.scheduler.service.enforcement_thread import EnforcementThread
from gpucommons.sources.source import Source


class Enforcer(Protocol):
    """Pauses the processes of the report, and reports which are paused. Called from any thread."""

    def update_trespassers(self, report: TrespassReport) -> None: ...
    @property
    def trespass_standing(self) -> TrespassStanding: ...


class Enforcing:
    """Without leases it does nothing: the pauser sleeps."""

    def __init__(self, settings: Settings) -> None:
        self.thread = EnforcementThread(pauser_settings(settings), enforcement_terms(settings))

    def sources(self) -> list[Source]:
        return []

    async def start(self) -> None:
        await self.thread.start()

    async def stop(self) -> None:
        await self.thread.stop()

    def observe(self, snapshot: Snapshot) -> None:
        leases, source = snapshot.readings.leases, snapshot.sources.get("nvml")
        if leases is None or not leases.leases or source is None or source.last_success_monotonic_s is None:
            return
        reading, sharing = read_programs(snapshot.readings, source.last_success_monotonic_s), snapshot.readings.sharing
        if reading is not None:
            clients = () if sharing is None else sharing.clients
            self.thread.update_programs(reading, frozenset(client.pid for client in clients))
