"""The scheduler in the agent: started as a service, fed with readings of GPUs and pods, read as a source."""

import logging
import os
import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gpucommons.agent.busy import BusyMeter
from gpucommons.agent.lease_room import lease_claims
from gpucommons.agent.pausing import enforcement_terms, pauser_settings
from gpucommons.agent.process_names import process_names
from gpucommons.agent.sharing_checks import check_scheduler, enforces_leases
from gpucommons.agent.sharing_rules import client_rules, program_rules
from gpucommons.config.runtime_directory import control_path, own_control_socket
from gpucommons.config.scheduler import ParkingSettings, SchedulerSettings
from gpucommons.config.settings import Settings
from gpucommons.faces.documents.turns import turn_pieces
from gpucommons.model.gpu import Gpu, GpuReading
from gpucommons.model.pods import PodReading
from gpucommons.model.sharing import SharingReading
from gpucommons.model.snapshot import Snapshot
from gpucommons.pauser.client import PauserSettings
from gpucommons.rules.privacy import Privacy
from gpucommons.scheduler.policy.devices import Busy, GpuFacts
from gpucommons.scheduler.policy.quotas import QuotaValues, from_annotations
from gpucommons.scheduler.programs.jobs import read_programs
from gpucommons.scheduler.service.process_names import ProcessNames
from gpucommons.scheduler.service.server import ProgramSharing
from gpucommons.scheduler.service.thread import SchedulerThread
from gpucommons.sources.nvml.activity_meter import ActivityMeter
from gpucommons.sources.nvml.free_memory import free_memory
from gpucommons.sources.nvml.gpm_access import GpmAccess
from gpucommons.sources.source import Source, SourceStarting

if TYPE_CHECKING:
    from gpucommons.simulation.shared_lab import SharedLab

log = logging.getLogger(__name__)

# A day of a scenario takes ten minutes, so that a notebook is parked within the first one.
_SIMULATED_PARKING: Final = ParkingSettings(idle_after_s=30.0, eager=True, min_residence_s=30.0)


def sharing_part(settings: Settings, gpm: GpmAccess) -> "Sharing":
    """The scheduler: a source of turns, a service for clients, an observer of the GPUs."""
    check_scheduler(settings.scheduler)
    programs = _program_sharing(settings)
    thread = SchedulerThread(
        settings.scheduler,
        turn_pieces,
        client_rules(settings),
        privacy=Privacy(settings.privacy.show_owners, unix=True, agent_uid=os.getuid()),
        sharing=programs,
        meter=ActivityMeter(gpm),
        control=_control_sockets(settings.scheduler),
    )
    return Sharing(
        thread,
        settings.sampling.interval_s,
        shares_programs=programs is not None,
        share_limit=settings.leases.share_limit,
    )


def simulated_sharing(settings: Settings, lab: "SharedLab") -> "Sharing":
    """The scheduler for the programs of a scenario. It serves no client: those of this machine are not simulated."""
    check_scheduler(settings.scheduler)
    given = replace(settings.scheduler, share_programs="all", socket="", xpushare_socket="")
    pauser = PauserSettings(max_pause_s=given.max_pause_s, stand_in=lab.pauser(given.max_pause_s).connect)
    parking = settings.parking if settings.parking.idle_after_s else _SIMULATED_PARKING
    thread = SchedulerThread(
        given,
        turn_pieces,
        client_rules(settings),
        privacy=Privacy(settings.privacy.show_owners, unix=True, agent_uid=os.getuid()),
        sharing=ProgramSharing(pauser, program_rules(settings), parking, lab.free_memory, host=lab.host),
        meter=lab.meter,
        control=(str(own_control_socket()),),
    )
    return Sharing(thread, settings.sampling.interval_s, shares_programs=True, share_limit=settings.leases.share_limit)


def _control_sockets(settings: SchedulerSettings) -> tuple[str, ...]:
    """A scheduler without clients of nvshare does not need their directory, which only root may use."""
    usual = control_path(settings.socket)
    return (usual,) if settings.enabled else (usual, str(own_control_socket()))


def _program_sharing(settings: Settings) -> ProgramSharing | None:
    if not settings.scheduler.shares_programs:
        return None
    pauser, rules = pauser_settings(settings), program_rules(settings)
    enforcement = enforcement_terms(settings) if enforces_leases(settings) else None
    return ProgramSharing(pauser, rules, settings.parking, free_memory, enforcement)


class Sharing:
    """The scheduler as a service, a source, and an observer of snapshots."""

    def __init__(
        self, scheduler: SchedulerThread, cadence_s: float, *, shares_programs: bool, share_limit: int
    ) -> None:
        self._cadence_s = cadence_s
        self._share_limit = share_limit
        self.scheduler = scheduler
        self.shares_programs = shares_programs
        self._gpus: GpuReading | None = None
        self._busy = BusyMeter()
        self._pods: PodReading | None = None

    async def start(self) -> None:
        """Raises ListenError, one line, if a socket cannot be served."""
        await self.scheduler.start()

    async def stop(self) -> None:
        await self.scheduler.stop()

    def park(self, pids: AbstractSet[int], done: Callable[[str], None]) -> None:
        """`done` gets why the programs of these processes are not parked; empty if they are. On another thread."""
        self.scheduler.park(pids, done)

    def sources(self) -> list[Source]:
        return [Source("scheduler", "sharing", SharingReading, self._read, self._cadence_s, runs_on="loop")]

    def _read(self) -> SharingReading:
        reading = self.scheduler.reading
        if reading is None:
            raise SourceStarting("the scheduler has not started yet")
        return reading

    def observe(self, snapshot: Snapshot) -> None:
        gpus, pods, leases = snapshot.readings.gpus, snapshot.readings.pods, snapshot.readings.leases
        if leases is not None and self.shares_programs:
            on_mps = (slot for lease in leases.leases if lease.request.mps for slot in lease.slots)
            self.scheduler.set_mps_devices(frozenset(on_mps))
        # While the driver does not answer, the last known GPUs stay: no reading is not a reading without GPUs.
        if gpus is not None:
            busy = self._busy.of(snapshot)
            self.scheduler.update_gpus([_facts(gpu, busy.get(gpu.identity.uuid)) for gpu in gpus.present_gpus()])
            if gpus is not self._gpus:
                self._update_programs(snapshot)
            self._gpus = gpus
        if self.shares_programs:
            claims = lease_claims(snapshot.readings, self._share_limit, snapshot.wall_s, time.monotonic())
            self.scheduler.set_lease_claims(claims)
        # While the pods cannot be read, the last known annotations stay.
        if pods is not None and pods is not self._pods:
            self._pods = pods
            self.scheduler.set_annotations(dict(_annotated(pods)))

    def _update_programs(self, snapshot: Snapshot) -> None:
        source, sharing = snapshot.sources.get("nvml"), self.scheduler.reading
        connected = {client.pid for client in sharing.clients if client.program is None} if sharing else set()
        if not connected and not self.shares_programs:
            if snapshot.readings.users is not None:
                self.scheduler.set_names(ProcessNames(users=snapshot.readings.users.names))
            return
        if source is not None and source.last_success_monotonic_s is not None:
            reading = read_programs(snapshot.readings, source.last_success_monotonic_s)
            # While the owners of processes cannot be read, the last known names stay.
            if reading is not None:
                self.scheduler.set_names(process_names(reading, snapshot.readings.users, connected))
                if self.shares_programs:
                    self.scheduler.update_programs(reading)


def _facts(gpu: Gpu, busy: Busy | None) -> GpuFacts:
    return GpuFacts(
        gpu.identity.uuid,
        gpu.identity.index,
        gpu.readings.memory_total_bytes,
        busy,
        process_bytes={p.pid: p.used_memory_bytes for p in gpu.processes or () if p.used_memory_bytes is not None},
        mig=tuple(instance.uuid for instance in gpu.mig),
        mig_bytes={one.uuid: one.memory.total_bytes if one.memory else one.memory_bytes for one in gpu.mig},
    )


def _annotated(pods: PodReading) -> Iterator[tuple[tuple[str, str], QuotaValues]]:
    for pod in pods.by_uid.values():
        try:
            quota = from_annotations(pod.annotations)
        except ValueError as error:
            log.warning("pod %s/%s: %s; the annotation is ignored", pod.namespace, pod.name, error)
            continue
        yield (pod.namespace, pod.name), quota
