"""`--for` where the client does not end its command: the service ends the lease, and what happens to its programs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpucommons.agent.leases.leasing import send_signal, start_ticks_of
from gpucommons.leases.policy.values import SlotUse
from gpucommons.leases.protocol import RunRequest
from gpucommons.leases.service.limits import LIMIT_GRACE_S, GpuProgram
from gpucommons.leases.service.service import LeaseEnforcement
from gpucommons.model.process_identity import ProcessKey
from leases.random_node import whole
from leases.stepped_service import Inbox, SteppedService

PROGRAM = GpuProgram("GPU-0", 50, ProcessKey(50, 5), 1001, frozenset({"alice"}), "python")
USED = (whole(0, use=SlotUse.USED),)


def over(
    tmp_path: Path, at_limit: str, share: bool = False, enforcement: LeaseEnforcement | None = None
) -> tuple[SteppedService, Inbox]:
    """A service with a lease of 100 s that alice's client has not ended, a moment before the grace is over."""
    world = SteppedService(tmp_path, (whole(0),), at_limit=at_limit, enforcement=enforcement)
    alice = Inbox()
    world.service.open(alice.client(), RunRequest(limit_s=100.0, share=share))
    world.later(100.0 + LIMIT_GRACE_S - 1)
    world.look(slots=USED, programs=(PROGRAM,))
    return world, alice


def test_the_lease_ends_at_its_limit_and_grace_and_the_client_learns_why(tmp_path: Path) -> None:
    world, alice = over(tmp_path, "message")
    assert alice.events() == ["queued", "granted"]
    assert not world.service.reading.trespassers
    world.later(1.0)
    assert alice.last("cancelled")["sentence"] == "ended: its time limit (--for) is over"
    assert (world.service.reading.leases, world.service.reading.counters.expired) == ((), 1)
    world.look(slots=USED, programs=(PROGRAM,))
    (row,) = world.service.reading.trespassers
    assert (row.pid, row.overdue, row.lease_id) == (50, True, "1")
    assert world.signals == []
    world.dead.add(alice.pid)
    world.later(1.0)
    world.look()
    assert world.service.reading.trespassers == ()


def test_a_lease_within_its_limit_goes_on(tmp_path: Path) -> None:
    world = SteppedService(tmp_path, (whole(0), whole(1)), at_limit="signal")
    world.service.open(Inbox().client(), RunRequest())
    world.service.open(Inbox(1002, "bob", 4712).client(), RunRequest(limit_s=1e6))
    world.later(1e5)
    world.look(programs=(PROGRAM,))
    assert len(world.service.reading.leases) == 2
    assert world.signals == []


def test_signal_ends_its_programs_and_no_others(tmp_path: Path) -> None:
    world, alice = over(tmp_path, "signal")
    world.later(1.0)
    stray = PROGRAM._replace(pid=51, key=ProcessKey(51, 5), uid=1002, names=frozenset({"bob"}))
    elsewhere = PROGRAM._replace(pid=52, key=ProcessKey(52, 5), slot_uuid="GPU-1")
    world.look(slots=USED, programs=(PROGRAM, stray, elsewhere))
    assert world.signals == [(PROGRAM.key, signal.SIGTERM), (PROGRAM.key, signal.SIGCONT)]
    # A program that the user starts now is a plain one.
    later = PROGRAM._replace(pid=53, key=ProcessKey(53, 9))
    world.later(29.0)
    world.look(slots=USED, programs=(PROGRAM, later))
    assert len(world.signals) == 2
    world.later(1.0)
    world.look(slots=USED, programs=(PROGRAM, later))
    assert world.signals[2:] == [(PROGRAM.key, signal.SIGKILL)]
    # One that the client starts again is not.
    again = PROGRAM._replace(pid=54, key=ProcessKey(54, 9))
    world.descendants.add((54, alice.pid))
    world.later(1.0)
    world.look(slots=USED, programs=(again, later))
    assert world.signals[3:] == [(again.key, signal.SIGTERM), (again.key, signal.SIGCONT)]


def test_a_program_whose_client_has_ended_is_ended_all_the_same(tmp_path: Path) -> None:
    world, alice = over(tmp_path, "signal")
    world.later(1.0)
    world.look(slots=USED, programs=(PROGRAM,))
    world.dead.add(alice.pid)
    world.later(30.0)
    world.look(slots=USED, programs=(PROGRAM,))
    assert world.signals[-1] == (PROGRAM.key, signal.SIGKILL)


def test_a_container_that_is_labelled_with_the_user_belongs_to_the_lease(tmp_path: Path) -> None:
    world, _ = over(tmp_path, "signal")
    world.later(1.0)
    world.look(slots=USED, programs=(PROGRAM._replace(uid=0),))
    assert [number for _, number in world.signals] == [signal.SIGTERM, signal.SIGCONT]


def test_of_a_shared_lease_only_what_its_client_started_is_ended(tmp_path: Path) -> None:
    world, alice = over(tmp_path, "signal", share=True)
    started = PROGRAM._replace(pid=60, key=ProcessKey(60, 5))
    world.descendants.add((60, alice.pid))
    world.later(1.0)
    world.look(slots=USED, programs=(PROGRAM, started))
    assert world.signals == [(started.key, signal.SIGTERM), (started.key, signal.SIGCONT)]


def test_a_program_of_a_user_that_has_another_lease_on_the_gpu_is_not_ended(tmp_path: Path) -> None:
    world, alice = over(tmp_path, "signal")
    world.later(1.0)
    world.look(slots=(whole(0),), programs=())
    world.service.open(Inbox(alice.uid, alice.user, 4713).client(), RunRequest())
    world.later(1.0)
    world.look(slots=(whole(0),), programs=())
    assert len(world.service.reading.leases) == 1
    world.descendants.add((PROGRAM.pid, alice.pid))
    world.look(slots=USED, programs=(PROGRAM,))
    assert world.signals == []


def test_a_lease_without_programs_is_overdue_while_its_client_may_start_some(tmp_path: Path) -> None:
    world, alice = over(tmp_path, "signal")
    world.later(1.0)
    world.look(slots=(whole(0),), programs=())
    world.descendants.add((PROGRAM.pid, alice.pid))
    world.later(1.0)
    world.look(slots=USED, programs=(PROGRAM,))
    assert [number for _, number in world.signals] == [signal.SIGTERM, signal.SIGCONT]


def test_a_restart_forgets_neither_the_limit_nor_the_programs(tmp_path: Path) -> None:
    world, _ = over(tmp_path, "signal")
    world.service.close()
    world.open()
    world.later(1.0)
    world.look(slots=USED, programs=(PROGRAM,))
    assert [number for _, number in world.signals] == [signal.SIGTERM, signal.SIGCONT]
    world.later(1.0)
    world.service.close()
    world.open()
    later = PROGRAM._replace(pid=53, key=ProcessKey(53, 9))
    world.look(slots=USED, programs=(PROGRAM, later))
    assert {key for key, _ in world.signals} == {PROGRAM.key}
    assert len(world.signals) == 4


def test_programs_that_were_read_before_the_lease_ended_are_not_judged(tmp_path: Path) -> None:
    """One that began since, and one of a lease that began since, are in the next reading."""
    world, alice = over(tmp_path, "signal")
    world.later(1.0)
    world.dead.add(alice.pid)
    world.look(slots=USED, read_s=world.wall_s - 0.5)
    world.look(slots=USED, programs=(PROGRAM,))
    assert [number for _, number in world.signals] == [signal.SIGTERM, signal.SIGCONT]


def test_what_a_process_with_the_pid_of_an_ended_client_starts_is_not_ended(tmp_path: Path) -> None:
    world, alice = over(tmp_path, "signal", share=True)
    world.later(1.0)
    world.dead.add(alice.pid)
    world.descendants.add((PROGRAM.pid, alice.pid))
    world.look(slots=USED, programs=(PROGRAM,))
    assert world.signals == []


def test_why_a_program_could_not_be_ended_is_shown(tmp_path: Path) -> None:
    world, _ = over(tmp_path, "signal")
    world.refusal = "the agent may not end it"
    world.later(1.0)
    world.look(slots=USED, programs=(PROGRAM,))
    assert [each.spared for each in world.service.reading.trespassers] == ["the agent may not end it"]
    world.later(1.0)
    world.look(slots=USED, programs=(PROGRAM,))
    assert [each.spared for each in world.service.reading.trespassers] == ["the agent may not end it"]


def test_a_clock_that_is_set_back_delays_nothing(tmp_path: Path) -> None:
    world, _ = over(tmp_path, "signal")
    world.later(1.0)
    world.wall_s -= 7200.0
    world.service.tick()
    world.look(slots=USED, programs=(PROGRAM,))
    assert [number for _, number in world.signals] == [signal.SIGTERM, signal.SIGCONT]


def test_pause_gives_the_slot_to_the_next_lease_and_pauses_the_program_meanwhile(tmp_path: Path) -> None:
    reports: list[list[int]] = []
    enforcement = LeaseEnforcement(
        lambda found: reports.append([each.pid for each in found]), lambda each: each._replace(paused=True), True
    )
    world, _ = over(tmp_path, "pause", enforcement=enforcement)
    bob = Inbox(1002, "bob", 4712)
    id = world.service.open(bob.client(), RunRequest())
    world.later(1.0)
    assert bob.events() == ["queued", "waiting"]
    world.later(1.0)
    world.look(slots=USED, programs=(PROGRAM,))
    assert bob.events() == ["queued", "waiting", "granted"]
    world.later(1.0)
    stray = PROGRAM._replace(pid=51, key=ProcessKey(51, 5), uid=1003, names=frozenset({"chen"}))
    world.look(slots=USED, programs=(PROGRAM, stray))
    assert reports[-1] == [50], "others are only reported: leases.enforce"
    assert [each.paused for each in world.service.reading.trespassers] == [True, False]
    world.service.finish(id, report=False)
    assert reports[-1] == []
    assert world.signals == []


def test_a_slot_with_other_programs_is_not_given(tmp_path: Path) -> None:
    world, _ = over(tmp_path, "pause")
    bob = Inbox(1002, "bob", 4712)
    world.service.open(bob.client(), RunRequest())
    world.later(1.0)
    stray = PROGRAM._replace(pid=51, key=ProcessKey(51, 5), uid=1003, names=frozenset({"chen"}))
    for _ in range(3):
        world.later(5.0)
        world.look(slots=USED, programs=(PROGRAM, stray))
    assert bob.events() == ["queued", "waiting"]


def test_a_signal_reaches_a_stopped_process_and_never_a_reused_pid() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            os.kill(process.pid, signal.SIGSTOP)
            ticks = start_ticks_of(process.pid)
            assert ticks is not None
            assert send_signal(ProcessKey(process.pid, ticks + 1), signal.SIGKILL) == ""
            assert start_ticks_of(process.pid) == ticks
            assert send_signal(ProcessKey(process.pid, ticks), signal.SIGTERM) == ""
            assert send_signal(ProcessKey(process.pid, ticks), signal.SIGCONT) == ""
            assert process.wait(30) == -signal.SIGTERM
        finally:
            process.kill()
    assert send_signal(ProcessKey(process.pid, ticks), signal.SIGTERM) == "", "it has ended"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_signal_that_is_refused_says_so() -> None:
    code = (
        "import os, signal;"
        "from gpucommons.agent.leases.leasing import send_signal, start_ticks_of;"
        "from gpucommons.model.process_identity import ProcessKey;"
        "os.setuid(65534);"
        "print(send_signal(ProcessKey(1, start_ticks_of(1)), signal.SIGCONT))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "the agent may not end it: Operation not permitted" in found.stdout, found.stderr
