"""What is wrong, gravest first: every kind has a case that shows it and one that stays silent."""

from collections.abc import Mapping
from fractions import Fraction

import pytest

from demo_node import DemoNode
from gpucommons.model.accounts import LedgerReading, LedgerState
from gpucommons.model.allocations import (
    WHOLE_SHARE,
    Account,
    Allocation,
    AllocationState,
    Slot,
    SlotsReading,
    SlotState,
    SlotStatus,
    WorkloadKind,
)
from gpucommons.model.events import ALLOCATION_GONE, Alert, AlertsReading, Event, EventLogReading
from gpucommons.model.gpu import Gpu, GpuIdentity, GpuReading, GpuReadings, XidRecord
from gpucommons.model.leases import Lease, LeaseRequest, LeasesReading, Trespasser
from gpucommons.model.ownership import Attribution, Basis, Place, Portion, ProcessShare, Reason, Workload
from gpucommons.model.problems import HealthLevel, Problem, ProblemKind
from gpucommons.model.process_identity import PidScope, PidView
from gpucommons.model.sharing import WaitReading, WaitReason
from gpucommons.model.snapshot import Readings, Snapshot, SourceState
from gpucommons.model.viewer import Viewer
from gpucommons.model.workloads import JobMappingReading, MappedJob
from gpucommons.rules.privacy import redact
from gpucommons.rules.problems import HELD_IDLE_S, problems_of
from gpucommons.rules.summary import Tone, summary_of

NOW = 1_760_000_000.0
POWER_CAP, THERMAL, SLOWDOWN, BRAKE = 0x4, 0x40, 0x8, 0x80


def gpu(index: int = 0, xid: XidRecord | None = None, **readings: int) -> Gpu:
    return Gpu(
        GpuIdentity(f"GPU-{index}", index, "NVIDIA H200", f"0000:0{index}", temperature_slowdown_celsius=89),
        True,
        NOW - 9000,
        readings=GpuReadings(temperature_celsius=60, throttle_mask=POWER_CAP)._replace(**readings),
        xid=xid or XidRecord(watched=True),
    )


def lost(index: int = 3, xid: XidRecord | None = None) -> Gpu:
    return Gpu(gpu(index).identity, False, NOW - 40, "gpu_is_lost", xid=xid or XidRecord(True))


def snapshot(*gpus: Gpu, sources: Mapping[str, SourceState] | None = None, **readings: object) -> Snapshot:
    found = GpuReading("570", "12", "12.8", gpus, len(gpus), sum(each.up for each in gpus))
    return Snapshot(1, 5000.0, NOW, "node", readings=Readings(gpus=found, **readings), sources=sources or {})  # type: ignore[arg-type]


def problem(*gpus: Gpu, **readings: object) -> Problem:
    (only,) = problems_of(snapshot(*gpus, **readings))  # type: ignore[arg-type]
    return only


def held(index: int, user: str, idle_s: float | None) -> SlotStatus:
    slot = Slot(f"GPU-{index}", f"GPU-{index}", str(index))
    holder = Allocation(
        *(Account("user", user, user=user), WorkloadKind.PROCESS, "python", f"w{index}", slot, "", WHOLE_SHARE),
        *(AllocationState.RUNNING, "bare", False),
    )
    state = SlotState.BUSY if idle_s is None else SlotState.HELD_IDLE
    return SlotStatus(slot, index, "", state, holders=(holder,), since_wall_s=NOW - 8000, idle_s=idle_s)


def storm(code: int, count: int, ago_s: int) -> XidRecord:
    recent = {(int(NOW) - ago_s, code): count - 1, (int(NOW) - 5, code): 1}
    return XidRecord(True, {code: count}, code, NOW - 5, recent=recent)


def test_a_healthy_node_at_its_power_cap_has_no_problem() -> None:
    assert problems_of(snapshot(gpu(0), gpu(1))) == ()


def test_a_lost_gpu_names_the_cause_the_job_and_what_to_do() -> None:
    ended = Event(NOW - 39, ALLOCATION_GONE, "dana", details={"slot": "3", "workload": "train"})
    other = ended._replace(details={"slot": "30", "workload": "other"})
    older = ended._replace(wall_s=NOW - 4000, details={"slot": "3", "workload": "older"})
    fallen = XidRecord(True, {79: 1}, 79, NOW - 41, recent={(int(NOW) - 41, 79): 1})
    found = problem(lost(3, fallen), event_log=EventLogReading((ended, other, older)))
    assert found.kind is ProblemKind.GPU_LOST
    assert found.sentence == (
        "GPU 3 is lost: XID 79, the GPU has fallen off the bus, a fault of the hardware. It ended train of dana."
    )
    assert "reboot" in found.remedy
    assert found.since_wall_s == NOW - 40


def test_a_gpu_lost_without_an_xid_is_still_explained() -> None:
    assert problem(lost()).sentence == "GPU 3 is lost. The GPU no longer answers (gpu is lost)."


def test_a_storm_of_xids_is_one_problem() -> None:
    found = problem(gpu(5, storm(31, 240, 290)))
    assert found.sentence == "GPU 5: XID 31 x 240 in 5 min: page fault of the program, not the hardware."
    assert found.level is HealthLevel.WARNING
    assert "owner" in found.remedy


def test_an_xid_of_the_hardware_is_critical_and_an_old_one_is_over() -> None:
    assert problem(gpu(0, storm(48, 2, 60))).level is HealthLevel.CRITICAL
    assert (
        problems_of(snapshot(gpu(0, XidRecord(True, {48: 1}, 48, NOW - 700, recent={(int(NOW) - 700, 48): 1})))) == ()
    )


@pytest.mark.parametrize(
    ("readings", "kind", "level"),
    [
        ({"ecc_uncorrected_volatile": 2}, ProblemKind.ECC, HealthLevel.CRITICAL),
        ({"recovery_action": 1}, ProblemKind.GPU_FAULT, HealthLevel.CRITICAL),
        ({"temperature_celsius": 86}, ProblemKind.OVERHEATING, HealthLevel.WARNING),
        (
            {"temperature_celsius": 91, "throttle_mask": THERMAL | SLOWDOWN},
            ProblemKind.OVERHEATING,
            HealthLevel.CRITICAL,
        ),
        ({"throttle_mask": SLOWDOWN | BRAKE}, ProblemKind.SLOWED, HealthLevel.WARNING),
    ],
)
def test_a_fault_of_one_gpu_is_one_problem(readings: Mapping[str, int], kind: ProblemKind, level: HealthLevel) -> None:
    found = problem(gpu(2, None, **readings))
    assert (found.kind, found.level, found.gpu_index) == (kind, level, 2)
    assert found.sentence.startswith("GPU 2 ")
    assert found.remedy


def test_nvlinks_are_compared_with_the_other_gpus_of_the_model() -> None:
    gpus = [gpu(index, nvlinks_active=18) for index in range(3)]
    assert problem(*gpus, gpu(3, nvlinks_active=17)).sentence == "GPU 3 has 17 of 18 NVLinks."
    pairs = [gpu(0, nvlinks_active=4), gpu(1, nvlinks_active=4), gpu(2, nvlinks_active=0), gpu(3, nvlinks_active=0)]
    assert problems_of(snapshot(*pairs)) == (), "two GPUs without a bridge are normal"


def test_a_slot_that_is_held_idle_for_long_names_its_holder() -> None:
    found = problem(gpu(0), slots=SlotsReading((held(0, "dana", HELD_IDLE_S + 600),)))
    assert found.sentence == "GPU 0 is held by dana and has not been used for 40 min."
    assert problems_of(snapshot(gpu(0), slots=SlotsReading((held(0, "dana", HELD_IDLE_S - 1),)))) == ()


def test_a_viewer_who_may_not_see_the_holder_does_not() -> None:
    whole = snapshot(gpu(0), slots=SlotsReading((held(0, "dana", HELD_IDLE_S),)))
    (found,) = problems_of(redact(whole, Viewer(False, 1001, "bob")))
    assert "another user" in found.sentence
    assert "dana" not in found.sentence
    own = problems_of(redact(whole, Viewer(False, 1000, "dana")))
    assert "dana" in own[0].sentence


def test_the_ledger_without_space_or_not_writing() -> None:
    low = LedgerState(begun=True, writing=True, disk_free_bytes=200 << 20)
    assert "0.2 GiB" in problem(gpu(), ledger=LedgerReading(low, None)).sentence
    failing = LedgerState(begun=True, detail="disk is full", failures={"full": 1})
    assert "disk is full" in problem(gpu(), ledger=LedgerReading(failing, None)).sentence
    well = LedgerState(begun=True, writing=True, disk_free_bytes=9 << 30)
    assert problems_of(snapshot(gpu(), ledger=LedgerReading(well, None))) == ()


def test_a_failing_source_is_a_problem_and_an_absent_one_is_not() -> None:
    sources = {
        "docker": SourceState("docker", failures={"timeout": 3}, detail="no answer", remedy="restart Docker"),
        "podman": SourceState("podman", absent=True, detail="no socket"),
        "cpu": SourceState("cpu", True, True, last_success_monotonic_s=5000.0, stale_after_s=10),
    }
    (found,) = problems_of(snapshot(gpu(), sources=sources))
    assert (found.sentence, found.remedy) == ("The source docker cannot be read: no answer.", "restart Docker")


def test_an_agent_that_is_late_blames_no_source() -> None:
    """On a loaded machine good readings become old: neither cpu nor the driver is broken."""
    sources = {
        name: SourceState(name, True, True, last_success_monotonic_s=4900.0, stale_after_s=10)
        for name in ("cpu", "nvml")
    }
    (found,) = problems_of(snapshot(gpu(), sources=sources))
    assert found.level is HealthLevel.WARNING
    assert found.sentence == "The agent is late: it has not read these sources in time: cpu, nvml."


def test_alerts_are_merged_and_do_not_repeat_a_problem() -> None:
    same = Alert("a", "GPUCommonsGPULost", "critical", "active", NOW - 30, "lost", {"gpu_uuid": "GPU-3"})
    other = Alert("b", "RoomTooWarm", "critical", "active", NOW - 30, "31 °C")
    silenced = Alert("c", "Silenced", "critical", "suppressed", NOW - 30)
    found = problems_of(snapshot(lost(3), alerts=AlertsReading((same, other, silenced))))
    assert [each.sentence for each in found[1:]] == ["RoomTooWarm: 31 °C"]


def test_the_gravest_comes_first() -> None:
    whole = snapshot(
        gpu(0, storm(31, 9, 60)),
        gpu(1, temperature_celsius=91, throttle_mask=THERMAL),
        lost(3),
        slots=SlotsReading((held(0, "dana", HELD_IDLE_S),)),
    )
    kinds = [each.kind for each in problems_of(whole)]
    assert kinds == [ProblemKind.GPU_LOST, ProblemKind.OVERHEATING, ProblemKind.XID, ProblemKind.HELD_IDLE]


def test_one_sentence_has_what_is_broken_free_idle_and_waiting() -> None:
    free = SlotStatus(Slot("GPU-7", "GPU-7", "7"), 7, "", SlotState.FREE)
    slots = SlotsReading((held(0, "dana", 700), held(1, "emeka", 5), held(2, "bob", None), free))
    whole = snapshot(
        gpu(0), gpu(1, temperature_celsius=91, throttle_mask=THERMAL), gpu(2), lost(3), gpu(7), slots=slots
    )
    summary = summary_of(whole, problems_of(whole))
    assert summary.sentence == "1 GPU lost · 1 overheating · 1 free · 2 held idle · 1 busy"
    assert summary.tone is Tone.BAD
    details = {part.name: part.detail for part in summary.parts}
    assert details["lost"] == "GPU 3"
    assert details["overheating"] == "GPU 1"
    assert details["held_idle"] == "longest dana, 12 min"
    short = snapshot(gpu(1), slots=SlotsReading((held(1, "emeka", 5.4),)))
    assert summary_of(short, ()).parts[1].detail == "longest emeka, 5 s"


def test_programs_in_turns_do_not_wait_but_one_that_has_no_turn_for_seconds_does() -> None:
    reading = DemoNode(gpus=1, processes_a_gpu=2).sharing(0.0)

    def waits(*waited_s: float) -> list[tuple[int, tuple[str, ...]]]:
        clients = tuple(
            reading.clients[0]._replace(name=f"job {at}", wait=WaitReading(WaitReason.DEMAND, seconds, 0, 0, None))
            for at, seconds in enumerate(waited_s)
        )
        node = snapshot(gpu(0), sharing=reading._replace(clients=clients, gpus=()))
        return [(part.count, part.lines) for part in summary_of(node, ()).parts if part.name == "waiting"]

    assert waits(0.1, 1.9) == []
    ((count, (line,)),) = waits(0.1, 7.0)
    assert count == 1
    assert line.startswith("job 1: its turn")


def test_nothing_free_is_said_and_nothing_read_is_not_zero() -> None:
    busy = snapshot(gpu(0), slots=SlotsReading((held(0, "bob", None),)))
    assert summary_of(busy, ()).sentence == "0 free · 1 busy"
    assert summary_of(snapshot(gpu(0)), ()).sentence == "free slots unknown"
    assert summary_of(busy._replace(readings=Readings()), ()).sentence == "no GPU"


def trespass(paused: bool = False, spared: str = "") -> LeasesReading:
    lease = Lease(LeaseRequest(1001, "alice", NOW - 900, id="7", number=7), ("GPU-0",), 1.0, NOW - 800)
    stray = Trespasser("7", "0", 4711, None, "bob", "train.py", paused, spared)
    return LeasesReading(slots={"GPU-0": "0"}, leases=(lease,), trespassers=(stray,))


def test_a_trespasser_is_a_problem_with_what_to_do() -> None:
    slots = SlotsReading((held(0, "alice", None),))
    found = problem(gpu(), slots=slots, leases=trespass())
    assert (found.kind, found.level, found.gpu_uuid) == (ProblemKind.TRESPASSER, HealthLevel.WARNING, "GPU-0")
    assert found.sentence == "GPU 0 is leased to alice, and bob uses it without a lease: train.py (pid 4711)."
    assert "gpucommons run" in found.remedy
    assert "leases.enforce" in found.remedy
    paused = problem(gpu(), slots=slots, leases=trespass(paused=True))
    assert paused.sentence.endswith("; it is paused until the lease ends.")
    spared = problem(gpu(), slots=slots, leases=trespass(spared="it is a client of MPS"))
    assert spared.sentence.endswith("; it is not paused: it is a client of MPS.")
    assert "leases.enforce" not in spared.remedy


def test_the_alert_of_a_trespasser_does_not_repeat_the_problem() -> None:
    alert = Alert("f", "GPUCommonsTrespasser", "warning", "active", NOW, "", {"slot": "0"})
    alerts = AlertsReading((alert,))
    slots = SlotsReading((held(0, "alice", None),))
    assert problem(gpu(), slots=slots, leases=trespass(), alerts=alerts).kind is ProblemKind.TRESPASSER
    assert problem(gpu(), leases=LeasesReading(), alerts=alerts).kind is ProblemKind.ALERT


def test_a_trespasser_is_shown_to_both_users_and_to_no_other() -> None:
    seen = {
        user: len(problems_of(redact(snapshot(gpu(), leases=trespass()), Viewer(False, uid, user))))
        for user, uid in (("alice", 1001), ("bob", 1002), ("carol", 1003))
    }
    assert seen == {"alice": 1, "bob": 1, "carol": 0}


# -- a driver or a GPU that does not answer


def failing(name: str, **changes: object) -> dict[str, SourceState]:
    state = SourceState(name, failures={"driver_not_loaded": 3}, detail="the driver is not loaded")
    return {name: state._replace(**changes)}  # type: ignore[arg-type]


def test_a_driver_that_does_not_answer_is_critical_and_has_a_next_step() -> None:
    node = Snapshot(1, 5000.0, NOW, "node", sources=failing("nvml", remedy="load it with: modprobe nvidia"))
    (only,) = problems_of(node)
    assert (only.kind, only.level) == (ProblemKind.DRIVER, HealthLevel.CRITICAL)
    assert only.sentence == "The NVIDIA driver does not answer: the driver is not loaded."
    assert only.remedy == "Load it with: modprobe nvidia."
    summary = summary_of(node, problems_of(node))
    assert (summary.sentence, summary.tone) == ("driver does not answer", Tone.BAD)


def test_without_a_gpu_a_missing_driver_is_not_a_problem() -> None:
    node = Snapshot(1, 5000.0, NOW, "node", sources=failing("nvml", absent=True, failures={}))
    assert problems_of(node) == ()
    assert summary_of(node, ()).sentence == "no GPU"


def test_gpus_that_the_driver_does_not_list_or_open_are_missing() -> None:
    node = snapshot(gpu(0), gpu(1))
    assert node.readings.gpus is not None
    found = node.readings.gpus._replace(expected=4, unlisted=("0000:3a:00.0",))
    node = node._replace(readings=node.readings._replace(gpus=found))
    places, unopened = problems_of(node)
    assert (places.kind, places.level) == (ProblemKind.GPU_MISSING, HealthLevel.CRITICAL)
    assert places.sentence.startswith("The GPU at 0000:3a:00.0 does not answer")
    assert unopened.sentence == "1 of 4 GPUs cannot be opened by the driver."
    assert summary_of(node, problems_of(node)).sentence.startswith("2 GPUs missing")


def test_a_job_that_holds_more_memory_than_its_shards() -> None:
    def uses(job: str, gib: int) -> ProcessShare:
        place, workload = Place("GPU-0", 0, None), Workload(uid=1000, user="alice", job=job)
        return ProcessShare(
            place, 900, None, Portion(gib << 30, Basis.MEASURED), None, None, None, Reason.NO_OWNER, workload
        )

    def found(large_gib: int, *jobs: MappedJob) -> list[str]:
        processes = (uses("1", large_gib - 10), uses("1", 10), uses("2", 1))
        attribution = Attribution(processes, (), (), (), PidView(PidScope.HOST, ""))
        mapping = JobMappingReading({(0, None): jobs})
        whole = gpu(0, memory_total_bytes=80 << 30)
        problems = problems_of(snapshot(whole, job_mapping=mapping, attribution=attribution))
        assert all(each.kind is ProblemKind.OVER_MEMORY_SHARE for each in problems)
        return [each.sentence for each in problems]

    half, quarter = MappedJob("1", 1000, Fraction(1, 2)), MappedJob("2", 1000, Fraction(1, 4))
    assert found(41, half, quarter) == ["Job 1 uses 41.0 GiB of GPU 0, and its shards are 40.0 GiB."]
    assert not found(40, half, quarter), "as much as its shards"
    assert not found(41, half), "alone it may have the whole GPU"
    assert not found(41, MappedJob("1", 1000)), "a job with whole GPUs has no shards"


def test_a_job_on_a_gpu_that_it_was_not_given() -> None:
    def uses(index: int) -> ProcessShare:
        place, workload = Place(f"GPU-{index}", index, None), Workload(uid=1000, user="alice", job="4711")
        return ProcessShare(place, 900 + index, None, None, None, None, None, Reason.NO_OWNER, workload)

    mapping = JobMappingReading({(0, None): (MappedJob("4711", 1000),), (1, None): (MappedJob("4712", 1001),)})
    on_both = Attribution((uses(0), uses(1)), (), (), (), PidView(PidScope.HOST, ""))
    found = problem(gpu(0), gpu(1), job_mapping=mapping, attribution=on_both)
    assert (found.kind, found.level, found.gpu_index) == (ProblemKind.OUTSIDE_ALLOCATION, HealthLevel.WARNING, 1)
    assert found.sentence == "Job 4711 uses GPU 1, which it was not given (pid 901)."
    on_own = Attribution((uses(0),), (), (), (), PidView(PidScope.HOST, ""))
    assert not problems_of(snapshot(gpu(0), gpu(1), job_mapping=mapping, attribution=on_own))
    assert not problems_of(snapshot(gpu(0), gpu(1), attribution=on_both)), "without Slurm nothing changes"
