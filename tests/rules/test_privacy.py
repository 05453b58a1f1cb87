"""A viewer without rights sees the node and their own rows: the name of another owner appears nowhere."""

import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from demo_node import DemoNode
from gpucommons.model.accounts import AccountsReading, HeldKey, HoldingQuota, LedgerReading, LedgerState, PeriodAccounts
from gpucommons.model.allocations import (
    AllocationReading,
    SlotsReading,
    SlotStatus,
)
from gpucommons.model.events import Alert, AlertsReading, Event, EventLogReading
from gpucommons.model.gpu import XidProgramsReading
from gpucommons.model.idle import IdleMessage, IdleReading
from gpucommons.model.leases import (
    Lease,
    LeaseRequest,
    LeasesReading,
    LeaseWait,
    MpsDaemonReading,
    MpsEvent,
    MpsReading,
    Reservation,
    WaitCause,
)
from gpucommons.model.ownership import Attribution, OwnerShare
from gpucommons.model.problems import ProblemKind
from gpucommons.model.process_identity import CommandLineReading, ProcessKey, ProcessRow, ProcessTable
from gpucommons.model.sharing import (
    ArrivalReading,
    ClientSharing,
    GpuSharing,
    LeftAlone,
    ParkedFor,
    ParkedReading,
    ParkingReading,
    SharingReading,
    Turn,
)
from gpucommons.model.snapshot import Readings
from gpucommons.model.viewer import SEES_ALL, Viewer
from gpucommons.rules import privacy
from gpucommons.rules.privacy import SECTIONS, Privacy, redact, redact_leases
from gpucommons.rules.problems import problems_of
from played import Played, snapshot_of

NODE = DemoNode(gpus=8, processes_a_gpu=4)
BOB = Viewer(False, 1001, "bob")
LOCAL_BOB = Viewer(False, 1001, "bob", sees_names=True)
UNIDENTIFIED = Viewer(False)
OTHERS = ("alice", "chen", "dana", "emeka", "farah")
PATHS = (
    "snapshot",
    "gpus",
    "who?by=user",
    "who?by=pod",
    "who?by=container",
    "allocations",
    "slots",
    "turns",
    "queue",
    "messages",
    "accounts",
    "events?limit=1000",
)

PUBLIC = {"cpu", "memory", "pressure", "gpus", "agent"}
FILTERED = {
    *("attribution", "allocations", "slots", "ledger", "sharing", "leases", "idle", "accounts", "event_log", "alerts"),
    "processes",
    "command_lines",
    "xid_programs",
}
HIDDEN = {
    "kernel_log",
    "device_plugin",
    "job_hosts",
    "node_faults",
    "docker",
    "podman",
    "container_usage",
    "pods",
    "pod_devices",
    "job_mapping",
    "allocation_ratio",
    "ds01",
    "users",
    "events",
    "kernel",
    "filesystems",
    "hardware",
    "text_files",
    "process_contexts",
}


class _Secret:
    """Stands for the value of a reading that privacy does not know."""


def test_every_reading_is_public_filtered_or_hidden() -> None:
    """A new reading fails here until it is classified; until then it is hidden."""
    names = set(Readings._fields)
    assert names == PUBLIC | FILTERED | HIDDEN
    secrets: Any = {name: _Secret() for name in names - FILTERED}
    seen = redact(snapshot_of(Readings(**secrets)), BOB).readings
    assert {name for name in names if getattr(seen, name) is not None} == PUBLIC
    seen = redact(snapshot_of(Readings(**secrets)), LOCAL_BOB).readings
    assert {name for name in names if getattr(seen, name) is not None} == PUBLIC


def test_a_reading_that_privacy_does_not_name_is_hidden() -> None:
    class WiderReadings(Readings):
        diary = "alice"

    seen = redact(snapshot_of(WiderReadings()), BOB).readings
    assert getattr(seen, "diary", None) is None


def test_privacy_is_applied_in_one_place() -> None:
    source = Path(privacy.__file__).parents[1]
    calls = [path for path in source.rglob("*.py") if re.search(r"(?<!def )\bredact(_timeline)?\(", path.read_text())]
    assert [str(path.relative_to(source)) for path in calls] == ["faces/documents/view.py"]


# The fields of each value that a filter copies or rewrites. Before a field is added here, decide in rules/privacy.py
# what a viewer that does not see all gets for it.
FILTERED_FIELDS: Mapping[type, str] = {
    Attribution: "processes owners unattributed accounts view",
    ProcessTable: "by_pid busiest trees",
    ProcessRow: "key name cpu_seconds rss_bytes parent_pid state",
    CommandLineReading: "by_key",
    OwnerShare: "gpu_uuid gpu_index owner processes memory sm power",
    SharingReading: (
        "on mode fixed_quantum_s gpus clients departed messages disconnects refusals handoff_seconds "
        "window_s debug_labels connections share_programs left_alone parking park_seconds wake_seconds pauser"
    ),
    ParkingReading: (
        "idle_after_s eager unavailable programs events parks wakes refusals expected_rooms "
        "arrivals arrivals_held arrivals_waited_s kept"
    ),
    ParkedFor: "name user uid bytes was_idle",
    ArrivalReading: "key name user uid pid gpu_uuid is_held since_wall_s waited_s parked why",
    ParkedReading: (
        "key name user uid stage gpu_uuid pids gpu_bytes host_bytes since_wall_s cause waits rate_bytes_s remaining_s "
        "comes_after ancestors made_for"
    ),
    GpuSharing: (
        "uuid index present running request_queue wait_queue running_memory_bytes "
        "running_managed_bytes running_managed_peak_bytes total_memory_bytes total_memory_measured "
        "safe_limit_bytes overloaded way way_reason quantum_left_s busy_seconds drop_lock wait_for_mem "
        "mem_available wait_seconds turn_seconds drain_seconds slot gain_ratio coarse"
    ),
    ClientSharing: (
        "client_id pod namespace gpu_uuid gpu_index protocol_version pid uid gid standing revoked "
        "pending_drop turn_s turns wait allocated_bytes allocated_peak_bytes nvml_bytes "
        "overhead_bytes need_bytes memory_quota_bytes memory_quota_source core_quota_percent "
        "core_quota_effective_percent core_quota_source window_usage_s window_limit_s throttled debt_s "
        "billed_s demand_ratio over_claimed name program processes held_up "
        "sharing_class class_source holds_back"
    ),
    Turn: "id client_id label uid start_wall_s end_wall_s",
    LeasesReading: "off_reason slots leases waiting reservations trespassers no_shows counters recorded clients mps "
    "ready_s held_reservations quotas",
    Lease: "request slots gpus since_s",
    LeaseRequest: (
        "uid user arrived_s gpus memory_bytes share limit_s name mps sm_percent id number sharing_class model slot "
        "whole program"
    ),
    MpsReading: "mode unavailable daemons events starts failures deaths",
    LeaseWait: "position cause start_s detail is_guess room_s blockers",
    Reservation: "id uid user gpus from_s until_s slots used_s",
    IdleReading: "after_s action idle_holders steps messages channels events recorded",
    IdleMessage: "id user wall_s step text holder notified_s over",
    AllocationReading: "slots allocations containers unmanaged complete",
    SlotsReading: "slots",
    SlotStatus: (
        "slot gpu_index profile state why holders hidden_holders since_wall_s idle_s memory_total_bytes "
        "memory_free_bytes"
    ),
    LedgerReading: "ledger totals quotas event_log_writing hidden_over_quota",
    AccountsReading: "by_period held_today_ns months prices",
    PeriodAccounts: "by since_s until_s rows slot_time gap_ns charges prices",
    HeldKey: "owner account gpu_uuid",
    XidProgramsReading: "programs hidden",
    EventLogReading: "events",
    Event: "wall_s type user source details id",
    AlertsReading: "alerts",
    Alert: "fingerprint name severity state starts_wall_s summary labels",
}


@pytest.mark.parametrize("kind", FILTERED_FIELDS, ids=lambda kind: kind.__name__)
def test_every_field_of_a_filtered_value_is_known(kind: Any) -> None:
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else list(kind._fields)
    assert names == FILTERED_FIELDS[kind].split()


def all_text(played: Played, viewer: Viewer) -> str:
    return "\n".join(json.dumps(played.get(path, viewer)) for path in PATHS)


def test_a_viewer_that_sees_all_sees_every_name() -> None:
    text = all_text(Played(NODE).play(120), SEES_ALL)
    for name in ("bob", *OTHERS):
        assert name in text


def test_no_other_name_is_visible() -> None:
    played = Played(NODE).play(120)
    text = all_text(played, BOB)
    assert "bob" in text
    for secret in (*OTHERS, "30000", "a0", '"uid": 1000'):
        assert f'"{secret}' not in text, secret
    unidentified = all_text(played, UNIDENTIFIED)
    for name in ("bob", *OTHERS):
        assert name not in unidentified


def test_a_local_user_sees_names_and_no_arguments() -> None:
    played = Played(NODE).play(120)
    text = all_text(played, LOCAL_BOB)
    for name in ("bob", *OTHERS):
        assert f'"{name}' in text, name
    who, everything = (played.get("who", viewer)["who"] for viewer in (LOCAL_BOB, SEES_ALL))
    assert who["processes"].keys() == everything["processes"].keys()
    assert who["owners"] == everything["owners"]
    messages = played.get("messages", LOCAL_BOB)
    assert {message["user"] for message in messages["messages"].values()} <= {"bob"}
    assert messages["hidden"] == {"sections": ["messages"], "sentence": "hidden: you see your own"}


def test_a_local_user_sees_the_program_of_a_lease_and_not_the_name_that_its_user_typed() -> None:
    def request(uid: int, user: str, name: str, program: str) -> LeaseRequest:
        return LeaseRequest(uid, user, 0.0, name=name, program=program, id=str(uid))

    own, other, unnamed = (
        request(1001, "bob", "my SECRET", "train.py"),
        request(1000, "alice", "SECRET project", "train.py"),
        request(1002, "chen", "SECRET", ""),
    )
    reading = LeasesReading(
        leases=(Lease(own, ("a",), 1.0, 0.0), Lease(other, ("b",), 1.0, 0.0)),
        waiting=((unnamed, LeaseWait(1, WaitCause.BUSY)),),
    )
    seen = redact_leases(reading, LOCAL_BOB)
    assert [lease.request.name for lease in seen.leases] == ["my SECRET", "train.py"]
    assert [(each.user, each.name) for each, _ in seen.waiting] == [("chen", "")]
    assert redact_leases(reading, SEES_ALL) == reading


def test_a_local_user_sees_no_sentence_of_another_users_event() -> None:
    """It may hold the address of a message that was not delivered, or a line of a log."""
    details = {"slot": "0", "sentence": "SECRET"}
    log = EventLogReading(
        tuple(Event(0.0, "idle.message", user, details=details, id=user) for user in ("alice", "bob", ""))
    )
    seen = redact(snapshot_of(Readings(event_log=log)), LOCAL_BOB).readings.event_log
    assert seen is not None
    assert [event.details.get("sentence") for event in seen.events] == [None, "SECRET", "SECRET"]


def test_a_local_user_sees_own_command_lines_only() -> None:
    attribution = NODE.attribution(0.0)
    keys = {share.workload.uid: share.key for share in attribution.processes if share.key is not None}
    lines = CommandLineReading({key: ("python", f"secret-of-{uid}") for uid, key in keys.items()})
    seen = redact(snapshot_of(Readings(attribution=attribution, command_lines=lines)), LOCAL_BOB).readings
    assert seen.command_lines == CommandLineReading({keys[1001]: ("python", "secret-of-1001")})
    unidentified = Viewer(False, sees_names=True)
    seen = redact(snapshot_of(Readings(attribution=attribution, command_lines=lines)), unidentified).readings
    assert seen.command_lines == CommandLineReading({})


@pytest.mark.parametrize("path", PATHS)
def test_a_document_says_what_it_hides(path: str) -> None:
    played = Played(NODE).play(3)
    assert played.get(path)["hidden"] is None
    assert played.get(path, BOB)["hidden"] == {"sections": list(SECTIONS), "sentence": "hidden: you see your own"}
    unidentified = played.get(path, UNIDENTIFIED)["hidden"]
    assert unidentified["sections"] == list(SECTIONS)
    assert unidentified["sentence"].startswith("hidden: you see your own, and this connection does not identify you")


@pytest.mark.parametrize("section", ["accounts", "allocations"])
def test_a_hidden_section_is_null_and_never_zero(section: str) -> None:
    found = Played(NODE).play(3).get(section, UNIDENTIFIED)
    assert found[section] is None
    assert section in found["hidden"]["sections"]


def test_a_section_without_a_reading_is_missing_and_not_hidden() -> None:
    played = Played()
    played.show(snapshot_of(Readings()))
    assert played.get("snapshot", BOB)["hidden"]["sections"] == []


def test_the_node_still_adds_up() -> None:
    played = Played(NODE).play(3)
    who, gpus = played.get("who", BOB)["who"], played.get("gpus", BOB)["gpus"]["by_uuid"]
    assert {"user/1001", "user/others"} <= set(who["owners"])
    assert {row["uid"] for row in who["processes"].values()} == {1001}
    for uuid, gpu in gpus.items():
        shares = [owner["by_gpu"][uuid] for owner in who["owners"].values() if uuid in owner["by_gpu"]]
        memory = sum(part["memory_bytes"] for part in shares)
        rest = sum(part["memory_bytes"] or 0 for part in who["unattributed"].get(uuid, {}).values())
        assert memory + rest == gpu["memory_used_bytes"]


def test_own_rows_are_complete() -> None:
    played = Played(NODE).play(3)
    everything, own = played.get("snapshot"), played.get("snapshot", BOB)
    for key, row in own["who"]["processes"].items():
        # What limits a program may name other users.
        assert {**row, "limit": None} == {**everything["who"]["processes"][key], "limit": None}
    assert own["accounts"]["today"]["users"] == {"bob": everything["accounts"]["today"]["users"]["bob"]}
    assert own["accounts"]["today"]["total"] == own["accounts"]["today"]["users"]["bob"]
    everything_held, held = (played.get("allocations", viewer)["allocations"] for viewer in (SEES_ALL, BOB))
    assert held["slots"] == everything_held["slots"]
    assert held["held"] == {key: row for key, row in everything_held["held"].items() if row["user"] == "bob"} != {}
    mine = {id: client for id, client in everything["turns"]["clients"].items() if client["uid"] == 1001}
    assert mine
    assert {id: own["turns"]["clients"][id] for id in mine} == mine


def test_of_the_processes_on_the_host_only_those_on_gpus_of_the_viewer_are_visible() -> None:
    attribution = NODE.attribution(0.0)
    keys = {share.workload.uid: share.key for share in attribution.processes if share.key is not None}
    mine, other, elsewhere = keys[1001], keys[1000], ProcessKey(7, 7)
    assert mine is not None
    assert other is not None
    table = ProcessTable({key.pid: ProcessRow(key, "x", 1.5, 2**20) for key in (mine, other, elsewhere)}, (mine, other))
    lines = CommandLineReading({key: ("python", str(key.pid)) for key in (mine, other, elsewhere)})
    snapshot = snapshot_of(Readings(attribution=attribution, processes=table, command_lines=lines))
    seen = redact(snapshot, BOB).readings
    assert seen.processes == ProcessTable({mine.pid: table.by_pid[mine.pid]}, ())
    assert seen.command_lines == CommandLineReading({mine: ("python", str(mine.pid))})
    reused = ProcessTable({mine.pid: table.by_pid[mine.pid]._replace(key=ProcessKey(mine.pid, 99))}, ())
    seen = redact(snapshot_of(Readings(attribution=attribution, processes=reused)), BOB).readings
    assert seen.processes == ProcessTable({}, ()), "another process has its pid now"


def test_programs_of_others_have_no_name_and_no_pid() -> None:
    reading = NODE.sharing(0.0)
    own = reading.clients[0]._replace(program="job:7@1001", processes=(8, 9), uid=1001)
    other = reading.clients[1]._replace(program="job:8@1000", processes=(10, 11), uid=1000)
    rows = (LeftAlone("bob · x (pid 1)", "label", "labelled", 1001), LeftAlone("alice · x (pid 2)", "mps", "MPS", 1000))
    shared = snapshot_of(Readings(sharing=reading._replace(clients=(own, other), left_alone=rows)))
    seen = redact(shared, BOB).readings.sharing
    assert seen is not None
    assert seen.clients[0] == own
    hidden = seen.clients[1]
    assert (hidden.name, hidden.program, hidden.processes) == (hidden.client_id, hidden.client_id, ())
    assert seen.left_alone == rows[:1]
    unidentified = redact(shared, UNIDENTIFIED).readings.sharing
    assert unidentified is not None
    assert unidentified.left_alone == ()


def test_when_others_get_room_is_not_shown() -> None:
    """The ids of leases are those of other users' requests."""
    reading = NODE.sharing(0.0)
    assert reading.parking is not None
    parking = reading.parking._replace(expected_rooms={"7": 100.0})
    shared = snapshot_of(Readings(sharing=reading._replace(parking=parking)))
    rooms = [
        seen.parking.expected_rooms if (seen := redact(shared, viewer).readings.sharing) and seen.parking else None
        for viewer in (SEES_ALL, BOB, UNIDENTIFIED)
    ]
    assert rooms == [{"7": 100.0}, {}, {}]


def test_own_leases_are_complete_and_others_keep_their_place_in_the_queue() -> None:
    played = Played(NODE).play(3)
    everything, own = (played.get("queue", viewer)["queue"] for viewer in (SEES_ALL, BOB))
    assert own["leases"]["2"] == everything["leases"]["2"]
    assert own["waiting"]["4"] == everything["waiting"]["4"]
    assert own["leases"]["1"]["slots"] == ["0"]
    assert own["leases"]["1"]["trespassers"] == []
    assert [row["user"] for row in own["waiting"].values()] == ["others", "bob"]
    assert [row["position"] for row in own["waiting"].values()] == [1, 2]


def test_mps_daemons_and_logs_of_others_are_hidden() -> None:
    daemons = tuple(MpsDaemonReading(user, "GPU-a", "0", "running", 1.0) for user in ("", "alice", "bob"))
    events = tuple(MpsEvent(str(n), "log", 1.0, one.user, "GPU-a", "0", "x") for n, one in enumerate(daemons))
    reading = LeasesReading(mps=MpsReading("per_user", "", daemons, events))
    seen = redact_leases(reading, BOB).mps
    assert seen is not None
    assert [each.user for each in seen.daemons] == ["", "bob"]
    assert [each.user for each in seen.events] == ["bob"]


def test_another_client_has_one_pseudonym_everywhere() -> None:
    turns = Played(NODE).play(30).get("turns", BOB)["turns"]
    for gpu in turns["gpus"].values():
        for id in (*gpu["running"], *gpu["waiting"]):
            assert id in turns["clients"]
        for turn in gpu["timeline"].values():
            assert turn["client"] in turns["clients"]
    other = next(client for id, client in turns["clients"].items() if id.startswith("other-"))
    assert (other["pod"], other["pid"], other["uid"]) == ("", None, None)
    assert other["wait"] is not None or other["turn_s"] is not None, "the queue stays visible"


def test_an_event_without_a_user_shows_no_names() -> None:
    played = Played(NODE)
    named = {"slot": "5", "owner": "llm-serve", "workload": "llm-serve"}
    pod = Event(0.0, "allocation.seen", details=named, id="p")
    own = Event(0.0, "allocation.seen", "bob", details={"owner": "bob"}, id="b")
    other = Event(0.0, "allocation.seen", "alice", id="a")
    played.show(snapshot_of(Readings(event_log=EventLogReading((pod, own, other)))))
    events = played.get("events", BOB)["events"]
    assert set(events) == {"p", "b"}
    assert events["p"]["details"] == {"slot": "5"}
    assert events["b"]["details"] == {"owner": "bob"}
    assert set(played.get("events", UNIDENTIFIED)["events"]) == {"p"}


def test_an_alert_about_another_owner_is_shown_without_the_owner() -> None:
    played = Played(NODE).play(1)
    assert played.get("events", BOB)["alerts"]["a2"]["summary"] == "idle for 2 h"
    other = played.get("events", Viewer(False, 1000, "alice"))["alerts"]
    assert other["a2"]["labels"] == {}
    assert other["a2"]["summary"] == ""
    assert other["a2"]["name"] == "GPUWaste"
    assert other["a1"]["summary"] == "GPU 5 is at 91 °C", "an alert about a GPU names no owner"


@pytest.mark.parametrize(
    ("setting", "unix", "loopback", "uid", "authenticated", "sees_all"),
    [
        ("auto", False, True, None, False, False),
        ("auto", False, True, None, True, True),
        ("auto", False, False, None, False, False),
        ("auto", False, False, None, True, True),
        ("auto", True, False, 1001, False, False),
        ("auto", True, False, 0, False, True),
        ("auto", True, False, 777, False, True),
        ("all", True, False, 1001, False, True),
        ("all", False, False, None, False, True),
        ("own", False, True, None, False, False),
        ("own", False, True, None, True, True),
        ("own", True, False, 1001, False, False),
    ],
)
def test_viewer_of_a_listener(
    setting: str, unix: bool, loopback: bool, uid: int | None, authenticated: bool, sees_all: bool
) -> None:
    rule = Privacy(setting, unix, loopback, agent_uid=777)
    viewer = rule.viewer(uid, None, authenticated)
    assert viewer.sees_all is sees_all
    assert viewer.uid == (None if sees_all else uid)


def test_a_local_user_is_one_whom_ps_would_show_the_processes_of_others() -> None:
    def sees_names(rule: Privacy, is_local: bool = True) -> bool:
        return rule.viewer(1001, "bob", False, is_local).sees_names

    assert sees_names(Privacy("auto", unix=True))
    assert sees_names(Privacy("auto"))
    assert not sees_names(Privacy("auto", loopback=False))
    assert not sees_names(Privacy("own", unix=True))
    assert not sees_names(Privacy("auto", unix=True, hides_processes=True))
    assert not sees_names(Privacy("auto", hides_processes=True))
    assert not sees_names(Privacy("auto", unix=True), is_local=False)


def test_root_in_a_container_is_any_process_in_a_container() -> None:
    for setting in ("auto", "own"):
        for uid in (0, 777, 1001):
            rule = Privacy(setting, unix=True, agent_uid=777)
            assert rule.viewer(uid, "root", False, is_local=False) == Viewer(False), (setting, uid)


def test_metrics_are_closed_to_a_viewer_that_sees_no_names() -> None:
    assert SEES_ALL.sees_metrics
    assert not BOB.sees_metrics
    assert Privacy("auto", loopback=False).viewer(None, None, False).sees_metrics, "a scraper on another host"
    assert Privacy("auto", hides_processes=True).viewer(None, None, False).sees_metrics, "a scraper on this host"
    assert Privacy("auto", unix=True).viewer(1001, "bob", False).sees_metrics
    assert not Privacy("auto", unix=True).viewer(1001, "bob", False, is_local=False).sees_metrics
    assert not Privacy("own").viewer(None, None, False).sees_metrics
    assert Privacy("own").viewer(None, None, True).sees_metrics


@pytest.mark.parametrize("viewer", [BOB, UNIDENTIFIED, LOCAL_BOB])
def test_an_owner_over_quota_counts_as_a_problem_also_without_a_name(viewer: Viewer) -> None:
    readings = NODE.readings(3.0)
    over = LedgerReading(LedgerState(), None, {"alice": HoldingQuota(0.5)})
    snapshot = redact(snapshot_of(readings._replace(ledger=over)), viewer)
    (problem,) = [found for found in problems_of(snapshot) if found.kind is ProblemKind.OVER_QUOTA]
    if viewer is LOCAL_BOB:
        assert problem.sentence.startswith("alice holds ")
    else:
        assert problem.sentence == "1 user holds more GPUs than the quota allows."
        assert "alice" not in f"{problem}"
