"""GPUs that programs connect are one queue."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpucommons.model.process_identity import ProcessKey
from gpucommons.scheduler.programs.jobs import DeviceUse, GpuUser, Program, ProgramActivity
from gpucommons.scheduler.programs.joining import LinkedGpus, linked_gpus

GPUS = [f"GPU-{index}" for index in range(8)]


def on(number: int, *devices: str) -> Program:
    uses = tuple(DeviceUse(device, "compute", 0, ProgramActivity.ACTIVE) for device in sorted(devices))
    return Program(f"process:{number}", (GpuUser(number, ProcessKey(number, 1), f"process:{number}", uses),))


PROGRAMS = st.lists(st.sets(st.sampled_from(GPUS), min_size=1, max_size=3), max_size=6).map(
    lambda found: [on(number, *devices) for number, devices in enumerate(found)]
)


@given(PROGRAMS)
def test_queues_partition_the_gpus_and_the_programs(programs: list[Program]) -> None:
    queues = linked_gpus(programs, GPUS)
    assert sorted(device for queue in queues for device in queue.devices) == GPUS
    assert sorted(key for queue in queues for key in queue.programs) == sorted(program.key for program in programs)
    for queue in queues:
        assert queue.id == queue.devices[0] == min(queue.devices)


@given(PROGRAMS)
def test_two_gpus_are_one_queue_exactly_if_programs_connect_them(programs: list[Program]) -> None:
    queue_of = {device: queue.id for queue in linked_gpus(programs, GPUS) for device in queue.devices}
    for start in GPUS:
        reached, size = {start}, 0
        while len(reached) > size:
            size = len(reached)
            reached |= {d for program in programs if reached & set(program.devices) for d in program.devices}
        assert {device for device in GPUS if queue_of[device] == queue_of[start]} == reached


@given(PROGRAMS, st.randoms(use_true_random=False))
def test_queues_do_not_depend_on_the_order(programs: list[Program], random: st.DataObject) -> None:
    shuffled = list(programs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert linked_gpus(shuffled, reversed(GPUS)) == linked_gpus(programs, GPUS)


def test_a_chain_of_programs_is_one_queue() -> None:
    chain = [on(number, *pair) for number, pair in enumerate(pairwise(GPUS))]
    (queue,) = linked_gpus(reversed(chain))
    assert queue == LinkedGpus("GPU-0", tuple(GPUS), tuple(program.key for program in chain))


def test_programs_on_one_gpu_each_are_queues_of_their_own() -> None:
    assert linked_gpus([on(1, "GPU-3"), on(2, "GPU-3"), on(3, "GPU-1")]) == (
        LinkedGpus("GPU-1", ("GPU-1",), ("process:3",)),
        LinkedGpus("GPU-3", ("GPU-3",), ("process:1", "process:2")),
    )
