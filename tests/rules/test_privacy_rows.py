"""Each kind of row that has a user: its user sees it, another user and a peer without a name do not.

Rows of which the user is not known are hidden from a peer that is not identified, too.
"""

import pytest

from demo_node import DemoNode
from gpucommons.model.accounts import AccountsReading, Billed, HeldKey, MonthKey, OwnerKey
from gpucommons.model.allocations import (
    Access,
    Account,
    AllocationReading,
    SlotsReading,
    SlotState,
    SlotStatus,
    TrackedContainer,
    UnmanagedContainer,
)
from gpucommons.model.fleet import FleetSlot, FleetState, FleetView
from gpucommons.model.gpu import XidProgram, XidProgramsReading
from gpucommons.model.idle import IdleMessage, IdleReading, IdleStep
from gpucommons.model.leases import (
    Lease,
    LeaseQuotaUse,
    LeaseRequest,
    LeasesReading,
    Reservation,
    SlotBlocker,
    Trespasser,
)
from gpucommons.model.process_identity import ProcessKey, ProcessRow, ProcessTable
from gpucommons.model.sharing import ArrivalReading, ParkedFor, ParkedReading, ParkEvent, ParkingReading, Turn
from gpucommons.model.snapshot import Readings
from gpucommons.model.viewer import SEES_ALL, Viewer
from gpucommons.rules.privacy import (
    Privacy,
    find_fleet_accounts_hidden,
    find_fleet_hidden,
    redact,
    redact_fleet,
    redact_leases,
    redact_sharing,
    redact_timeline,
)
from played import snapshot_of

BOB, UNIDENTIFIED = Viewer(False, 1001, "bob"), Viewer(False)
LOCAL_BOB = BOB._replace(sees_names=True)
UIDS = {"alice": 1000, "bob": 1001, "": None}
SHARING = DemoNode().sharing(0.0)


def seen_by(viewer: Viewer, readings: Readings) -> Readings:
    return redact(snapshot_of(readings), viewer).readings


# Sharing


def parking() -> ParkingReading:
    made_for = ParkedFor("SECRET", "alice", 1000, 7)
    programs = [
        ParkedReading(user, user, user, uid, "parked", "GPU", (4,), 1, 1, 0.0, "idle") for user, uid in UIDS.items()
    ]
    return ParkingReading(
        1800.0,
        False,
        "",
        tuple(program._replace(made_for=made_for) for program in programs),
        tuple(ParkEvent(user, "parked", 1.0, "", "", user, uid, "GPU", 1, 1.0, "") for user, uid in UIDS.items()),
        arrivals=tuple(
            ArrivalReading(user, "", user, uid, 7, "GPU", False, 1.0, 1.0, (made_for, made_for._replace(uid=uid)))
            for user, uid in UIDS.items()
        ),
    )


def test_what_was_parked_and_for_whom() -> None:
    sharing = SHARING._replace(parking=parking())
    seen, unidentified = (redact_sharing(sharing, viewer).parking for viewer in (BOB, UNIDENTIFIED))
    assert seen is not None
    assert unidentified is not None
    assert [program.user for program in seen.programs] == ["others", "bob", "others"]
    assert [program.pids for program in seen.programs] == [(), (4,), ()]
    assert {program.made_for for program in seen.programs} == {ParkedFor("", "others", None, 7)}
    assert [event.user for event in seen.events] == ["bob"]
    assert [arrival.user for arrival in seen.arrivals] == ["bob"]
    assert [other.name for other in seen.arrivals[0].parked] == ["", "SECRET"]
    assert {program.user for program in unidentified.programs} == {"others"}
    assert (unidentified.events, unidentified.arrivals) == ((), ())
    assert "SECRET" not in str(unidentified)


def test_a_local_user_sees_the_names_of_turns() -> None:
    timeline = {"GPU": (Turn("1.1", "1", "alice · train.py", 1000, 0.0), Turn("2.1", "2", "x", 1001, 0.0))}
    for viewer in (SEES_ALL, LOCAL_BOB):
        assert redact_timeline(timeline, viewer) == timeline
        assert redact_sharing(SHARING, viewer) == SHARING
    other, own = redact_timeline(timeline, BOB)["GPU"]
    assert "alice" not in str(other)
    assert own == timeline["GPU"][1]


def test_a_client_that_is_not_in_the_list_has_a_pseudonym_too() -> None:
    gpu = SHARING.gpus[0]
    (seen, *_) = redact_sharing(SHARING._replace(gpus=(gpu,), clients=()), BOB).gpus
    assert len(seen.running) == len(gpu.running) > 0
    assert all(id.startswith("other-") for id in seen.running)


# Leases


def test_processes_trespassers_reservations_quotas_and_blockers() -> None:
    users = ("alice", "bob")
    quota = (LeaseQuotaUse("x", 1.0, 0.0, None, None),)
    reading = LeasesReading(
        trespassers=tuple(Trespasser("other", "0", 1, None, user, "x") for user in users),
        leases=tuple(Lease(LeaseRequest(UIDS[user] or 0, user, 0.0, id=user), (), 1.0, 0.0) for user in users),
        clients={user: ProcessKey(n, n) for n, user in enumerate(users)},
        no_shows=tuple(Reservation(user, UIDS[user] or 0, user, 1, 0.0, 1.0) for user in users),
        held_reservations={"r": (SlotBlocker("0", users),)},
        quotas=dict.fromkeys((*users, "*"), quota),
    )
    seen, unidentified = (redact_leases(reading, viewer) for viewer in (BOB, UNIDENTIFIED))
    assert [trespasser.user for trespasser in seen.trespassers] == ["bob"]
    assert [reservation.user for reservation in seen.no_shows] == ["bob"]
    assert [blocker.users for blocker in seen.held_reservations["r"]] == [("bob",)]
    assert seen.quotas.keys() == {"bob", "*"}
    assert seen.clients.keys() == {"bob"}
    assert (unidentified.trespassers, unidentified.no_shows, dict(unidentified.clients)) == ((), (), {})
    assert unidentified.quotas.keys() == {"*"}


# The fleet


def test_the_holders_of_the_slots_of_a_fleet() -> None:
    slot = FleetSlot("node", "0", "GPU", "GPU", 0, "H100", "", FleetState.HELD_IDLE, ("alice", "bob", "cid"))
    view = FleetView(0.0, (), (slot,))
    for viewer in (SEES_ALL, LOCAL_BOB):
        assert redact_fleet(view, viewer) == view
        assert find_fleet_hidden(viewer) is None
        assert find_fleet_accounts_hidden(viewer) is None
    (seen,), (unidentified,) = (redact_fleet(view, viewer).slots for viewer in (BOB, UNIDENTIFIED))
    assert (seen.holders, seen.hidden_holders) == (("bob",), 2)
    assert (unidentified.holders, unidentified.hidden_holders) == ((), 3)


@pytest.mark.parametrize("viewer", [BOB, UNIDENTIFIED])
def test_what_is_hidden_of_a_fleet_is_said(viewer: Viewer) -> None:
    for hidden, section in ((find_fleet_hidden(viewer), "slots"), (find_fleet_accounts_hidden(viewer), "accounts")):
        assert hidden is not None
        assert hidden.sections == (section,)
        assert ("does not identify you" in hidden.sentence) is (viewer is UNIDENTIFIED)


# The node


def test_programs_that_an_xid_hit() -> None:
    programs = tuple(
        XidProgram(n, "GPU", 0, 31, 0.0, n, "x", user, uid, True) for n, (user, uid) in enumerate(UIDS.items())
    )
    seen, unidentified = (
        seen_by(viewer, Readings(xid_programs=XidProgramsReading(programs))).xid_programs
        for viewer in (BOB, UNIDENTIFIED)
    )
    assert seen == XidProgramsReading((programs[1],), (("GPU", 31),) * 2)
    assert unidentified == XidProgramsReading((), (("GPU", 31),) * 3)


def test_a_local_user_sees_the_processes_on_gpus_of_all_users() -> None:
    attribution = DemoNode().attribution(0.0)
    keys = [share.key for share in attribution.processes if share.key is not None]
    elsewhere = ProcessKey(7, 7)
    table = ProcessTable({key.pid: ProcessRow(key, "x", 1.5, 2**20) for key in (*keys, elsewhere)}, ())
    seen = seen_by(LOCAL_BOB, Readings(attribution=attribution, processes=table)).processes
    assert seen is not None
    assert seen.by_pid.keys() == {key.pid for key in keys} != set()


def test_containers_and_the_holders_of_slots() -> None:
    users = ("alice", "bob")
    holder = DemoNode().allocations().allocations[0]
    holders = tuple(holder._replace(account=Account("user", user, user=user)) for user in ("alice", "bob", "cid"))
    readings = Readings(
        allocations=AllocationReading(
            (),
            (),
            tuple(TrackedContainer(user, user, user, "", True, True) for user in users),
            tuple(UnmanagedContainer(user, user, 1, Access.ALL, True) for user in users),
        ),
        slots=SlotsReading((SlotStatus(holder.slot, 0, "", SlotState.BUSY, holders=holders),)),
    )
    seen, unidentified = (seen_by(viewer, readings) for viewer in (BOB, UNIDENTIFIED))
    assert seen.allocations is not None
    assert [container.user for container in seen.allocations.containers] == ["bob"]
    assert [container.user for container in seen.allocations.unmanaged] == ["bob"]
    assert unidentified.allocations is None
    assert seen.slots is not None
    assert unidentified.slots is not None
    assert [(each.holders, each.hidden_holders) for each in (*seen.slots.slots, *unidentified.slots.slots)] == [
        ((holders[1],), 2),
        ((), 3),
    ]


def test_what_is_held_today_and_billed_in_a_month() -> None:
    users = ("alice", "bob")
    accounts = AccountsReading(
        held_today_ns={HeldKey(OwnerKey("user", user, ""), user, "GPU"): 1 for user in users},
        months={MonthKey("2026-11", user, ""): Billed() for user in users},
    )
    seen = seen_by(BOB, Readings(accounts=accounts)).accounts
    assert seen is not None
    assert [key.account for key in seen.held_today_ns] == ["bob"]
    assert [key.user for key in seen.months] == ["bob"]


def test_messages_of_a_user_without_a_name() -> None:
    messages = tuple(IdleMessage(user, user, 0.0, IdleStep.NOTIFY, "", "", 0.0) for user in ("alice", "bob"))
    reading = Readings(idle=IdleReading(1.0, "", messages=messages))
    for viewer in (BOB, LOCAL_BOB):
        idle = seen_by(viewer, reading).idle
        assert idle is not None
        assert [message.user for message in idle.messages] == ["bob"]
    for viewer in (UNIDENTIFIED, UNIDENTIFIED._replace(sees_names=True)):
        idle = seen_by(viewer, reading).idle
        assert idle is not None
        assert idle.messages == ()


# Listeners


@pytest.mark.parametrize(
    ("privacy", "identifies", "metrics_open"),
    [
        (Privacy(unix=True), True, False),
        (Privacy("own", unix=True), True, False),
        (Privacy("all", unix=True), False, None),
        (Privacy(), False, True),
        (Privacy("own"), False, False),
    ],
)
def test_where_peers_are_identified_and_metrics_are_open(
    privacy: Privacy, identifies: bool, metrics_open: bool | None
) -> None:
    assert privacy.identifies_peers is identifies
    viewer = privacy.viewer(1001, "bob", authenticated=False)
    assert viewer.sees_all is (metrics_open is None)
    if metrics_open is not None:
        assert viewer.metrics_open is metrics_open
