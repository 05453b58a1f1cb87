"""What a snapshot shows about the slots: free, used, allocated or lost; and which programs are on them. Pure."""

from collections.abc import Iterable, Iterator, Mapping

from gpucommons.agent.sharing.lease_room import list_kept_rooms, memory_of_leases, processes_on
from gpucommons.leases.policy.values import LeasableSlot, SlotUse, UserFacts
from gpucommons.leases.service.limits import GpuProgram
from gpucommons.model.allocations import Allocation, AllocationReading, SlotInfo, WorkloadKind
from gpucommons.model.gpu import Gpu, GpuReading
from gpucommons.model.process_identity import ProcessTable
from gpucommons.model.sharing import SharingReading
from gpucommons.model.snapshot import Readings

_NS_PER_HOUR = 3600 * 1e9
_QUOTA_PERIOD = "30d"
_GRAPHICS = "graphics"
# Connected clients that request nothing, and programs that do not use the GPU: they are not paused.
_NO_TURNS = ("idle", "resting", "stopped")
# A process of this name runs on each node of the system.
_NODE_PROGRAMS = {"slurmd": "Slurm", "kubelet": "Kubernetes"}


def manager_of(readings: Readings) -> str | None:
    """The system that allocates the GPUs of this node, by what it runs here or what is read from it."""
    if readings.job_mapping is not None:
        return "Slurm"
    if readings.pod_devices is not None or readings.pods is not None:
        return "Kubernetes"
    return None if readings.processes is None else _by_program(readings.processes)


def _by_program(processes: ProcessTable) -> str | None:
    return next((_NODE_PROGRAMS[row.name] for row in processes.by_pid.values() if row.name in _NODE_PROGRAMS), None)


def leasable_slots(readings: Readings, before: Mapping[str, SlotUse]) -> tuple[LeasableSlot, ...] | None:
    """None where the GPUs could not be read. `before` is the use of each slot in the last snapshot.

    While a source of holders does not answer, a slot that was in use before is not taken for free.
    """
    gpus, allocations = readings.gpus, readings.allocations
    if gpus is None or allocations is None:
        return None
    sharing = readings.sharing
    kept = list_kept_rooms(None if sharing is None else sharing.parking)
    memory, in_turns = memory_of_leases(readings), devices_in_turns(sharing)
    return tuple(
        slot._replace(
            in_turns=slot.uuid in in_turns,
            used=memory.used_bytes_on(slot.uuid),
            parked=memory.parked_bytes_for(slot.uuid),
            kept=tuple(kept.get(slot.uuid, ())),
        )
        for slot in _slots(gpus, allocations, before)
    )


def devices_in_turns(sharing: SharingReading | None) -> frozenset[str]:
    """The devices on which a program may be paused: clients take turns there, or a program is parked."""
    if sharing is None:
        return frozenset()
    parked = () if sharing.parking is None else sharing.parking.programs
    taking_turns = {client.gpu_uuid for client in sharing.clients if client.standing not in _NO_TURNS}
    return frozenset(taking_turns | {program.gpu_uuid for program in parked})


def _slots(gpus: GpuReading, reading: AllocationReading, before: Mapping[str, SlotUse]) -> Iterator[LeasableSlot]:
    holders: dict[str, list[Allocation]] = {}
    for allocation in reading.allocations:
        if allocation.kind is not WorkloadKind.LEASE and not allocation.is_access_only:
            holders.setdefault(allocation.slot.uuid, []).append(allocation)
    by_uuid = {gpu.identity.uuid: gpu for gpu in gpus.gpus}
    for info in reading.slots:
        if not info.is_rest and info.slot.gpu_uuid in by_uuid:
            uuid = info.slot.uuid
            use = _use(holders.get(uuid, ()))
            if use is SlotUse.FREE and not (reading.complete and info.processes_known):
                use = before.get(uuid, SlotUse.FREE)
            yield _slot(info, by_uuid[info.slot.gpu_uuid], use)
    for gpu in gpus.gpus:
        if not gpu.up:
            yield LeasableSlot(gpu.identity.uuid, str(gpu.identity.index), SlotUse.LOST)


def _use(holders: Iterable[Allocation]) -> SlotUse:
    managed = [allocation.managed for allocation in holders]
    return SlotUse.ALLOCATED if any(managed) else SlotUse.USED if managed else SlotUse.FREE


def _slot(info: SlotInfo, gpu: Gpu, use: SlotUse) -> LeasableSlot:
    slot = info.slot
    part = 1.0 if slot.slices is None else slot.slices / slot.of
    if info.mig_enabled:
        memory = next((instance.memory for instance in gpu.mig if instance.uuid == slot.uuid), None)
        total, free = (None, None) if memory is None else (memory.total_bytes, memory.free_bytes)
    else:
        # What the driver keeps for itself cannot be promised.
        total = _minus(gpu.readings.memory_total_bytes, gpu.readings.memory_reserved_bytes)
        free = gpu.readings.memory_free_bytes
    used = sum([process.used_memory_bytes or 0 for process in processes_on(info, gpu)])
    return LeasableSlot(
        slot.uuid,
        slot.name,
        use,
        part,
        info.mig_enabled,
        total,
        _still_free(free, total, used),
        model=gpu.identity.name,
    )


def _minus(total: int | None, reserved: int | None) -> int | None:
    return None if total is None else total - (reserved or 0)


def _still_free(free: int | None, total: int | None, used: int) -> int | None:
    """Free memory is read before the processes: what they took between the two readings is not free."""
    return free if free is None or total is None else min(free, max(0, total - used))


def user_facts(readings: Readings) -> UserFacts:
    accounts = readings.accounts
    period = None if accounts is None else accounts.by_period.get(_QUOTA_PERIOD)
    rows = {} if period is None else period.rows
    hours = None if period is None else {user: row.equivalent_ns / _NS_PER_HOUR for user, row in rows.items()}
    return UserFacts({} if readings.users is None else readings.users.members, hours)


def gpu_programs(readings: Readings) -> tuple[GpuProgram, ...]:
    """The compute programs on each slot, with what they are attributed to."""
    if readings.attribution is None or readings.allocations is None or readings.gpus is None:
        return ()
    by_place = _by_place(readings.allocations.slots)
    graphics = {
        (gpu.identity.uuid, process.pid)
        for gpu in readings.gpus.present_gpus()
        for process in gpu.processes or ()
        if process.kind == _GRAPHICS
    }
    programs = []
    for share in readings.attribution.processes:
        place, workload = share.place, share.workload
        uuid = by_place.get((place.gpu_uuid, place.gpu_instance_id))
        if uuid is None or (place.gpu_uuid, share.pid) in graphics:
            continue
        names = {workload.user, share.owner.name if share.owner else None} - {None, ""}
        programs.append(
            GpuProgram(
                uuid,
                share.pid,
                share.key,
                workload.uid,
                frozenset(name for name in names if name is not None),
                workload.process_name,
            )
        )
    return tuple(programs)


def _by_place(slots: Iterable[SlotInfo]) -> Mapping[tuple[str, int | None], str]:
    """Of several MIG devices in one GPU instance, none: it is unknown which of them a process uses."""
    by_place: dict[tuple[str, int | None], list[str]] = {}
    for info in slots:
        if not info.is_rest:
            by_place.setdefault((info.slot.gpu_uuid, info.gpu_instance_id), []).append(info.slot.uuid)
    return {place: uuids[0] for place, uuids in by_place.items() if len(uuids) == 1}
