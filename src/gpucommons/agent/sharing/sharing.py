"""The scheduler in the agent: started as a service, fed with readings of GPUs and pods, read as a source.

It gets how busy each GPU was, and the names and pods of processes, from the snapshots.
"""

import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpucommons.agent.sharing.lease_room import lease_claims
from gpucommons.agent.sharing.pausing import enforcement_terms, pauses_others
from gpucommons.agent.sharing.rules import client_rules, priority_classes, program_rules
from gpucommons.agent.sharing.settings import check_scheduler, enforces_leases
from gpucommons.base.process_starts import ProcessStarts
from gpucommons.base.processes import hides_processes
from gpucommons.config.runtime_directory import control_path, own_control_socket, runtime_directory
from gpucommons.config.scheduler import ParkingSettings, SchedulerSettings
from gpucommons.config.settings import Settings
from gpucommons.faces.documents.turns import turn_pieces
from gpucommons.model.gpu import GpmReading, Gpu, GpuReading
from gpucommons.model.leases import TrespassReport
from gpucommons.model.ownership import Place, Reason
from gpucommons.model.process_identity import ProcessContext, ProcessKey
from gpucommons.model.sharing import SharingReading
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.model.words import SharingClass
from gpucommons.model.workloads import PodReading, UsersReading, all_containers
from gpucommons.owners.process_identity import identity_of
from gpucommons.owners.workload import Surroundings, resolve
from gpucommons.rules.privacy import Privacy
from gpucommons.rules.problems import outside_allocation
from gpucommons.scheduler.parking.arrivals import GpuMemory
from gpucommons.scheduler.parking.suspended import BatchSystem
from gpucommons.scheduler.policy.devices import Busy, GpuFacts
from gpucommons.scheduler.policy.quotas import NO_POD, PodName, QuotaValues, from_annotations
from gpucommons.scheduler.programs.jobs import GpuUser, Program, ProgramReading, read_newcomer, read_programs
from gpucommons.scheduler.service.enforcement import choose_pauser
from gpucommons.scheduler.service.server import ProgramSharing
from gpucommons.scheduler.service.state_reader import ProcessNames
from gpucommons.scheduler.service.thread import SchedulerThread
from gpucommons.sources.host.process_details import ProcessDetailsReader
from gpucommons.sources.nvml.activity_meter import ActivityMeter
from gpucommons.sources.nvml.gpm import GpmAccess
from gpucommons.sources.nvml.queries import free_memory
from gpucommons.sources.source import Source, SourceStarting

if TYPE_CHECKING:
    from gpucommons.simulation.shared_lab import SharedLab


# How busy each GPU was: each measurement is returned once, with the time that it spans.
#
# GPM's graphics activity where the GPU has it, else NVML's utilisation. The two are never mixed for one GPU: a job that
# waits for its launches is at 99 % by NVML and at 30 % by GPM.

# NVML's utilisation spans up to this long, however often it is read.
_LEAST_SPAN_S: Final = 1.0


class BusyMeter:
    def __init__(self) -> None:
        self._reading: GpuReading | None = None
        self._gpm: dict[str, GpmReading] = {}
        self._measured_s: dict[str, float] = {}

    def of(self, snapshot: Snapshot) -> Mapping[str, Busy]:
        """The measurements since the last snapshot, by UUID."""
        reading, source = snapshot.readings.gpus, snapshot.sources.get("nvml")
        if reading is None or reading is self._reading:
            return {}
        if source is None or source.last_success_monotonic_s is None:
            return {}
        self._reading = reading
        begun_s = source.last_success_monotonic_s - (source.duration_s or 0.0)
        busy = {}
        for gpu in reading.present_gpus():
            uuid = gpu.identity.uuid
            ratio = self._new_ratio(gpu)
            if ratio is None:
                continue
            # GPM's value spans the time between two passes, wherever in a pass it was taken.
            before_s, self._measured_s[uuid] = self._measured_s.get(uuid), begun_s
            if before_s is not None:
                busy[uuid] = Busy(ratio, min(before_s, begun_s - _LEAST_SPAN_S))
        return busy

    def _new_ratio(self, gpu: Gpu) -> float | None:
        uuid, gpm = gpu.identity.uuid, gpu.gpm
        if gpm is not None and gpm.graphics_ratio is not None:
            previous, self._gpm[uuid] = self._gpm.get(uuid), gpm
            return None if gpm is previous else gpm.graphics_ratio
        percent = gpu.readings.utilization_percent
        return None if uuid in self._gpm or percent is None else percent / 100


# The names and pods of the processes on GPUs and the names of users, for the scheduler's clients.


def process_names(programs: ProgramReading, users: UsersReading | None, pids: Collection[int]) -> ProcessNames:
    """Of the processes with these pids only: a node may have thousands of others on its GPUs."""
    chosen = [process for process in programs.processes if process.pid in pids]
    by_key = {
        process.key: Program(process.job, (process,)).display_name for process in chosen if process.key is not None
    }
    return ProcessNames(by_key, {} if users is None else users.names, dict(_pods(chosen)))


def _pods(processes: Iterable[GpuUser]) -> Iterator[tuple[ProcessKey, PodName]]:
    for process in processes:
        workload = process.workload
        if process.key is None:
            continue
        # In a cgroup tree that its user may write, a pod is that user's claim.
        if workload.pod is None or workload.delegated:
            yield process.key, NO_POD
        elif workload.pod.name:
            yield process.key, PodName(workload.pod.namespace, workload.pod.name)


class NewcomerReader:
    """Names a process that no reading has listed yet, as attribution names those on GPUs.

    `read` is called in the scheduler's thread, while the agent's sets the last readings.
    """

    def __init__(self) -> None:
        self.readings = Readings()

    def read(self, process: ProcessKey, command_line: tuple[str, ...]) -> GpuUser | None:
        """None where it has ended, or may not be read."""
        reader = ProcessDetailsReader(_PROC)
        details = reader.read(process.pid)
        reader.keep(())
        if isinstance(details, Reason) or details.key != process:
            return None
        readings, identity = self.readings, identity_of(details)
        users = {} if readings.users is None else readings.users.names
        around = Surroundings(all_containers(readings.docker, readings.podman), readings.pods, user_names=users)
        workload = resolve(identity, _NO_PLACE, around).candidate.workload
        context = ProcessContext(command_line, identity.cgroup.scope, identity.session_id, identity.ancestors)
        return read_newcomer(readings, process, workload, context)


log = logging.getLogger(__name__)

_PROC: Final = Path("/proc")
_NO_PLACE: Final = Place("", -1)

# A day of a scenario takes ten minutes, so that a notebook is parked within the first one.
_SIMULATED_PARKING: Final = ParkingSettings(idle_after_s=30.0, eager=True, min_residence_s=30.0)


def sharing_part(settings: Settings, gpm: GpmAccess, starts: ProcessStarts | None) -> "Sharing":
    """The scheduler: a source of turns, a service for clients, an observer of the GPUs."""
    check_scheduler(settings.scheduler)
    newcomers = NewcomerReader()
    programs = _program_sharing(settings, newcomers)
    thread = SchedulerThread(
        settings.scheduler,
        turn_pieces,
        client_rules(settings),
        privacy=_privacy(settings),
        sharing=programs,
        meter=ActivityMeter(gpm),
        starts=starts,
        control=_control_sockets(settings.scheduler),
    )
    return Sharing(
        thread,
        settings.sampling.interval_s,
        shares_programs=programs is not None,
        share_limit=settings.leases.share_limit,
        priority_classes=priority_classes(settings.kubernetes.priority_classes),
        pauses_outside_allocation=settings.slurm.pause_outside_allocation,
        newcomers=newcomers,
    )


def simulated_sharing(settings: Settings, lab: "SharedLab") -> "Sharing":
    """The scheduler for the programs of a scenario. It serves no client: those of this machine are not simulated."""
    check_scheduler(settings.scheduler)
    given = replace(settings.scheduler, share_programs="all", socket="", xpushare_socket="")
    parking = settings.parking if settings.parking.idle_after_s else _SIMULATED_PARKING
    thread = SchedulerThread(
        given,
        turn_pieces,
        client_rules(settings),
        privacy=_privacy(settings),
        sharing=ProgramSharing(
            lab.pauser(given.max_pause_s), program_rules(settings), parking, lab.free_memory, host=lab.host
        ),
        meter=lab.meter,
        control=(str(own_control_socket()),),
    )
    return Sharing(thread, settings.sampling.interval_s, shares_programs=True, share_limit=settings.leases.share_limit)


def _privacy(settings: Settings) -> Privacy:
    hidden = hides_processes(Path(settings.path.procfs))
    return Privacy(settings.privacy.show_owners, unix=True, agent_uid=os.getuid(), hides_processes=hidden)


def _control_sockets(settings: SchedulerSettings) -> tuple[str, ...]:
    """A scheduler without clients of nvshare does not need their directory, which only root may use."""
    usual = control_path(settings.socket)
    return (usual,) if settings.enabled else (usual, str(own_control_socket()))


def _program_sharing(settings: Settings, newcomers: NewcomerReader) -> ProgramSharing | None:
    if not settings.scheduler.shares_programs:
        return None
    pauser = choose_pauser(settings.scheduler, settings.parking, pauses_others(settings))
    rules = program_rules(settings)
    enforces = enforces_leases(settings) or settings.slurm.pause_outside_allocation
    enforcement = enforcement_terms(settings) if enforces else None
    return ProgramSharing(
        pauser,
        rules,
        settings.parking,
        free_memory,
        enforcement,
        batch=_batch_system(settings),
        lookup=newcomers.read,
    )


def _batch_system(settings: Settings) -> BatchSystem | None:
    if not settings.slurm.job_directory or not settings.slurm.park_suspended:
        return None
    from gpucommons.slurm.jobs import is_suspended, publish_suspended

    return BatchSystem(is_suspended, partial(publish_suspended, runtime_directory()))


def _trespass_report(readings: Readings) -> TrespassReport:
    """Processes on GPUs that their batch job was not given. While jobs or processes cannot be read, there are none."""
    jobs_of_process: dict[ProcessKey, frozenset[str]] = {}
    for (job, _), shares in outside_allocation(readings).items():
        jobs_of_process |= {share.key: frozenset((job,)) for share in shares if share.key is not None}
    return TrespassReport(jobs_of_process, time.monotonic())


class Sharing:
    """The scheduler as a service, a source, and an observer of snapshots."""

    def __init__(
        self,
        scheduler: SchedulerThread,
        cadence_s: float,
        *,
        shares_programs: bool,
        share_limit: int,
        priority_classes: Mapping[str, SharingClass] | None = None,
        pauses_outside_allocation: bool = False,
        newcomers: NewcomerReader | None = None,
    ) -> None:
        self._newcomers = newcomers
        self._pauses_outside_allocation = pauses_outside_allocation
        self._priority_classes = priority_classes or {}
        self._cadence_s = cadence_s
        self._share_limit = share_limit
        self.scheduler = scheduler
        self.shares_programs = shares_programs
        self._gpus: GpuReading | None = None
        self._busy = BusyMeter()
        self._pods: PodReading | None = None
        # Set by the agent: the GPUs are read again in a moment.
        self.read_soon: Callable[[], None] = lambda: None

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
                if self.shares_programs:
                    self.scheduler.update_memory({gpu.identity.uuid: _memory(gpu) for gpu in gpus.present_gpus()})
            if self.scheduler.reads_soon:
                self.read_soon()
            self._gpus = gpus
        if self._newcomers is not None:
            self._newcomers.readings = snapshot.readings
        if self.shares_programs:
            claims = lease_claims(snapshot.readings, self._share_limit, snapshot.wall_s, time.monotonic())
            self.scheduler.set_lease_claims(claims)
        if self._pauses_outside_allocation:
            self.scheduler.update_trespassers(_trespass_report(snapshot.readings))
        # While the pods cannot be read, the last known annotations stay.
        if pods is not None and pods is not self._pods:
            self._pods = pods
            self.scheduler.set_annotations(dict(_read_annotations(pods, self._priority_classes)))

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
        mig_bytes={
            instance.uuid: instance.memory.total_bytes if instance.memory else instance.memory_bytes
            for instance in gpu.mig
        },
    )


def _memory(gpu: Gpu) -> GpuMemory:
    readings = gpu.readings
    return GpuMemory(readings.memory_free_bytes, readings.memory_total_bytes, gpu.identity.minor, is_mig=bool(gpu.mig))


def _read_annotations(
    pods: PodReading, priority_classes: Mapping[str, SharingClass]
) -> Iterator[tuple[tuple[str, str], QuotaValues]]:
    """What each pod says of itself. Its class is that of its annotation, else the one for its PriorityClass."""
    for pod in pods.by_uid.values():
        try:
            quota = from_annotations(pod.annotations)
        except ValueError as error:
            log.warning("pod %s/%s: %s; the annotation is ignored", pod.namespace, pod.name, error)
            quota = QuotaValues()
        if quota.sharing_class is None:
            quota = replace(quota, sharing_class=priority_classes.get(pod.priority_class))
        yield (pod.namespace, pod.name), quota
