"""Connects allocations and the states of slots to the sampler: computed at each snapshot, after attribution, on the
event loop.

Claims are computed again only if a container, a pod, the layout of the GPUs or a name has changed.
"""

import time
from collections.abc import Callable

from gpucommons.model.allocations import AllocationReading
from gpucommons.model.gpu import MigInstance
from gpucommons.model.idle import IdlePeriods
from gpucommons.model.leases import LeasesReading
from gpucommons.model.ownership import Attribution, ProcessShare
from gpucommons.model.sharing import SharingReading
from gpucommons.model.snapshot import Readings
from gpucommons.model.workloads import UsersReading, all_containers
from gpucommons.owners.allocations import Blocks, fold
from gpucommons.owners.claims import ClaimInputs, Claims, claims_of
from gpucommons.owners.owner import OwnerRules
from gpucommons.owners.slot_states import IdleWindow, Pasts, judge, judge_idle
from gpucommons.owners.slots import SlotTable
from gpucommons.rules.placement import leases_of_processes, replicas_by_gpu

# A runtime that has not answered for longer was removed, and its containers with it.
_MISSED_S = 3600.0
# After the start, sources of holders may not have answered yet for this long.
SETTLED_AFTER_S = 60.0
_HOLDER_SOURCES = ("docker", "podman", "pod_devices", "ds01", "job_mapping")


class AllocationStage:
    """`idle_before` are the periods of idleness that an earlier agent has seen."""

    def __init__(
        self,
        rules: OwnerRules | None = None,
        active_ratio: float = 0.05,
        idle_window: IdleWindow | None = None,
        idle_before: Callable[[], IdlePeriods] = dict,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._rules = rules or OwnerRules()
        self._active_ratio = active_ratio
        self._monotonic = monotonic
        self._wall = wall
        self._layout: object = None
        self._table = SlotTable(())
        self._known: tuple[object, ...] = ()
        self._claims = Claims()
        self._blocks: Blocks = {}
        self._process_users: dict[str, tuple[int, str]] = {}
        self._job_users: dict[str, tuple[int, str]] = {}
        self._has_new_users = False
        self._answered_s: dict[str, float] = {}
        self._past_slots: Pasts | None = None
        self._idle_window = idle_window or IdleWindow()
        self._idle_before = idle_before
        self._idle_periods: IdlePeriods | None = None
        self._judged_s: float | None = None
        self._first_judged_s = 0.0

    def __call__(self, readings: Readings) -> Readings:
        self._learn_users(readings)
        self._refresh(readings)
        reading = fold(
            self._table,
            self._claims,
            None if readings.attribution is None else _on_gpus(readings.attribution, readings.sharing),
            readings.gpus,
            {} if readings.users is None else readings.users.group_of,
            self._active_ratio,
            self._is_complete(readings),
            leases_of_processes(readings),
            self._blocks,
        )
        # While no GPU is read, the use of the slots is not known.
        if readings.gpus is not None:
            reading = self._with_idle_times(reading, find_kept_waiting(readings.sharing, readings.leases))
        readings = readings._replace(allocations=reading)
        slots, pasts = judge(readings, self._past_slots, self._wall())
        # While no GPU is read, the past is kept.
        if slots is not None:
            self._past_slots = pasts
        return readings._replace(slots=slots)

    def _with_idle_times(self, reading: AllocationReading, waiting: frozenset[int]) -> AllocationReading:
        now_s = self._monotonic()
        elapsed_s = 0.0 if self._judged_s is None else now_s - self._judged_s
        self._first_judged_s = now_s if self._judged_s is None else self._first_judged_s
        self._judged_s = now_s
        before = self._idle_before() if self._idle_periods is None else self._idle_periods
        starts = now_s - self._first_judged_s < SETTLED_AFTER_S
        keep_missing = starts or not reading.complete
        reading, self._idle_periods = judge_idle(reading, before, elapsed_s, self._idle_window, waiting, keep_missing)
        return reading

    def _refresh(self, readings: Readings) -> None:
        gpus = () if readings.gpus is None else readings.gpus.gpus
        layout = [(g.identity, g.up, g.mig_enabled, g.mig_slices, g.processes is None, _mig(g.mig)) for g in gpus]
        if layout != self._layout:
            self._layout, self._table = layout, SlotTable(gpus)
        users = readings.users or UsersReading()
        leases = () if readings.leases is None else readings.leases.leases
        inputs = (
            self._table,
            readings.docker and readings.docker.by_id,
            readings.podman and readings.podman.by_id,
            readings.ds01 and readings.ds01.entries,
            readings.pods,
            readings.pod_devices,
            readings.job_mapping,
            users.names,
            users.group_of,
            users.container_uids,
            leases,
        )
        if (
            self._known
            and not self._has_new_users
            and all(new is old for new, old in zip(inputs, self._known, strict=True))
        ):
            return
        self._known, self._has_new_users, self._blocks = inputs, False, {}
        containers = all_containers(readings.docker, readings.podman)
        self._process_users = {id: user for id, user in self._process_users.items() if id in containers}
        devices = readings.pod_devices
        self._claims = claims_of(
            ClaimInputs(
                self._table,
                containers,
                readings.ds01,
                readings.pods,
                devices,
                replicas_by_gpu(gpus, devices) if devices else {},
                users,
                self._process_users,
                readings.job_mapping,
                self._job_users,
                self._rules,
                leases,
            )
        )

    def _learn_users(self, readings: Readings) -> None:
        """The user of a container's or job's processes is kept for as long as the container or job exists."""
        attribution, mapping = readings.attribution, readings.job_mapping
        has_containers = any(runtime is not None and runtime.by_id for runtime in (readings.docker, readings.podman))
        jobs = {job.id for mapped in mapping.jobs.values() for job in mapped} if mapping else set()
        self._job_users = {job: user for job, user in self._job_users.items() if job in jobs}
        if attribution is None or not (jobs or has_containers):
            return
        for workload in {id(share.workload): share.workload for share in attribution.processes}.values():
            if workload.job in jobs and workload.uid is not None and workload.job not in self._job_users:
                self._job_users[workload.job] = (workload.uid, workload.user or str(workload.uid))
                self._has_new_users = True
            if workload.container_id and workload.uid is not None and workload.container_id not in self._process_users:
                self._process_users[workload.container_id] = (workload.uid, workload.user or str(workload.uid))
                self._has_new_users = True

    def _is_complete(self, readings: Readings) -> bool:
        now_s, complete = self._monotonic(), True
        for name in _HOLDER_SOURCES:
            if getattr(readings, name) is not None:
                self._answered_s[name] = now_s
            elif now_s - self._answered_s.get(name, -_MISSED_S) < _MISSED_S:
                complete = False
        return complete


def _on_gpus(attribution: Attribution, sharing: SharingReading | None) -> tuple[ProcessShare, ...]:
    """Without the processes whose GPU memory is parked in host memory: they hold no GPU, listed by NVML or not."""
    parking = None if sharing is None else sharing.parking
    parked = (
        {pid for program in parking.programs if program.stage == "parked" for pid in program.pids} if parking else set()
    )
    if not parked:
        return attribution.processes
    return tuple(share for share in attribution.processes if share.pid not in parked)


def find_kept_waiting(sharing: SharingReading | None, leases: LeasesReading | None) -> frozenset[int]:
    """The processes that cannot use their GPU: they wait for their turn, or are paused for a lease."""
    clients = () if sharing is None else sharing.clients
    waiting = {pid for client in clients if client.wait is not None for pid in (client.pid, *client.processes)}
    trespassers = () if leases is None else leases.trespassers
    return frozenset(waiting | {trespasser.pid for trespasser in trespassers if trespasser.paused})


def _mig(instances: tuple[MigInstance, ...]) -> list[tuple[object, ...]]:
    return [
        (i.uuid, i.gpu_instance_id, i.compute_instance_id, i.compute_slices, i.gpu_instance_slices) for i in instances
    ]
