"""Whose programs the agent pauses, and the pausing of programs on leased GPUs where programs are not shared."""

import os
from typing import Final, Protocol

from gpucommons.agent.sharing.rules import program_rules
from gpucommons.agent.sharing.settings import enforces_leases
from gpucommons.config.settings import Settings
from gpucommons.model.leases import TrespassReport
from gpucommons.model.snapshot import Snapshot
from gpucommons.scheduler.programs.exemptions import TrespassStanding
from gpucommons.scheduler.programs.jobs import read_programs
from gpucommons.scheduler.service.enforcement import (
    LEASED,
    NOT_GIVEN,
    EnforcementTerms,
    EnforcementThread,
    choose_pauser,
)
from gpucommons.sources.source import Source

# Without readings for so long, programs that were paused for a lease run again.
_LEAST_STALE_S: Final = 10.0
_STALE_INTERVALS: Final = 5


def pauses_others(settings: Settings) -> bool:
    """Whether programs of other users are paused as well."""
    scheduler = settings.scheduler
    return scheduler.share_programs == "all" or (not scheduler.shares_programs and enforces_leases(settings))


def enforcement_terms(settings: Settings) -> EnforcementTerms:
    """Raises ConfigError."""
    pauser = choose_pauser(settings.scheduler, settings.parking, pauses_others(settings))
    own_only = os.geteuid() != 0 and pauser.socket_path is None
    stale_after_s = max(_LEAST_STALE_S, _STALE_INTERVALS * settings.sampling.interval_s)
    words = NOT_GIVEN if settings.slurm.pause_outside_allocation else LEASED
    return EnforcementTerms(own_only, stale_after_s, program_rules(settings), words)


# Pausing of programs on leased GPUs in an agent that does not share programs: a thread, fed with every snapshot.


class Enforcer(Protocol):
    """Pauses the processes of the report, and reports which are paused. Called from any thread."""

    def update_trespassers(self, report: TrespassReport) -> None: ...
    @property
    def trespass_standing(self) -> TrespassStanding: ...


class Enforcing:
    """Without leases it does nothing: the pauser sleeps."""

    def __init__(self, settings: Settings) -> None:
        pauser = choose_pauser(settings.scheduler, settings.parking, pauses_others(settings))
        self.thread = EnforcementThread(pauser, enforcement_terms(settings))

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
