"""The users of the lab, by the real attribution and allocations: all of them appear, and amounts add up."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucommons.cli.one_sample import api_document, take_sample
from gpucommons.model.allocations import WHOLE_SHARE, Access, Allocation, AllocationReading, AllocationState
from gpucommons.model.ownership import Attribution, OwnerKind
from gpucommons.model.snapshot import Readings
from gpucommons.model.viewer import Viewer
from gpucommons.rules.privacy import redact
from gpucommons.simulation.day import DAY_S
from gpucommons.simulation.lab_jobs import JOBS
from gpucommons.simulation.lab_people import GROUP_OF, PEOPLE, RUNS
from gpucommons.simulation.scenarios import LOST_FROM_S, LOST_UNTIL_S
from simulation.played_lab import PlayedLab

LAB, FAULTS = PlayedLab("lab"), PlayedLab("faults")
AFTERNOON_S = 0.15 * DAY_S


def attribution_of(readings: Readings) -> Attribution:
    assert readings.attribution is not None
    return readings.attribution


def allocations_of(readings: Readings) -> AllocationReading:
    assert readings.allocations is not None
    return readings.allocations


def by_workload(readings: Readings) -> dict[str, list[Allocation]]:
    found: dict[str, list[Allocation]] = {}
    for each in allocations_of(readings).allocations:
        found.setdefault(each.workload, []).append(each)
    return found


def test_six_people_in_two_groups() -> None:
    assert len(PEOPLE) == 6
    assert sorted(GROUP_OF.values()).count("vision") == 3
    assert len(set(GROUP_OF.values())) == 2
    users = LAB.at(AFTERNOON_S).users
    assert users is not None
    assert sum(users.ssh_sessions.values() if users.ssh_sessions else ()) > 5
    assert {each.user for each in users.slices} == set(GROUP_OF)


def test_every_job_has_an_owner_and_every_kind_of_owner_except_site_rules_occurs() -> None:
    shares = attribution_of(LAB.at(AFTERNOON_S)).processes
    assert {share.pid for share in shares} == {job.key.pid for job in JOBS}
    assert {share.reason for share in shares} == {None}
    kinds = {share.owner.kind for share in shares if share.owner}
    # Site rules are in a file, which the scenario does not have.
    assert kinds == set(OwnerKind) - {OwnerKind.SITE}


def test_every_way_to_get_a_gpu_occurs() -> None:
    reading = allocations_of(LAB.at(AFTERNOON_S))
    assert {each.interface for each in reading.containers} == {"orchestration", "atomic", "api", "other"}
    held = {each.interface for each in reading.allocations if each.share}
    assert held == {"orchestration", "atomic", "api", "other", "docker", "kubernetes", "slurm", "process"}
    assert {each.account.user for each in reading.allocations if each.share} >= set(GROUP_OF)
    assert {each.account.group for each in reading.allocations if each.account.user in GROUP_OF} == {
        "vision",
        "students",
    }


def test_idle_allocations_occur() -> None:
    found = by_workload(LAB.at(AFTERNOON_S))
    (idle,) = found["thesis._.1005"]
    assert (idle.state, idle.active, idle.equivalents) == (AllocationState.RUNNING, False, 1.0)
    (stopped,) = found["sweep-lr"]
    assert (stopped.state, stopped.share, stopped.slot.name) == (AllocationState.HELD, WHOLE_SHARE, "6.1")
    (unused,) = found["annotate"]
    assert (unused.state, unused.memory_bytes, unused.slot.name) == (AllocationState.RUNNING, 0, "7.1")


def test_the_container_with_all_gpus_holds_only_what_it_uses() -> None:
    readings = LAB.at(AFTERNOON_S)
    (unmanaged,) = allocations_of(readings).unmanaged
    assert (unmanaged.name, unmanaged.user, unmanaged.access) == ("focused_curie", "farah", Access.ALL)
    assert [each.slot.name for each in by_workload(readings)["focused_curie"] if each.share] == ["7.0"]


@pytest.mark.parametrize("lab", [LAB, FAULTS], ids=["lab", "faults"])
@given(elapsed_s=st.floats(1, 2 * DAY_S))
@settings(max_examples=10)
def test_amounts_add_up_at_any_time(lab: PlayedLab, elapsed_s: float) -> None:
    readings = lab.at(elapsed_s)
    for account in attribution_of(readings).accounts:
        errors = (account.memory_error_bytes, account.sm_error_millionths, account.power_error_milliwatts)
        assert errors == (0, 0, 0), account
    shares: dict[str, int] = {}
    for each in allocations_of(readings).allocations:
        shares[each.slot.uuid] = shares.get(each.slot.uuid, 0) + each.share
    assert set(shares.values()) <= {0, WHOLE_SHARE}


def test_a_lost_gpu_is_still_held_by_its_owner() -> None:
    before, lost = (by_workload(FAULTS.at(s))["thesis._.1005"] for s in (1.0, LOST_FROM_S + 1))
    assert [each.slot.name for each in before] == ["3"]
    assert [each.slot.uuid for each in lost] == [before[0].slot.uuid]
    assert [each.slot.name for each in by_workload(FAULTS.at(LOST_UNTIL_S + 1))["thesis._.1005"]] == ["3"]


def test_another_user_sees_no_arguments_of_the_labs_programs() -> None:
    """As on a real node: the name that the kernel has of a process; its owner and root see the command line."""
    _, snapshot = take_sample(None, "lab", None)
    seen = redact(snapshot, Viewer(False, uid=1000, user="eva", sees_names=True))
    commands = [job.command for job in JOBS if " " in job.command]
    for shown, expected in ((snapshot, True), (seen, False)):
        text = json.dumps(api_document(shown, "snapshot"))
        assert [command in text for command in commands] == [expected] * len(commands)
    assert {run.program for run in RUNS} >= {"sweep.py (simulated)"}
    assert snapshot.readings.processes is not None
    names = {row.name for row in snapshot.readings.processes.by_pid.values()}
    assert not any(" " in name for name in names), names
