"""The service: leases over restarts, tokens, trespassers, reports, cancelling, and a clock that is set."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from gpucommons.leases.policy.values import LeaseRefused, LeaseUnknown
from gpucommons.leases.protocol import Line, ReserveRequest, ResumeRequest, RunRequest
from gpucommons.leases.service.limits import GpuProgram
from gpucommons.leases.service.record import LeaseRecord
from gpucommons.leases.service.service import LeaseEnforcement
from gpucommons.model.leases import Lease, MpsReading
from gpucommons.model.process_identity import ProcessKey
from leases.random_node import whole
from leases.stepped_service import Inbox, SteppedService


def bobs() -> Inbox:
    return Inbox(1002, "bob", 4712)


@pytest.fixture
def world(tmp_path: Path) -> SteppedService:
    return SteppedService(tmp_path, (whole(0),))


def resumed(world: SteppedService, inbox: Inbox, **changes: str) -> Inbox:
    queued = inbox.last("queued")
    again = Inbox(inbox.uid, inbox.user, inbox.pid)
    token = {"id": queued["id"], "token": queued["token"], **changes}
    world.service.resume(again.client(), ResumeRequest(**token))
    return again


def test_a_lease_survives_a_restart_and_a_forged_token_does_not(world: SteppedService) -> None:
    alice, bob = Inbox(), bobs()
    world.service.open(alice.client(), RunRequest())
    world.service.open(bob.client(), RunRequest())
    assert alice.events() == ["queued", "granted"]
    assert bob.events() == ["queued", "waiting"]
    world.restart()
    with pytest.raises(LeaseUnknown):
        resumed(world, alice, token="0" * 32)
    with pytest.raises(LeaseUnknown):
        # Another user with the right token.
        resumed(world, Inbox(uid=1003, lines=alice.lines))
    assert resumed(world, alice).last("granted")["slots"][0]["uuid"] == "GPU-0"
    with pytest.raises(LeaseRefused, match="has a connection"):
        resumed(world, alice)
    again = resumed(world, bob)
    world.service.finish(alice.last("queued")["id"], report=False)
    assert again.events() == ["waiting", "granted"]


def test_a_lease_whose_client_does_not_come_back_is_held_for_60_s(world: SteppedService) -> None:
    world.service.open(Inbox().client(), RunRequest())
    world.restart()
    bob = bobs()
    world.service.open(bob.client(), RunRequest())
    world.later(59.0)
    assert "granted" not in bob.events()
    world.later(1.0)
    world.look()
    world.later(1.0)
    world.look()
    assert "granted" in bob.events()
    assert world.service.reading.counters.lost == 1


def test_a_client_that_died_while_the_agent_was_away_is_not_waited_for(world: SteppedService) -> None:
    alice, bob = Inbox(), bobs()
    world.service.open(alice.client(), RunRequest())
    world.service.open(bob.client(), RunRequest())
    world.dead.add(alice.pid)
    world.restart()
    again = resumed(world, bob)
    world.later(1.0)
    world.look()
    assert "granted" in again.events()


def test_after_a_reboot_only_reservations_are_left(world: SteppedService) -> None:
    world.service.open(Inbox().client(), RunRequest())
    made = world.service.reserve(1001, "alice", ReserveRequest(1, world.wall_s + 3600, 3600.0))
    world.boot_id = "boot-2"
    world.restart()
    assert world.service.reading.leases == ()
    assert [each.id for each in world.service.reading.reservations] == [made.id]


def test_the_age_and_the_promise_of_a_request_are_on_disk(world: SteppedService, tmp_path: Path) -> None:
    begun_s = world.wall_s
    world.service.open(Inbox().client(), RunRequest(limit_s=1000.0))
    waits = world.service.open(bobs().client(), RunRequest())
    world.later(300.0)
    world.restart()
    queue, _, _ = LeaseRecord(tmp_path / "leases.json", world.boot_id).read()
    assert queue.eligible_s == {waits: begun_s}
    assert queue.promised_s == {waits: begun_s + 1000.0}


def test_the_record_holds_no_token_and_a_damaged_one_is_not_fatal(world: SteppedService, tmp_path: Path) -> None:
    alice = Inbox()
    world.service.open(alice.client(), RunRequest())
    text = (tmp_path / "leases.json").read_text()
    assert json.loads(text)["leases"][0]["slots"] == ["GPU-0"]
    assert alice.last("queued")["token"] not in text
    assert (tmp_path / "leases.json").stat().st_mode & 0o777 == 0o600
    (tmp_path / "leases.json").write_text(text[:-20])
    assert LeaseRecord(tmp_path / "leases.json", "boot-1").read()[0].leases == ()
    (tmp_path / "leases.json").unlink()
    (tmp_path / "leases.json").mkdir()
    world.service.open(bobs().client(), RunRequest())
    world.service.finish(alice.last("queued")["id"], report=False)
    assert not world.service.reading.recorded
    assert len(world.service.reading.leases) == 1, "leases go on without a record"


def test_slots_of_a_client_that_died_are_given_again_after_they_were_read(world: SteppedService) -> None:
    alice, bob = Inbox(), bobs()
    id = world.service.open(alice.client(), RunRequest())
    world.service.open(bob.client(), RunRequest())
    world.service.disconnect(id)
    assert "granted" not in bob.events()
    world.later(1.0)
    world.look()
    assert "granted" in bob.events()


def test_cancelling_is_for_the_owner_and_administrators(world: SteppedService) -> None:
    alice, bob = Inbox(), bobs()
    lease, request = world.service.open(alice.client(), RunRequest()), world.service.open(bob.client(), RunRequest())
    for id in (lease, "99"):
        with pytest.raises(LeaseRefused, match=f"no lease and no request {id} of yours"):
            world.service.cancel(id, 1002, is_admin=False)
    assert world.service.cancel(request, 1002, is_admin=False) == f"request {request} of bob is cancelled"
    assert world.service.cancel(lease, 0, is_admin=True) == f"lease {lease} of alice is cancelled"
    assert bob.last("cancelled")["sentence"] == "cancelled by its user"
    assert alice.last("cancelled")["sentence"] == "cancelled by an administrator"
    reservation = world.service.reserve(1001, "alice", ReserveRequest(1, world.wall_s, 60.0))
    with pytest.raises(LeaseRefused, match="of yours"):
        world.service.unreserve(reservation.id, 1002, is_admin=False)
    world.service.unreserve(reservation.id, 1001, is_admin=False)


def test_no_wait_is_refused_and_leaves_no_trace(world: SteppedService) -> None:
    world.service.open(Inbox().client(), RunRequest())
    with pytest.raises(LeaseRefused, match="no slot is free now: GPU 0 is held by another user; run it without"):
        world.service.open(bobs().client(), RunRequest(wait=False))
    assert world.service.reading.waiting == ()


def test_a_program_of_another_user_is_a_trespasser_unless_the_command_started_it(world: SteppedService) -> None:
    alice = Inbox()
    world.service.open(alice.client(), RunRequest())
    world.later(1.0)
    programs = (
        GpuProgram("GPU-0", 10, ProcessKey(10, 1), 1001, frozenset({"alice"}), "train"),
        GpuProgram("GPU-0", 11, ProcessKey(11, 1), 0, frozenset({"alice"}), "labelled container"),
        GpuProgram("GPU-0", 12, ProcessKey(12, 1), 1002, frozenset({"bob"}), "stray"),
        GpuProgram("GPU-0", 13, ProcessKey(13, 1), 0, frozenset({"root"}), "sudo child"),
        GpuProgram("GPU-1", 14, ProcessKey(14, 1), 1002, frozenset({"bob"}), "elsewhere"),
    )
    world.descendants.add((13, alice.pid))
    world.look(programs=programs)
    assert [(each.pid, each.user, each.slot) for each in world.service.reading.trespassers] == [(12, "bob", "0")]
    world.look()
    assert world.service.reading.trespassers == ()


def test_trespassers_are_reported_with_each_reading_and_forgotten_with_their_lease(tmp_path: Path) -> None:
    reports: list[list[int]] = []
    enforcement = LeaseEnforcement(
        lambda found: reports.append([each.pid for each in found]), lambda each: each._replace(paused=True)
    )
    world = SteppedService(tmp_path, (whole(0),), enforcement=enforcement)
    id = world.service.open(Inbox().client(), RunRequest())
    world.later(1.0)
    stray = GpuProgram("GPU-0", 12, ProcessKey(12, 1), 1002, frozenset({"bob"}), "stray")
    world.look(programs=(stray,))
    world.look(programs=(stray,))
    assert reports[-2:] == [[12], [12]]
    assert [each.paused for each in world.service.reading.trespassers] == [True]
    # Before the next reading: it goes on at once.
    world.service.finish(id, report=False)
    assert reports[-1] == []
    assert world.service.reading.trespassers == ()


def test_what_a_command_started_is_no_trespasser_while_its_client_is_away(world: SteppedService) -> None:
    alice = Inbox()
    world.service.open(alice.client(), RunRequest())
    world.later(1.0)
    world.restart()
    world.descendants.add((13, alice.pid))
    world.look(programs=(GpuProgram("GPU-0", 13, ProcessKey(13, 1), 0, frozenset({"root"}), "sudo child"),))
    assert world.service.reading.trespassers == ()


def test_a_report_waits_until_the_last_interval_is_billed(world: SteppedService) -> None:
    alice = Inbox()
    id = world.service.open(alice.client(), RunRequest())
    world.service.finish(id, report=True)
    world.look(unbilled=frozenset({id}))
    assert world.reports == []
    world.look()
    world.look()
    assert world.reports == [id], "asked for once"
    assert "report" not in alice.events()
    world.service.deliver_report(id, {"job": {"id": "lease-1"}})
    world.service.deliver_report(id, {"job": None})
    assert alice.events().count("report") == 1
    assert alice.last("report")["job"] == {"id": "lease-1"}


def test_a_cancelled_lease_has_a_report_when_its_command_has_ended(world: SteppedService) -> None:
    alice, bob = Inbox(), bobs()
    id = world.service.open(alice.client(), RunRequest())
    waits = world.service.open(bob.client(), RunRequest())
    world.service.cancel(id, alice.uid, False)
    world.service.cancel(waits, bob.uid, False)
    world.look()
    assert world.reports == [], "its command has not ended"
    world.service.finish(id, report=True)
    world.service.finish(waits, report=True)
    world.look()
    assert world.reports == [id], "a request that was cancelled held nothing"
    world.service.deliver_report(id, {"job": None})
    assert alice.events()[-1] == "report"


def test_a_client_that_does_not_wait_for_its_report_gets_none(world: SteppedService) -> None:
    alice = Inbox()
    id = world.service.open(alice.client(), RunRequest())
    world.service.finish(id, report=True)
    world.service.disconnect(id)
    world.look()
    assert world.reports == []
    world.service.deliver_report(id, {"job": None})
    assert "report" not in alice.events()


def test_where_another_system_allocates_requests_are_refused_with_the_reason(world: SteppedService) -> None:
    waits = bobs()
    world.service.open(Inbox().client(), RunRequest())
    world.service.open(waits.client(), RunRequest())
    world.look(off_reason="Slurm allocates the GPUs of this node, so leases are off")
    assert "Slurm" in waits.last("error")["error"]
    with pytest.raises(LeaseRefused, match="Slurm"):
        world.service.open(Inbox().client(), RunRequest())
    assert len(world.service.reading.leases) == 1


def test_a_request_before_the_first_reading_is_checked_with_it(tmp_path: Path) -> None:
    world = SteppedService(tmp_path, (whole(0),))
    world.look(slots=None)
    too_many, fits = Inbox(), bobs()
    world.service.open(too_many.client(), RunRequest(gpus=9))
    world.service.open(fits.client(), RunRequest())
    assert too_many.events() == ["queued", "waiting"]
    world.look()
    assert "9 GPUs requested" in too_many.last("error")["error"]
    assert "granted" in fits.events()


def test_a_clock_that_is_set_changes_no_wait(world: SteppedService) -> None:
    world.service.open(Inbox().client(), RunRequest())
    world.later(10.0)
    world.wall_s += 86_400.0
    world.later(1.0)
    (lease,) = world.service.reading.leases
    assert world.wall_s - lease.since_s == pytest.approx(11.0)


def test_the_room_that_parking_makes_is_the_expected_start(world: SteppedService) -> None:
    bob = bobs()
    world.service.open(Inbox().client(), RunRequest())
    world.service.open(bob.client(updates=True), RunRequest())
    assert bob.last("waiting")["expected_s"] is None, "no lease has ended yet"
    world.look(rooms_s={bob.last("queued")["id"]: world.wall_s + 90})
    assert bob.last("waiting")["expected_s"] == 90
    assert world.service.reading.waiting[0][1].expected_start_s == world.wall_s + 90
    world.look()
    assert bob.last("waiting")["expected_s"] is None


def test_other_users_are_named_only_to_viewers_that_see_names(world: SteppedService) -> None:
    bob, root = bobs(), Inbox(uid=0, user="root", sees_all=True)
    world.service.open(Inbox().client(), RunRequest())
    world.service.open(bob.client(), RunRequest())
    world.service.open(root.client(), RunRequest())
    assert bob.last("waiting")["sentence"] == "GPU 0 is held by another user"
    assert root.last("waiting")["sentence"] == "GPU 0 is held by alice"


def test_a_reservation_reports_slots_that_are_held_beyond_its_start(world: SteppedService) -> None:
    request = ReserveRequest(1, world.wall_s + 60, 3600)
    world.service.open(Inbox().client(), RunRequest())
    made = world.service.reserve(1002, "bob", request)
    (held,) = world.service.find_held_beyond(made)
    assert held.sentence == "GPU 0 is held by alice"
    assert world.service.reading.held_reservations == {}, "it is not in force yet"
    world.later(61.0)
    assert world.service.reading.held_reservations == {made.id: (held,)}
    assert world.service.find_held_beyond(replace(made, user="alice")) == (), "one's own lease is not in the way"


def test_a_lease_that_ends_before_a_reservation_does_not_hold_it_up(world: SteppedService) -> None:
    world.service.open(Inbox().client(), RunRequest(limit_s=30))
    made = world.service.reserve(1002, "bob", ReserveRequest(1, world.wall_s + 60, 3600))
    assert world.service.find_held_beyond(made) == ()


class Daemons:
    """MPS as the service sees it: one state for the daemons of all leases."""

    mode = "per_user"

    def __init__(self) -> None:
        self.running = False
        self.why_not = ""
        self.served: list[list[str]] = []

    def obstacle(self, uid: int) -> str:
        return "" if uid == 1001 else "it needs root"

    def serve(self, leases: Iterable[Lease]) -> None:
        self.served.append([lease.request.id for lease in leases if lease.request.mps])

    def failure(self, lease: Lease) -> str:
        return self.why_not

    def terms(self, lease: Lease) -> Line | None:
        return {"pipe_directory": "/p"} if self.running else None

    def reading(self) -> MpsReading:
        return MpsReading("per_user")


def test_a_client_gets_its_lease_when_the_daemon_runs_also_after_a_restart(tmp_path: Path) -> None:
    daemons, alice = Daemons(), Inbox()
    world = SteppedService(tmp_path, (whole(0),), mps=daemons)
    id = world.service.open(alice.client(), RunRequest(share=True, sm_percent=50))
    assert alice.events() == ["queued"]
    assert daemons.served[-1] == [id]
    daemons.running = True
    world.later(1.0)
    world.look()
    assert alice.last("granted")["mps"] == {"pipe_directory": "/p"}

    daemons.running = False
    world.restart()
    again = resumed(world, alice)
    daemons.why_not = "no device"
    world.look()
    assert again.events() == [], "its command may run: the lease is not ended"
    daemons.running = True
    world.look()
    assert again.events() == ["granted"]
    assert len(world.service.reading.leases) == 1


def test_a_lease_whose_daemon_does_not_start_is_refused(tmp_path: Path) -> None:
    daemons, alice = Daemons(), Inbox()
    world = SteppedService(tmp_path, (whole(0),), mps=daemons)
    world.service.open(alice.client(), RunRequest(share=True))
    daemons.why_not = "no device"
    world.look()
    assert alice.last("error")["error"].startswith("MPS could not be started for the lease: no device")
    assert daemons.served[-1] == []
    assert world.service.reading.leases == ()


def test_where_mps_cannot_serve_a_user_only_limits_are_refused(tmp_path: Path) -> None:
    world = SteppedService(tmp_path, (whole(0),), mps=Daemons())
    bob = bobs()
    with pytest.raises(LeaseRefused, match="--sm 50 needs MPS: it needs root"):
        world.service.open(bob.client(), RunRequest(share=True, sm_percent=50))
    with pytest.raises(LeaseRefused, match="--sm 50 needs --share"):
        world.service.open(bob.client(), RunRequest(sm_percent=50))
    world.service.open(bob.client(), RunRequest(share=True))
    assert "mps" not in bob.last("granted")
    world.service.open(Inbox().client(), RunRequest())
    assert not any(lease.request.mps for lease in world.service.reading.leases)
