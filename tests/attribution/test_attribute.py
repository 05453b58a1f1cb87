"""Every byte, millionth of SM time and milliwatt of a GPU reading has an owner or a reason."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from attribution.builders import (
    GIB,
    container,
    gpu,
    gpu_process,
    identity,
    mig_instance,
    pod,
    reading,
    table,
)
from attribution.cgroup_vectors import DASHED, UNDERSCORED, C
from gpucommons.model.gpu import Gpu, GpuProcess, GpuReading
from gpucommons.model.ownership import SENTENCES, Attribution, Basis, Owner, OwnerKind, Portion, Reason
from gpucommons.model.process_identity import PidScope, PidView, ProcessIdentity
from gpucommons.model.workloads import PodReading
from gpucommons.owners.apportion import Apportionment, DeviceTotals, Resident, apportion
from gpucommons.owners.attribute import Attributor
from gpucommons.owners.owner import OwnerRules
from gpucommons.owners.process_identity import IdentityTable
from gpucommons.owners.workload import Surroundings

MEASURED, APPORTIONED = Basis.MEASURED, Basis.APPORTIONED
ALONE = Surroundings(user_names={1000: "alice", 1001: "bob"})


def attribute(
    gpus: GpuReading, identities: IdentityTable, around: Surroundings = ALONE, rules: OwnerRules | None = None
) -> Attribution:
    return Attributor(rules).attribute(gpus, identities, around)


def unattributed(attribution: Attribution) -> dict[tuple[str, Reason], tuple[int | None, int | None, int | None]]:
    return {
        (row.gpu_uuid, row.reason): (row.memory_bytes, row.sm_millionths, row.power_milliwatts)
        for row in attribution.unattributed
    }


def user(uid: int, name: str) -> Owner:
    return Owner(OwnerKind.USER, str(uid), name)


def test_two_users_of_one_gpu() -> None:
    both = [gpu_process(7, GIB, 30), gpu_process(8, 2 * GIB, 10), gpu_process(9, GIB // 2, 5)]
    found = attribute(
        reading(gpu(0, both, used=4 * GIB, percent=50, watts=100.0)),
        table(identity(7), identity(8, uid=1001), identity(9)),
    )
    alice, bob = found.owners
    assert (alice.owner, alice.processes) == (user(1000, "alice"), 2)
    assert alice.memory == Portion(GIB + GIB // 2, MEASURED)
    assert alice.sm == Portion(350_000, MEASURED)
    assert alice.power == Portion(70_000, APPORTIONED)
    assert (bob.owner, bob.memory, bob.sm) == (
        user(1001, "bob"),
        Portion(2 * GIB, MEASURED),
        Portion(100_000, MEASURED),
    )
    assert unattributed(found) == {
        ("GPU-0", Reason.DRIVER_RESERVED): (GIB // 2, None, None),
        ("GPU-0", Reason.NO_UTILIZATION_SAMPLE): (None, 50_000, 10_000),
    }
    assert [row.pid for row in found.processes] == [7, 8, 9]


def test_one_owner_on_two_gpus_has_a_row_on_each() -> None:
    found = attribute(reading(gpu(0, [gpu_process(7)]), gpu(1, [gpu_process(7)])), table(identity(7)))
    assert [(row.gpu_uuid, row.owner.name) for row in found.owners] == [("GPU-0", "alice"), ("GPU-1", "alice")]


def test_a_process_on_two_gpus_is_judged_once() -> None:
    found = attribute(reading(gpu(0, [gpu_process(7)]), gpu(1, [gpu_process(7)])), table(identity(7)))
    one, other = found.processes
    assert (one.place.gpu_index, other.place.gpu_index) == (0, 1)
    assert one.workload is other.workload
    assert one.steps is other.steps


def test_a_process_that_ended_has_a_reason_and_no_owner() -> None:
    found = attribute(
        reading(gpu(0, [gpu_process(7, GIB, 20)], used=GIB, percent=20)), table(failures={7: Reason.PROCESS_GONE})
    )
    assert found.owners == ()
    assert unattributed(found) == {("GPU-0", Reason.PROCESS_GONE): (GIB, 200_000, 300_000)}
    assert (found.processes[0].owner, found.processes[0].reason) == (None, Reason.PROCESS_GONE)


def test_in_a_pid_namespace_the_reason_is_reported() -> None:
    view = PidView(PidScope.NAMESPACE, "run with hostPID: true")
    found = attribute(
        reading(gpu(0, [gpu_process(7, GIB, start_ticks=None)], used=2 * GIB)),
        table(view=view, failures={7: Reason.PID_NAMESPACE}),
    )
    assert unattributed(found)["GPU-0", Reason.PID_NAMESPACE][0] == GIB
    assert unattributed(found)["GPU-0", Reason.NOT_VISIBLE][0] == GIB
    assert "run with hostPID: true" in found.processes[0].steps


def test_a_process_list_that_could_not_be_read() -> None:
    found = attribute(reading(gpu(0, None, used=GIB, percent=10, watts=70.0)), table())
    assert unattributed(found) == {("GPU-0", Reason.NO_PROCESS_LIST): (GIB, 100_000, 70_000)}


def test_no_rule_names_an_owner() -> None:
    rules = OwnerRules((OwnerKind.POD,))
    found = attribute(reading(gpu(0, [gpu_process(7)], used=GIB)), table(identity(7)), rules=rules)
    assert unattributed(found)["GPU-0", Reason.NO_OWNER][0] == GIB


def test_a_lost_gpu_has_no_account() -> None:
    assert attribute(reading(gpu(0, [gpu_process(7)], up=False)), table(identity(7))).accounts == ()


def test_missing_stays_missing() -> None:
    found = attribute(reading(gpu(0, [gpu_process(7, None)], used=None, percent=None, watts=None)), table(identity(7)))
    (row,) = found.processes
    assert (row.memory, row.sm, row.power) == (None, None, None)
    assert found.unattributed == ()
    (account,) = found.accounts
    assert (account.memory_used_bytes, account.sm_millionths, account.power_milliwatts) == (None, None, None)


def test_with_mig_each_instance_is_divided_separately() -> None:
    split = (mig_instance(1, 3, 1.0), mig_instance(2, 4, 0.5))
    processes = [gpu_process(7, GIB, instance=1), gpu_process(8, GIB, instance=2)]
    found = attribute(reading(gpu(0, processes, percent=None, mig=split)), table(identity(7), identity(8, uid=1001)))
    assert [row.sm for row in found.processes] == [Portion(428_571, APPORTIONED), Portion(285_714, APPORTIONED)]
    assert [row.place.gpu_instance_id for row in found.processes] == [1, 2]
    assert found.accounts[0].sm_millionths == 428_571 + 285_714


def test_with_mig_and_without_counters_there_is_no_sm_time() -> None:
    processes = [gpu_process(7, GIB, instance=1)]
    found = attribute(reading(gpu(0, processes, percent=None, mig=(mig_instance(1, 3, None),))), table(identity(7)))
    assert found.processes[0].sm is None
    assert found.accounts[0].sm_millionths is None


def test_a_pod_and_its_container() -> None:
    cgroup = f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/cri-containerd-{C}.scope"
    around = Surroundings(pods=PodReading.of([pod(DASHED, main=C)]))
    found = attribute(reading(gpu(0, [gpu_process(7)])), table(identity(7, cgroup)), around)
    assert found.owners[0].owner == Owner(OwnerKind.POD, DASHED, "train-0", "ml")


def test_two_pods_with_one_name_in_two_namespaces_are_two_owners() -> None:
    uids = ("00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002")
    around = Surroundings(pods=PodReading.of([pod(uids[0], "train", "ml"), pod(uids[1], "train", "web")]))
    cgroups = [f"0::/kubepods/pod{uid}/{C}" for uid in uids]
    found = attribute(
        reading(gpu(0, [gpu_process(7), gpu_process(8)])),
        table(identity(7, cgroups[0]), identity(8, cgroups[1])),
        around,
    )
    assert [(row.owner.namespace, row.owner.name) for row in found.owners] == [("ml", "train"), ("web", "train")]


class TestOverTime:
    def test_the_same_surroundings_are_judged_once(self) -> None:
        attributor, gpus, identities = Attributor(), reading(gpu(0, [gpu_process(7)])), table(identity(7))
        first = attributor.attribute(gpus, identities, ALONE)
        second = attributor.attribute(gpus, identities, ALONE)
        assert second.processes[0].steps is first.processes[0].steps

    def test_a_renamed_container_keeps_its_identity_and_changes_its_name(self) -> None:
        attributor, gpus = Attributor(), reading(gpu(0, [gpu_process(7)]))
        identities = table(identity(7, f"0::/docker-{C}.scope"))
        before = attributor.attribute(gpus, identities, Surroundings({C: container(C, "old")}))
        after = attributor.attribute(gpus, identities, Surroundings({C: container(C, "new")}))
        workloads = before.processes[0].workload, after.processes[0].workload
        assert [(w.container_id, w.container_name) for w in workloads] == [(C, "old"), (C, "new")]

    def test_a_container_that_was_created_again_is_another(self) -> None:
        """The same name with another id is another process."""
        other = "f" * 64
        around = Surroundings({other: container(other, "train", **{"ds01.user": "bob"})})
        found = attribute(
            reading(gpu(0, [gpu_process(7), gpu_process(8)])),
            table(identity(7, f"0::/docker-{C}.scope"), identity(8, f"0::/docker-{other}.scope")),
            around,
        )
        assert [row.workload.container_name for row in found.processes] == [None, "train"]
        assert [row.owner.kind for row in found.owners] == [OwnerKind.USER, OwnerKind.LABEL]

    def test_a_user_whose_name_comes_late_is_the_same_owner(self) -> None:
        attributor, gpus, identities = Attributor(), reading(gpu(0, [gpu_process(7)])), table(identity(7))
        before = attributor.attribute(gpus, identities, Surroundings()).owners[0].owner
        after = attributor.attribute(gpus, identities, ALONE).owners[0].owner
        assert (before.kind, before.id) == (after.kind, after.id)
        assert (before.name, after.name) == ("1000", "alice")

    def test_a_reused_pid_is_not_billed_to_the_departed(self) -> None:
        attributor = Attributor()
        departed, newcomer = identity(7, uid=1000, start_ticks=100), identity(7, uid=1001, start_ticks=200)
        first = reading(gpu(0, [gpu_process(7, GIB, 40, start_ticks=100)], used=GIB, percent=40))
        attributor.attribute(first, table(departed), ALONE)
        second = reading(gpu(0, [gpu_process(7, GIB, 40, start_ticks=200)], used=GIB, percent=40))
        found = attributor.attribute(second, table(departed, newcomer), ALONE)
        assert [row.owner.name for row in found.owners] == ["bob"]
        assert found.owners[0].memory == Portion(GIB, MEASURED)

    def test_nor_is_the_newcomer_billed_for_the_sample_of_the_departed(self) -> None:
        attributor = Attributor()
        departed, newcomer = identity(7, uid=1000, start_ticks=100), identity(7, uid=1001, start_ticks=200)
        listed = [gpu_process(7, GIB, 40, start_ticks=100)]
        attributor.attribute(reading(gpu(0, listed, percent=40)), table(departed), ALONE)
        listed = [gpu_process(7, GIB, 40, start_ticks=200)]
        gpus = reading(gpu(0, listed, percent=40, watts=100.0))
        found = attributor.attribute(gpus, table(departed, newcomer), ALONE)
        assert found.owners[0].sm is None
        assert unattributed(found)["GPU-0", Reason.PROCESS_GONE] == (None, 400_000, 100_000)
        settled = attributor.attribute(gpus, table(newcomer), ALONE)
        assert settled.owners[0].sm == Portion(400_000, MEASURED)

    def test_a_key_that_was_corrected_counts_as_a_newcomer(self) -> None:
        attributor = Attributor()
        gpus = reading(gpu(0, [gpu_process(7, GIB, 40, start_ticks=100)], percent=40))
        attributor.attribute(gpus, table(identity(7)), ALONE)
        newcomer = identity(7, uid=1001, start_ticks=200)
        found = attributor.attribute(gpus, IdentityTable({}, {7: newcomer}, table().view), ALONE)
        assert (found.owners[0].owner.name, found.owners[0].sm) == ("bob", None)

    def test_the_idle_draw_is_learnt_and_then_shared(self) -> None:
        attributor, identities = Attributor(), table(identity(7), identity(8, uid=1001))
        idle = [gpu_process(7, GIB, 0), gpu_process(8, GIB, 0)]
        attributor.attribute(reading(gpu(0, idle, percent=0, watts=100.0)), identities, ALONE)
        busy = [gpu_process(7, GIB, 50), gpu_process(8, GIB, 0)]
        found = attributor.attribute(reading(gpu(0, busy, percent=50, watts=400.0)), identities, ALONE)
        assert [row.power for row in found.processes] == [
            Portion(350_000, APPORTIONED),
            Portion(50_000, APPORTIONED),
        ]


PIDS = st.integers(1, 5)
MEMORY = st.none() | st.integers(0, 100) | st.sampled_from([-1, 2**64 - 1, 80 * GIB + 1])
PERCENT = st.none() | st.integers(0, 100) | st.sampled_from([101, 4_294_967_295])
PROCESSES = st.builds(
    gpu_process,
    pid=PIDS,
    memory_bytes=MEMORY,
    sm_percent=PERCENT,
    start_ticks=st.none() | st.integers(1, 3),
    instance=st.none() | st.integers(0, 2),
)
GPUS = st.builds(
    gpu,
    index=st.integers(0, 2),
    processes=st.none() | st.lists(PROCESSES, max_size=6),
    used=st.none() | st.integers(0, 200),
    percent=st.none() | st.integers(0, 100),
    watts=st.none() | st.floats(0, 1000),
    mig=st.just(()) | st.just((mig_instance(1, 3, 0.3), mig_instance(2, 4, None))),
)
IDENTITIES = st.lists(
    st.builds(
        identity,
        pid=PIDS,
        uid=st.none() | st.integers(1000, 1002),
        start_ticks=st.integers(1, 3),
        cgroup=st.sampled_from(["0::/", f"0::/docker-{C}.scope", "0::/system.slice/x.service"]),
    ),
    max_size=10,
)
FAILURES = st.dictionaries(PIDS, st.just(Reason.PROCESS_GONE), max_size=3)


@given(st.lists(st.tuples(st.lists(GPUS, max_size=3), IDENTITIES, FAILURES), max_size=4))
def test_every_part_has_an_owner_or_a_reason(
    passes: list[tuple[list[Gpu], list[ProcessIdentity], dict[int, Reason]]],
) -> None:
    """For any sequence of readings, also with implausible values and reused pids, the parts sum up."""
    attributor = Attributor(OwnerRules((OwnerKind.UNIT, OwnerKind.USER)))
    for gpus, identities, failures in passes:
        by_uuid = {one.identity.uuid: one for one in gpus}
        found = attributor.attribute(reading(*by_uuid.values()), table(*identities, failures=failures), ALONE)
        assert len(found.accounts) == len(by_uuid)
        for account in found.accounts:
            assert (account.memory_error_bytes, account.sm_error_millionths) == (0, 0)
            assert account.power_error_milliwatts == 0
            assert account.memory_used_bytes == by_uuid[account.gpu_uuid].readings.memory_used_bytes
            owners = [row for row in found.owners if row.gpu_uuid == account.gpu_uuid]
            rest = [row for row in found.unattributed if row.gpu_uuid == account.gpu_uuid]
            if account.memory_used_bytes is not None:
                sums = sum(o.memory.amount for o in owners if o.memory), sum(r.memory_bytes or 0 for r in rest)
                assert sum(sums) == account.memory_used_bytes
            if account.sm_millionths is not None:
                sums = sum(o.sm.amount for o in owners if o.sm), sum(r.sm_millionths or 0 for r in rest)
                assert sum(sums) == account.sm_millionths
        for row in found.processes:
            assert (row.owner is None) != (row.reason is None)
        assert len({(row.gpu_uuid, row.owner.kind, row.owner.id) for row in found.owners}) == len(found.owners)


KEYS = st.lists(st.tuples(PIDS, st.integers(1, 3)), max_size=10, unique=True)


@given(st.lists(st.tuples(st.lists(GPUS, max_size=3), KEYS, st.booleans()), max_size=5))
def test_what_is_kept_between_readings_changes_nothing(
    passes: list[tuple[list[Gpu], list[tuple[int, int]], bool]],
) -> None:
    """For any readings, ended processes and changed surroundings."""
    kept, forgetful, around = Attributor(), Attributor(), ALONE
    for gpus, keys, moved in passes:
        around = Surroundings() if moved else around
        by_uuid = {one.identity.uuid: one for one in gpus}
        identities = table(*(identity(pid, uid=1000 + pid + ticks, start_ticks=ticks) for pid, ticks in keys))
        forgetful._kept, forgetful._findings = {}, {}
        inputs = reading(*by_uuid.values()), identities, around
        found = kept.attribute(*inputs)
        assert found == forgetful.attribute(*inputs)
        assert sum(map(len, kept._findings.values())) <= len(keys), "findings on ended processes are forgotten"


MEMORY = st.sampled_from([None, 0, GIB, 2 * GIB])
SAMPLES = st.sampled_from([None, 0, 30, 90])
STEPS = st.tuples(
    st.lists(st.tuples(MEMORY, SAMPLES), min_size=3, max_size=4),
    st.sampled_from([None, 2 * GIB, 4 * GIB]),
    st.sampled_from([0, 50, 100]),
    st.permutations([1, 2, 3, 4]),
)
_EVEN = [(GIB, 0), (GIB, 0), (GIB, 0)]


@given(st.lists(STEPS, min_size=2, max_size=6))
@example([(_EVEN, 4 * GIB, 0, [1, 2, 3, 4]), ([(GIB, 0), (2 * GIB, 0), (0, 0)], 4 * GIB, 0, [1, 2, 3, 4])])
@example([(_EVEN, 4 * GIB, 0, [1, 2, 3, 4]), (_EVEN, 2 * GIB, 0, [1, 2, 3, 4])])
@example([(_EVEN, 4 * GIB, 0, [1, 2, 3, 4]), (_EVEN, 4 * GIB, 0, [2, 1, 3, 4])])
def test_what_is_kept_changes_nothing_where_the_processes_stay(
    steps: list[tuple[list[tuple[int | None, int | None]], int | None, int, list[int]]],
) -> None:
    """The same few processes, whose use and order change. A row that has not changed is the same object, as the
    driver's."""
    kept, forgetful = Attributor(), Attributor()
    identities = table(*(identity(pid, uid=1000 + pid % 2) for pid in range(1, 5)))
    seen: dict[GpuProcess, GpuProcess] = {}
    for uses, used, percent, pids in steps:
        rows = [gpu_process(pid, memory, sm) for pid, (memory, sm) in zip(pids, uses, strict=False)]
        inputs = reading(gpu(0, [seen.setdefault(row, row) for row in rows], used=used, percent=percent))
        forgetful._kept = {}
        assert kept.attribute(inputs, identities, ALONE) == forgetful.attribute(inputs, identities, ALONE)


def test_the_samples_of_a_process_whose_pid_was_reused_are_its_own_from_the_next_reading_on() -> None:
    """Also where the driver reports the same as before: then the row is the same object."""
    attributor, earlier, later = Attributor(), identity(7, start_ticks=1), identity(7, start_ticks=2)
    row = gpu_process(7, GIB, 30)
    attributor.attribute(reading(gpu(0, [row._replace(key=earlier.key)])), table(earlier), ALONE)
    same, later_table = reading(gpu(0, [row._replace(key=later.key)], percent=30)), table(later)
    (first,) = attributor.attribute(same, later_table, ALONE).processes
    (second,) = attributor.attribute(same, later_table, ALONE).processes
    assert first.sm is None
    assert second.sm is not None
    assert second.sm.amount == 300_000


def test_after_an_error_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    attributor, identities = Attributor(), table(identity(7))
    row = gpu_process(7, GIB)
    usual, other = (reading(gpu(0, [row], percent=percent)) for percent in (10, 90))
    expected = attributor.attribute(usual, identities, ALONE)
    with monkeypatch.context() as broken:
        broken.setattr("gpucommons.owners.attribute._sum_at", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            attributor.attribute(other, identities, ALONE)
    assert attributor.attribute(usual, identities, ALONE) == expected


def test_equal_shares_of_two_readings_are_one_object() -> None:
    attributor, identities = Attributor(), table(identity(7), identity(8))
    both = reading(gpu(0, [gpu_process(7, GIB, 30), gpu_process(8, GIB, 0)]))
    first = attributor.attribute(both, identities, ALONE)
    again = attributor.attribute(reading(*both.gpus), identities, ALONE)
    assert [row is same for row, same in zip(first.processes, again.processes, strict=True)] == [True, True]


def test_the_check_reports_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """If one part is lost, the check reports by how much."""

    def losing(
        device: DeviceTotals,
        residents: Sequence[Resident],
        idle_milliwatts: int | None,
        before: Apportionment | None,
    ) -> Apportionment:
        split = apportion(device, residents, idle_milliwatts, before)
        return split._replace(memory=replace(split.memory, total=(split.memory.total or 0) + 5))

    monkeypatch.setattr("gpucommons.owners.attribute.apportion", losing)
    found = attribute(reading(gpu(0, [gpu_process(7)])), table(identity(7)))
    assert found.accounts[0].memory_error_bytes == -5


def test_every_reason_has_a_sentence() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "owners.md").read_text()
    assert set(SENTENCES) == set(Reason)
    assert all(f"| `{reason}` |" in page for reason in Reason)
