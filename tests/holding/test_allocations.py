"""Allocations: claims and running processes combined into one list of holders that share each slot."""

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attribution.builders import gpu, mig_instance, reading
from gpucommons.ledger.integrate import usage_of
from gpucommons.model.allocations import (
    UNATTRIBUTED,
    WHOLE_SHARE,
    Access,
    Account,
    Allocation,
    AllocationReading,
    AllocationState,
    WorkloadKind,
)
from gpucommons.model.gpu import Gpu, GpuProcess, GpuReading
from gpucommons.model.ownership import (
    Attribution,
    Basis,
    Owner,
    OwnerKind,
    Place,
    PodPlace,
    Portion,
    ProcessShare,
    Reason,
    Workload,
)
from gpucommons.model.process_identity import PidScope, PidView, ProcessKey
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.model.workloads import (
    Container,
    ContainerReading,
    ContainerState,
    DeviceId,
    DeviceRequest,
    Ds01Entry,
    Ds01Reading,
    JobMappingReading,
    JobPlace,
    MappedJob,
    Pod,
    PodDevices,
    PodDevicesReading,
    PodReading,
    UsersReading,
)
from gpucommons.owners.allocations import divide
from gpucommons.owners.holding_stage import AllocationStage
from unhurried import unhurried

VIEW = PidView(PidScope.HOST, "all")
USERS = UsersReading({1000: "alice", 1001: "bob"}, {"alice": "staff", "bob": "students"})
SPLIT = gpu(1, mig=(mig_instance(1, 3, 0.5, 1), mig_instance(5, 2, 0.5, 1)))._replace(mig_slices=7)


def docker(name: str, *devices: str, running: bool = True, id: str = "", count: int = 0, **fields: Any) -> Container:
    requests = (DeviceRequest("", count, devices),) if devices or count else ()
    state = ContainerState.RUNNING if running else ContainerState.EXITED
    full_id = (id or name).encode().hex().ljust(64, "0")
    return Container(full_id, name, "docker", state, device_requests=requests, **fields)


def managed(name: str, user: str, *devices: str, running: bool = True) -> Container:
    labels = {"ds01.user": user, "ds01.interface": "orchestration"}
    return docker(name, *devices, running=running, labels=labels)


def process(
    container: Container | None = None,
    user: str = "alice",
    gpu_index: int = 0,
    instance: int | None = None,
    sm: int | None = 500_000,
    owner: bool = True,
    pid: int = 7,
    **workload: Any,
) -> ProcessShare:
    uid = {"alice": 1000, "bob": 1001}.get(user, 1002)
    found = Workload("python", uid, user, container.id if container else None, container.name if container else None)
    return ProcessShare(
        Place(f"GPU-{gpu_index}", gpu_index, instance),
        pid,
        ProcessKey(pid, 1),
        Portion(1 << 30, Basis.MEASURED),
        None if sm is None else Portion(sm, Basis.MEASURED),
        Portion(100_000, Basis.APPORTIONED),
        Owner(OwnerKind.USER, str(uid), user) if owner else None,
        None if owner else Reason.PID_NAMESPACE,
        replace(found, **workload) if owner else Workload(),
    )


def readings(
    *containers: Container, gpus: Iterable[Gpu] = (gpu(0),), processes: Iterable[ProcessShare] = (), **more: Any
) -> Readings:
    attribution = Attribution(tuple(processes), (), (), (), VIEW)
    by_id = {container.id: container for container in containers}
    return Readings(gpus=reading(*gpus), docker=ContainerReading(by_id), users=USERS, attribution=attribution, **more)


def folded(*containers: Container, **more: Any) -> AllocationReading:
    found = AllocationStage()(readings(*containers, **more)).allocations
    assert found is not None
    return found


def rows(found: AllocationReading) -> list[tuple[str, str, str, float]]:
    """workload, slot, state, share of the slot"""
    return [(a.workload, a.slot.name, a.state.value, round(a.share / WHOLE_SHARE, 3)) for a in found.allocations]


def only(found: AllocationReading) -> Allocation:
    (allocation,) = found.allocations
    return allocation


@pytest.mark.parametrize("unknown", [0, 1])
def test_a_sum_with_an_unknown_part_is_unknown(unknown: int) -> None:
    box = docker("box", "0")
    shares = [process(box, pid=pid) for pid in (7, 8)]
    shares[unknown] = shares[unknown]._replace(memory=None, sm=None)
    (found,) = folded(box, processes=shares).allocations
    assert (found.memory_bytes, found.sm) == (None, None)


def test_held_running_and_active_are_distinguished() -> None:
    stopped, idle, busy = (
        managed("stopped", "alice", "0", running=False),
        managed("idle", "alice", "1"),
        managed("busy", "bob", "2"),
    )
    found = folded(stopped, idle, busy, gpus=(gpu(0), gpu(1), gpu(2)), processes=[process(busy, gpu_index=2)])
    assert rows(found) == [("stopped", "0", "held", 1), ("idle", "1", "running", 1), ("busy", "2", "active", 1)]
    assert [a.active for a in found.allocations] == [False, False, True]
    assert all(a.managed and a.interface == "orchestration" for a in found.allocations)


def test_two_owners_of_one_slot_share_it() -> None:
    found = folded(managed("one", "alice", "0"), managed("two", "bob", "0"))
    assert rows(found) == [("one", "0", "running", 0.5), ("two", "0", "running", 0.5)]
    assert [a.equivalents for a in found.allocations] == [0.5, 0.5]


def test_two_containers_of_one_owner_are_one_holder() -> None:
    found = folded(managed("one", "alice", "0"), managed("two", "alice", "0"), managed("three", "bob", "0"))
    assert rows(found) == [("one", "0", "running", 0.25), ("two", "0", "running", 0.25), ("three", "0", "running", 0.5)]


def test_a_stopped_container_is_not_billed_while_another_runs_on_its_slot() -> None:
    found = folded(managed("stopped", "alice", "0", running=False), managed("running", "bob", "0"))
    assert rows(found) == [("stopped", "0", "held", 0), ("running", "0", "running", 1)]


def test_equivalents_are_slices_over_those_of_the_gpu() -> None:
    found = folded(managed("part", "alice", "1:0"), managed("whole", "bob", "0"), gpus=(gpu(0), SPLIT))
    assert {a.workload: a.equivalents for a in found.allocations} == {"part": 3 / 7, "whole": 1.0}
    assert {a.workload: a.profile for a in found.allocations} == {"part": "3g.30gb", "whole": ""}
    unknown = folded(managed("part", "alice", "1:0"), gpus=(SPLIT._replace(mig_slices=None),))
    assert only(unknown).equivalents is None, "never a constant"


def test_a_busy_mig_device_is_not_idle() -> None:
    """Its SM time is a part of the whole GPU: 3 of the 5 slices in use, fully busy."""
    holder = managed("part", "alice", "1:0")
    found = folded(holder, gpus=(SPLIT,), processes=[process(holder, gpu_index=1, instance=1, sm=600_000)])
    assert only(found).sm == 1_000_000
    assert only(found).state is AllocationState.ACTIVE
    found = folded(holder, gpus=(SPLIT,), processes=[process(holder, gpu_index=1, instance=1, sm=None)])
    assert (only(found).sm, only(found).active) == (None, None), "it is not known"


def test_processes_of_one_gpu_instance_are_on_the_mig_devices_of_their_compute_instances() -> None:
    halves = tuple(mig_instance(1, 3, None)._replace(uuid=f"MIG-{n}", compute_instance_id=n) for n in (0, 1))
    seen = [
        GpuProcess(pid, ProcessKey(pid, 1), kind, 1 << 20, gpu_instance_id=1, compute_instance_id=compute)
        for pid, kind, compute in ((7, "compute", 0), (8, "compute", 1), (9, "graphics", None))
    ]
    card = gpu(0, mig=halves, processes=seen)
    place = Place("GPU-0", 0, 1)
    found = folded(gpus=(card,), processes=[process(pid=pid)._replace(place=place) for pid in (7, 8, 9)])
    assert {a.slot.uuid: [key.pid for key in a.processes] for a in found.allocations} == {"MIG-0": [7], "MIG-1": [8]}


@pytest.mark.parametrize(("sm", "active"), [(0, False), (24_000, False), (25_000, True), (None, None)])
def test_activity_is_judged_by_the_part_that_is_held(sm: int | None, active: bool | None) -> None:
    one, two = managed("one", "alice", "0"), managed("two", "bob", "0")
    found = folded(one, two, processes=[process(one, sm=sm)])
    assert found.allocations[0].active is active
    assert found.allocations[1].active is False


def test_without_a_process_list_no_holder_is_idle() -> None:
    found = folded(managed("one", "alice", "0"), gpus=(gpu(0, processes=None),))
    assert (only(found).active, only(found).sm, only(found).state) == (None, None, AllocationState.RUNNING)
    blind = AllocationStage()(readings(managed("one", "alice", "0"))._replace(attribution=None)).allocations
    assert blind is not None
    assert only(blind).active is None
    unread = AllocationStage()(readings(processes=[process()])._replace(gpus=None)).allocations
    assert unread is not None
    assert unread.allocations == (), "no GPU was read"


BYPASSES = [
    docker("all", count=-1),
    docker("all-labelled", count=-1, labels={"ds01.user": "alice", "ds01.managed": "true"}),
    docker("count", count=1, labels={"ds01.user": "alice"}),
    docker("bare", devices=("/dev/nvidia0",), labels={"ds01.user": "alice"}),
    docker("privileged", privileged=True, labels={"ds01.user": "alice"}),
    docker("privileged-too", "0", privileged=True, labels={"ds01.user": "alice"}),
    docker("unlabelled", "0"),
    docker("environment", visible_devices="all", labels={"ds01.managed": "true"}),
]


@pytest.mark.parametrize("container", BYPASSES, ids=lambda c: str(c.name))
def test_bypasses_are_unmanaged_with_or_without_a_label(container: Container) -> None:
    found = folded(container, processes=[process(container)])
    assert not only(found).managed
    assert only(found).share == WHOLE_SHARE, "it runs there: it is billed"
    (unmanaged,) = found.unmanaged
    assert (unmanaged.name, unmanaged.gpu_count, unmanaged.running) == (container.name, 1, True)


def test_a_container_that_may_use_every_gpu_holds_only_those_it_runs_on() -> None:
    """A monitoring container with --gpus all must not halve every bill."""
    monitor, holder = docker("monitor", count=-1), managed("one", "alice", "0")
    found = folded(monitor, holder, gpus=(gpu(0), gpu(1)))
    assert rows(found) == [("monitor", "0", "running", 0), ("one", "0", "running", 1), ("monitor", "1", "running", 0)]
    using = folded(monitor, holder, gpus=(gpu(0), gpu(1)), processes=[process(monitor, "bob", gpu_index=1)])
    assert rows(using)[2] == ("monitor", "1", "active", 1)
    assert found.unmanaged[0].access is Access.ALL


def test_a_stopped_unmanaged_container_holds_nothing_but_is_listed() -> None:
    found = folded(docker("old", "0", running=False))
    assert found.allocations == ()
    assert [(u.name, u.running) for u in found.unmanaged] == [("old", False)]


def test_owners_of_containers_by_label_and_by_their_processes() -> None:
    plain = docker("plain", "0")
    stage = AllocationStage()
    before = stage(readings(plain)).allocations
    during = stage(readings(plain, processes=[process(plain, "bob")])).allocations
    after = stage(readings(plain)).allocations
    assert before is not None
    assert during is not None
    assert after is not None
    assert only(before).account == UNATTRIBUTED
    assert only(during).account == only(after).account, "it is known for as long as the container is there"
    assert (only(after).account.user, only(after).account.group) == ("bob", "students")
    labelled = only(folded(managed("one", "alice", "0")))
    assert (labelled.account.kind, labelled.account.owner, labelled.account.group) == ("label", "alice", "staff")
    by_init = USERS._replace(container_uids={plain.id: 1000})
    assert (
        only(AllocationStage()(readings(plain)._replace(users=by_init)).allocations or before).account.user == "alice"
    )


def test_the_group_of_a_ds01_slice_is_used() -> None:
    container = docker("x", "0", cgroup_parent="ds01-guests-alice.slice")
    assert only(folded(container)).account[4:6] == ("alice", "guests")


def test_plain_processes_and_jobs_hold_what_they_run_on() -> None:
    found = folded(
        gpus=(gpu(0), gpu(1)),
        processes=[process(None, "alice"), process(None, "bob", gpu_index=1, job="4242", pid=9)],
    )
    assert [(a.kind, a.interface, a.managed, a.account.job) for a in found.allocations] == [
        (WorkloadKind.PROCESS, "process", False, ""),
        (WorkloadKind.PROCESS, "slurm", True, "4242"),
    ]
    assert all(a.share == WHOLE_SHARE for a in found.allocations)
    assert [(a.workload, a.state) for a in found.allocations] == [
        ("python", AllocationState.ACTIVE),
        ("4242", AllocationState.ACTIVE),
    ]


def test_a_container_has_its_account_also_on_gpus_that_it_did_not_claim() -> None:
    box = managed("box", "alice", "0")
    found = folded(box, gpus=(gpu(0), gpu(1)), processes=[process(box, "bob", gpu_index=1)]).allocations
    assert [(a.slot.name, a.account.user, a.managed) for a in found] == [("0", "alice", True), ("1", "alice", True)]


def test_a_container_within_a_job_is_the_holder() -> None:
    box = managed("box", "alice", "0")
    found = folded(box, processes=[process(box, job="4242")], job_mapping=mapped((0, None)))
    assert [(a.workload, len(a.processes)) for a in found.allocations] == [("box", 1), ("4242", 0)]


def test_a_user_without_a_name_is_shown_by_uid() -> None:
    assert [only(folded(processes=[process(user=user)])).account.user for user in ("bob", "")] == ["bob", "1002"]


def test_a_pod_that_the_kubelet_does_not_report_has_no_user() -> None:
    pod = only(folded(processes=[process(pod=PodPlace("uid-1", "train-0", "research"))]))
    assert (pod.account.namespace, pod.account.pod, pod.account.user) == ("research", "train-0", "")


def mapped(*places: JobPlace, job: str = "4242", uid: int | None = None) -> JobMappingReading:
    return JobMappingReading({place: (MappedJob(job, uid),) for place in places})


def test_a_mapped_job_holds_its_gpus_while_it_has_no_process_there() -> None:
    found = folded(gpus=(gpu(0), gpu(1)), job_mapping=mapped((0, None), (1, None)))
    assert rows(found) == [("4242", "0", "running", 1), ("4242", "1", "running", 1)]
    assert [(a.kind, a.interface, a.managed, a.active, a.sm) for a in found.allocations] == [
        (WorkloadKind.JOB, "slurm", True, False, 0)
    ] * 2
    assert found.allocations[0].account == Account("job", "4242", "", "4242", job="4242"), "and no user is made up"


def test_the_processes_of_a_mapped_job_name_its_user() -> None:
    stage = AllocationStage()
    work = process(None, "bob", job="4242", unit=None)
    work = work._replace(owner=Owner(OwnerKind.JOB, "4242", "4242"))
    mapping = mapped((0, None))

    def at(*processes: ProcessShare, job_mapping: JobMappingReading | None = mapping) -> AllocationReading:
        found = stage(readings(processes=processes, job_mapping=job_mapping)).allocations
        assert found is not None
        return found

    assert only(at()).account.user == ""
    busy = only(at(work))
    assert (busy.workload, busy.state, busy.share) == ("4242", AllocationState.ACTIVE, WHOLE_SHARE)
    assert busy.account == Account("job", "4242", "", "4242", "bob", "students", job="4242")
    assert only(at()).account == busy.account, "while the job lasts its user is known"
    assert only(at(work, job_mapping=None)).account == busy.account, "one account, mapped or not"
    assert at(job_mapping=JobMappingReading()).allocations == ()
    assert only(at()).account.user == "", "another job of that number, later, is not bob's"


def test_the_owner_of_a_mapping_file_is_the_user_of_its_job() -> None:
    assert only(folded(job_mapping=mapped((0, None), uid=1000))).account[4:] == ("alice", "staff", "", "4242")
    assert only(folded(job_mapping=mapped((0, None), uid=4000))).account.user == "4000"
    torn = JobMappingReading({(0, None): (MappedJob("7", 1000),), (1, None): (MappedJob("7", 1001),)})
    found = folded(gpus=(gpu(0), gpu(1)), job_mapping=torn)
    assert {a.account.user for a in found.allocations} == {""}, "files of two owners do not name a user"


def test_a_mapped_job_on_a_mig_device_holds_that_one() -> None:
    assert rows(folded(gpus=(SPLIT,), job_mapping=mapped((1, 5)))) == [("4242", "1.1", "running", 1)]
    assert rows(folded(gpus=(SPLIT,), job_mapping=mapped((1, None)))) == [
        ("4242", "1.0", "running", 1),
        ("4242", "1.1", "running", 1),
    ]


def test_jobs_share_a_gpu_with_each_other_and_with_containers() -> None:
    two = JobMappingReading({(0, None): (MappedJob("1"), MappedJob("2"))})
    assert rows(folded(job_mapping=two)) == [("1", "0", "running", 0.5), ("2", "0", "running", 0.5)]
    shared = folded(managed("one", "alice", "0"), job_mapping=mapped((0, None)))
    assert rows(shared) == [("one", "0", "running", 0.5), ("4242", "0", "running", 0.5)]


def test_a_job_on_a_missing_gpu_holds_nothing() -> None:
    assert folded(job_mapping=mapped((7, None))).allocations == ()


def test_a_mapping_that_changes_alone_changes_the_holders() -> None:
    stage, still = AllocationStage(), readings(job_mapping=mapped((0, None)))
    stage(still)
    found = stage(still._replace(job_mapping=mapped((0, None), job="4243"))).allocations
    assert found is not None
    assert only(found).workload == "4243"


def test_while_a_mapping_cannot_be_read_free_slots_are_unknown() -> None:
    stage = AllocationStage()
    complete = [stage(readings(job_mapping=each)).allocations.complete for each in (None, mapped((0, None)), None)]  # type: ignore[union-attr]
    assert complete == [True, True, False]


def test_a_held_and_idle_job_is_billed_by_the_ledger() -> None:
    snapshot = Snapshot(1, 5.0, 1.7e9, "host", readings=AllocationStage()(readings(job_mapping=mapped((0, None)))))
    (slot,) = usage_of(snapshot).slots
    (holding,) = slot.holdings
    assert (holding.account.job, holding.share, holding.active, holding.sm) == ("4242", WHOLE_SHARE, False, 0)


def test_a_container_that_no_runtime_lists_holds_its_slot() -> None:
    ghost = docker("ghost")
    found = folded(processes=[process(ghost)])
    assert (only(found).kind, only(found).workload_id) == (WorkloadKind.CONTAINER, ghost.id)
    assert only(found).workload == "ghost"


def test_graphics_do_not_hold_a_gpu() -> None:
    card = gpu(0, processes=[GpuProcess(7, ProcessKey(7, 1), "graphics", 1 << 20)])
    assert folded(gpus=(card,), processes=[process(None)]).allocations == ()


def test_usage_without_an_owner_belongs_to_the_only_holder_or_is_unattributed() -> None:
    hidden = process(owner=False)
    alone = only(folded(managed("one", "alice", "0"), processes=[hidden]))
    assert (alone.sm, alone.active) == (500_000, True)
    both = folded(managed("one", "alice", "0"), managed("two", "bob", "0"), processes=[hidden]).allocations
    assert [a.active for a in both] == [None, None]
    unattributed = only(folded(processes=[hidden]))
    assert (unattributed.account, unattributed.share) == (UNATTRIBUTED, WHOLE_SHARE), "it must not count as free"
    assert (unattributed.state, unattributed.managed) == (AllocationState.ACTIVE, False)


def test_usage_without_an_owner_is_added_to_that_of_the_only_holder() -> None:
    box = docker("box", "0")
    own, ownerless = process(box, sm=300_000), process(owner=False, pid=8, sm=400_000)
    found = only(folded(box, processes=[own, ownerless]))
    assert (found.sm, found.memory_bytes, found.milliwatts) == (700_000, 2 << 30, 200_000)
    for more in ((own._replace(sm=None), ownerless), (own, ownerless._replace(sm=None))):
        found = only(folded(box, processes=more))
        assert (found.sm, found.memory_bytes) == (None, 2 << 30), "a sum with an unknown part is unknown"


def test_a_process_without_a_unit_is_named_by_its_program() -> None:
    assert [only(folded(processes=[process(unit=unit)])).workload for unit in ("train.service", "")] == [
        "train.service",
        "python",
    ]


def test_the_state_file_of_older_installs() -> None:
    entries = (
        Ds01Entry("known", "alice", "0", 100.0),
        Ds01Entry("gone", "bob", "1", 200.0),
        Ds01Entry("labelled", "bob", "1"),
        Ds01Entry("elsewhere", "bob", "7.3"),
    )
    known, labelled_too = docker("known"), managed("labelled", "alice", "0")
    found = folded(known, labelled_too, gpus=(gpu(0), gpu(1)), ds01=Ds01Reading(entries))
    assert sorted(rows(found)) == [
        ("elsewhere", "7.3", "held", 1.0),
        ("gone", "1", "held", 1.0),
        ("known", "0", "running", 0.5),
        ("labelled", "0", "running", 0.5),
    ], "labels override the state file; the slot of a removed container stays reserved"
    assert all(a.managed for a in found.allocations)
    without = AllocationStage()(
        Readings(
            gpus=reading(gpu(0)),
            ds01=Ds01Reading((Ds01Entry("one", "alice", "0"), Ds01Entry("two", "bob", "0", None, True))),
        )
    ).allocations
    assert without is not None
    assert rows(without) == [("one", "0", "running", 1.0), ("two", "0", "held", 0.0)]


def given_to(pod: str, *devices: DeviceId, namespace: str = "research") -> PodDevices:
    return PodDevices(namespace, pod, "main", devices)


def test_pods_hold_what_the_kubelet_allocated() -> None:
    devices = PodDevicesReading((given_to("train-0", DeviceId("x", gpu_uuid="GPU-0")),))
    pods = PodReading.of([Pod("uid-1", "train-0", "research", "Running")])
    found = folded(
        pods=pods,
        pod_devices=devices,
        processes=[process(None, pod=PodPlace("uid-1", "train-0", "research"))],
    )
    pod = only(found)
    assert (pod.kind, pod.interface, pod.managed, pod.state.value) == ("pod", "kubernetes", True, "active")
    assert pod.account[:5] == ("pod", "train-0", "research", "uid-1", "")
    over = folded(pods=PodReading.of([Pod("uid-1", "train-0", "research", "Succeeded")]), pod_devices=devices)
    assert over.allocations == ()


PARTS = st.integers(1, 8).flatmap(lambda of: st.integers(1, of).map(lambda parts: Fraction(parts, of)))


@given(st.lists(PARTS, min_size=1, max_size=20))
def test_a_slot_is_divided_in_proportion_to_the_claims(claims: list[Fraction]) -> None:
    shares, most = divide(claims), max(Fraction(1), sum(claims, Fraction(0)))
    for share, claim in zip(shares, claims, strict=True):
        assert abs(share - claim / most * WHOLE_SHARE) < 1
    assert sum(shares) == int(sum(claims, Fraction(0)) / most * WHOLE_SHARE), "nothing is lost in rounding"


def test_replicas_of_a_time_sliced_gpu_are_parts_of_it() -> None:
    replicas = tuple(DeviceId(f"GPU-0::{n}", gpu_uuid="GPU-0", replica=n) for n in range(4))
    devices = PodDevicesReading(
        (given_to("one", replicas[0]), given_to("two", replicas[1], replicas[2])), {"nvidia.com/gpu": replicas}
    )
    found = folded(pod_devices=devices)
    assert rows(found) == [("one", "0", "running", 0.25), ("two", "0", "running", 0.5)], "a quarter is free"


def test_a_pods_docker_container_is_not_counted_twice() -> None:
    labels = {"io.kubernetes.pod.name": "train-0", "io.kubernetes.pod.namespace": "research"}
    devices = PodDevicesReading((given_to("train-0", DeviceId("x", gpu_uuid="GPU-0")),))
    assert rows(folded(docker("k8s_train", "0", labels=labels), pod_devices=devices)) == [
        ("train-0", "0", "running", 1)
    ]


def test_an_unknown_slot_is_held_by_its_name() -> None:
    found = folded(managed("one", "alice", "GPU-77", "3:1"), gpus=())
    assert [(a.slot.name, a.equivalents) for a in found.allocations] == [("GPU-77", None), ("3.1", None)]


def test_since_when() -> None:
    labels = {"ds01.user": "alice", "ds01.gpu.allocated_at": "2026-11-15T10:00:00Z"}
    assert only(folded(docker("x", "0", labels=labels))).since_wall_s == 1794736800.0
    broken = {**labels, "ds01.gpu.allocated_at": "soon", "ds01.created_at": "2026-11-15T10:00:01Z"}
    assert only(folded(docker("x", "0", labels=broken))).since_wall_s == 1794736801.0
    assert only(folded(docker("x", "0", labels={"ds01.user": "a"}, started_wall_s=5.0))).since_wall_s == 5.0


def test_a_runtime_that_stops_answering_leaves_the_list_incomplete_for_a_while() -> None:
    now_s = 0.0
    stage = AllocationStage(monotonic=lambda: now_s)
    whole = readings(managed("one", "alice", "0"))
    silent = whole._replace(docker=None)

    def complete(given: Readings) -> bool:
        found = stage(given).allocations
        assert found is not None
        return found.complete

    assert complete(silent), "it was never there"
    assert complete(whole)
    assert not complete(silent)
    now_s = 3601.0
    assert complete(silent), "it is not coming back"


def test_claims_are_not_computed_again_while_nothing_changes() -> None:
    stage, same = AllocationStage(), readings(managed("one", "alice", "0"))
    stage(same)
    claims = stage._claims
    stage(same._replace(attribution=(same.attribution or Attribution((), (), (), (), VIEW))._replace()))
    assert stage._claims is claims
    stage(same._replace(docker=ContainerReading({})))
    assert stage._claims is not claims


SETS = st.lists(st.sampled_from(["0", "1", "1:0", "1:1", "2", "GPU-9"]), max_size=3)
WHO = st.sampled_from(["alice", "bob", "carol"])


@unhurried(80)
@given(
    st.lists(st.tuples(WHO, SETS, st.booleans(), st.sampled_from([0, -1, 2]), st.booleans()), max_size=6),
    st.lists(st.tuples(st.integers(0, 7), WHO, st.integers(0, 2), st.booleans()), max_size=6),
    st.integers(0, 4),
)
def test_no_slot_is_held_more_than_once_and_every_running_workload_is_billed(
    containers: list[tuple[str, list[str], bool, int, bool]],
    processes: list[tuple[int, str, int, bool]],
    replicas: int,
) -> None:
    made = [
        docker(f"c{n}", *devices, count=count, running=running, labels={"ds01.user": user} if labelled else {})
        for n, (user, devices, running, count, labelled) in enumerate(containers)
    ]
    running = [
        process(
            made[number] if number < len(made) else None,
            user,
            index,
            {1: 5}.get(index),
            owner=owned,
            pid=pid,
        )
        for pid, (number, user, index, owned) in enumerate(processes)
    ]
    shared = tuple(DeviceId(f"GPU-2::{n}", gpu_uuid="GPU-2", replica=n) for n in range(4))
    pods = PodDevicesReading(tuple(given_to(f"p{n}", shared[n]) for n in range(replicas)), {"nvidia.com/gpu": shared})
    found = folded(*made, gpus=(gpu(0), SPLIT, gpu(2)), processes=running, pod_devices=pods)
    held: dict[str, int] = {}
    for row in found.allocations:
        assert 0 <= row.share <= WHOLE_SHARE
        held[row.slot.uuid] = held.get(row.slot.uuid, 0) + row.share
    assert all(total <= WHOLE_SHARE for total in held.values())
    for share in running:
        slot = "MIG-1-5" if share.place.gpu_index == 1 else share.place.gpu_uuid
        assert held.get(slot, 0) > 0, "a workload runs there: it is not free"
    assert not any(row.slot.name == "1" for row in found.allocations), "the part without a MIG device cannot be held"
    assert Fraction(sum(held.values()), WHOLE_SHARE) <= len(held)


def test_the_reading_names_every_slot_of_every_present_gpu() -> None:
    found = folded(gpus=(gpu(0), SPLIT, gpu(2, up=False)))
    assert [info.slot.name for info in found.slots] == ["0", "1.0", "1.1", "1"]
    empty: GpuReading | None = None
    nothing = AllocationStage()(Readings(gpus=empty)).allocations
    assert nothing is not None
    assert nothing.slots == ()
