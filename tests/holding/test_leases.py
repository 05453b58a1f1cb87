"""The programs of leases: each belongs to the lease whose `gpucommons run` has started it."""

from attribution.builders import gpu
from gpucommons.model.leases import Lease, LeaseRequest, LeasesReading
from gpucommons.model.ownership import PodPlace
from gpucommons.model.process_identity import ProcessContext, ProcessKey
from holding.test_allocations import folded, managed, process

OLDER, YOUNGER = ProcessKey(50, 1), ProcessKey(60, 1)


def leases(*slots: str) -> LeasesReading:
    """Two of alice, on the same GPUs."""
    rows = [Lease(LeaseRequest(1000, "alice", 0.0, id=id, number=1), slots, 1.0, 1.7e9) for id in ("1", "2")]
    return LeasesReading(leases=tuple(rows), clients={"1": OLDER, "2": YOUNGER})


def contexts(**ancestors: tuple[ProcessKey, ...]) -> dict[ProcessKey, ProcessContext]:
    return {ProcessKey(int(pid[1:]), 1): ProcessContext(ancestors=found) for pid, found in ancestors.items()}


def test_two_leases_of_a_user_on_one_gpu_have_their_own_programs() -> None:
    shell = ProcessKey(70, 1)
    found = folded(
        processes=[process(pid=7), process(pid=8, user="bob"), process(pid=9)],
        leases=leases("GPU-0"),
        # A command may run as another user; the third was started without a lease.
        process_contexts=contexts(p7=(shell, OLDER), p8=(YOUNGER, OLDER), p9=(shell,)),
    )
    processes = {row.account.job: [key.pid for key in row.processes] for row in found.allocations}
    assert processes == {"lease-1": [7, 9], "lease-2": [8]}
    assert {row.account.job: row.memory_bytes for row in found.allocations} == {"lease-1": 2 << 30, "lease-2": 1 << 30}


def test_the_holder_has_the_name_of_the_program_and_not_the_one_that_its_user_typed() -> None:
    """All users see the holders of GPUs, and the metrics have them."""
    named, other = (
        LeaseRequest(1000, "alice", 0.0, id=id, number=1, name="secret project", program=program)
        for id, program in (("1", "train.py"), ("2", ""))
    )
    rows = tuple(Lease(request, ("GPU-0",), 1.0, 1.7e9) for request in (named, other))
    found = folded(leases=LeasesReading(leases=rows))
    assert [row.workload for row in found.allocations] == ["train.py", "lease-2"]


def test_a_pid_that_was_reused_is_not_the_client_of_a_lease() -> None:
    found = folded(
        processes=[process(pid=7)], leases=leases("GPU-0"), process_contexts=contexts(p7=(ProcessKey(60, 2),))
    )
    assert [row.account.job for row in found.allocations if row.processes] == ["lease-1"]


def test_a_program_on_a_gpu_that_its_lease_does_not_have_holds_that_gpu_by_itself() -> None:
    found = folded(
        gpus=(gpu(0), gpu(1)),
        processes=[process(pid=7, gpu_index=1)],
        leases=leases("GPU-0"),
        process_contexts=contexts(p7=(OLDER,)),
    )
    (row,) = [row for row in found.allocations if row.processes]
    assert (row.slot.name, row.account.job) == ("1", "")


def test_a_container_keeps_its_own_account() -> None:
    box = managed("box", "bob", "0")
    found = folded(box, processes=[process(box, pid=7)], leases=leases("GPU-0"), process_contexts=contexts(p7=(OLDER,)))
    assert [row.workload for row in found.allocations if row.processes] == ["box"]


def test_a_program_in_a_pod_does_not_belong_to_the_lease_of_its_user() -> None:
    found = folded(processes=[process(pod=PodPlace("uid-1", "train-0", "research"))], leases=leases("GPU-0"))
    assert [row.account.pod for row in found.allocations if row.processes] == ["train-0"]
