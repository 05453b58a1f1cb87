"""What the programs of each lease use on a slot, from a snapshot; and that free memory is not given twice."""

from dataclasses import replace

from gpucommons.agent.leases.facts import leasable_slots
from gpucommons.agent.sharing.lease_room import memory_of_leases
from gpucommons.leases.policy.values import LeasableSlot
from gpucommons.model.gpu import Gpu, GpuProcess
from gpucommons.model.leases import Lease, LeaseRequest, LeasesReading
from gpucommons.model.process_identity import ProcessContext, ProcessKey
from gpucommons.model.snapshot import Readings
from simulation.played_lab import PlayedLab

GIB = 2**30
RUN, SHELL = ProcessKey(700, 1), ProcessKey(600, 1)
LEASE = Lease(
    LeaseRequest(1001, "alice", 0.0, id="7", number=1, share=True, memory_bytes=40 * GIB), ("GPU",), 1.0, 50.0
)


def process(pid: int, gib: int, gpu_instance_id: int | None = None) -> GpuProcess:
    return GpuProcess(pid, ProcessKey(pid, 1), "compute", gib * GIB, gpu_instance_id=gpu_instance_id)


def with_processes(*processes: GpuProcess, name: str = "3") -> tuple[Readings, str]:
    """The lab with these processes on one GPU, and the UUID of the slot. 710 descends from the client of lease 7."""
    given = PlayedLab().at(100.0)
    assert given.gpus is not None
    assert given.allocations is not None
    info = next(info for info in given.allocations.slots if info.slot.name == name)

    def changed(gpu: Gpu) -> Gpu:
        return gpu._replace(processes=processes) if gpu.identity.uuid == info.slot.gpu_uuid else gpu

    contexts = {ProcessKey(710, 1): ProcessContext(ancestors=(RUN, SHELL)), ProcessKey(720, 1): ProcessContext()}
    leases = LeasesReading(leases=(replace(LEASE, slots=(info.slot.uuid,)),), clients={"7": RUN})
    gpus = given.gpus._replace(gpus=tuple(map(changed, given.gpus.gpus)))
    return given._replace(gpus=gpus, leases=leases, process_contexts=contexts), info.slot.uuid


def slot_of(readings: Readings, uuid: str) -> LeasableSlot:
    return next(slot for slot in leasable_slots(readings, {}) or () if slot.uuid == uuid)


def test_a_program_that_the_user_started_elsewhere_does_not_use_the_room_of_the_lease() -> None:
    readings, uuid = with_processes(process(710, 10), process(720, 90))
    assert slot_of(readings, uuid).used == {"7": 10 * GIB}
    assert memory_of_leases(readings).unused_bytes(LEASE.request, uuid) == 30 * GIB


def test_a_lease_that_uses_more_than_it_declared_has_nothing_left() -> None:
    readings, uuid = with_processes(process(710, 60))
    assert memory_of_leases(readings).unused_bytes(LEASE.request, uuid) == 0


def test_what_processes_took_after_free_memory_was_read_is_not_free() -> None:
    before, uuid = with_processes()
    slot = slot_of(before, uuid)
    assert slot.total_bytes is not None
    assert slot.free_bytes is not None
    after, _ = with_processes(process(710, 120))
    assert slot_of(after, uuid).free_bytes == slot.total_bytes - 120 * GIB < slot.free_bytes
    full, _ = with_processes(process(710, 200))
    assert slot_of(full, uuid).free_bytes == 0


def test_a_mig_device_has_the_processes_of_its_gpu_instance() -> None:
    readings, uuid = with_processes(process(710, 5), name="7.3")
    assert slot_of(readings, uuid).used == {}
    assert readings.allocations is not None
    (instance,) = (info.gpu_instance_id for info in readings.allocations.slots if info.slot.uuid == uuid)
    readings, _ = with_processes(process(710, 5, instance), name="7.3")
    assert slot_of(readings, uuid).used == {"7": 5 * GIB}
