"""A viewer without rights sees the node and their own rows: no other's name comes through anywhere."""

import json

import pytest

from demo_node import DemoNode
from gpucommons.model.events import Event, EventLogReading
from gpucommons.model.snapshot import Readings
from gpucommons.rules.privacy import SEES_ALL, Privacy, Viewer
from played import Played, snapshot_of

NODE = DemoNode(gpus=8, processes_a_gpu=4)
BOB = Viewer(False, 1001, "bob")
NOBODY = Viewer(False)
OTHERS = ("alice", "chen", "dana", "emeka", "farah")
PATHS = ("snapshot", "gpus", "who?by=user", "who?by=pod", "who?by=container", "turns", "accounts", "events?limit=1000")


def all_text(played: Played, viewer: Viewer) -> str:
    return "\n".join(json.dumps(played.get(path, viewer)) for path in PATHS)


def test_who_sees_all_sees_everybody() -> None:
    text = all_text(Played(NODE).play(120), SEES_ALL)
    for name in ("bob", *OTHERS):
        assert name in text


def test_no_other_name_comes_through() -> None:
    played = Played(NODE).play(120)
    text = all_text(played, BOB)
    assert "bob" in text
    for secret in (*OTHERS, "30000", "a0", '"uid": 1000'):
        assert f'"{secret}' not in text, secret
    nobody = all_text(played, NOBODY)
    for name in ("bob", *OTHERS):
        assert name not in nobody


def test_the_node_still_adds_up() -> None:
    played = Played(NODE).play(3)
    told, gpus = played.get("who", BOB)["who"], played.get("gpus", BOB)["gpus"]["by_uuid"]
    assert {"user/1001", "user/others"} <= set(told["owners"])
    assert {row["uid"] for row in told["processes"].values()} == {1001}
    for uuid, gpu in gpus.items():
        shares = [owner["by_gpu"][uuid] for owner in told["owners"].values() if uuid in owner["by_gpu"]]
        memory = sum(part["memory_bytes"] for part in shares)
        rest = sum(part["memory_bytes"] or 0 for part in told["unattributed"].get(uuid, {}).values())
        assert memory + rest == gpu["memory_used_bytes"]


def test_own_rows_are_whole() -> None:
    played = Played(NODE).play(3)
    everything, own = played.get("snapshot"), played.get("snapshot", BOB)
    for key, row in own["who"]["processes"].items():
        assert row == everything["who"]["processes"][key]
    assert own["accounts"]["today"]["users"] == {"bob": everything["accounts"]["today"]["users"]["bob"]}
    assert own["accounts"]["today"]["total"] == own["accounts"]["today"]["users"]["bob"]
    mine = {id: client for id, client in everything["turns"]["clients"].items() if client["uid"] == 1001}
    assert mine
    assert {id: own["turns"]["clients"][id] for id in mine} == mine


def test_a_stranger_in_the_queue_has_the_same_name_everywhere() -> None:
    turns = Played(NODE).play(30).get("turns", BOB)["turns"]
    for gpu in turns["gpus"].values():
        for id in (*gpu["running"], *gpu["waiting"]):
            assert id in turns["clients"]
        for turn in gpu["timeline"].values():
            assert turn["client"] in turns["clients"]
    stranger = next(client for id, client in turns["clients"].items() if id.startswith("other-"))
    assert (stranger["pod"], stranger["pid"], stranger["uid"]) == ("", None, None)
    assert stranger["wait"] is not None or stranger["turn_s"] is not None, "the queue is still to be seen"


def test_an_event_without_a_user_names_nobody_either() -> None:
    played = Played(NODE)
    named = {"slot": "5", "owner": "llm-serve", "workload": "llm-serve"}
    pod = Event(0.0, "allocation.seen", details=named, id="p")
    own = Event(0.0, "allocation.seen", "bob", details={"owner": "bob"}, id="b")
    other = Event(0.0, "allocation.seen", "alice", id="a")
    played.show(snapshot_of(Readings(event_log=EventLogReading((pod, own, other)))))
    told = played.get("events", BOB)["events"]
    assert set(told) == {"p", "b"}
    assert told["p"]["details"] == {"slot": "5"}
    assert told["b"]["details"] == {"owner": "bob"}
    assert set(played.get("events", NOBODY)["events"]) == {"p"}


def test_an_alert_about_somebody_keeps_its_name_and_loses_theirs() -> None:
    played = Played(NODE).play(1)
    assert played.get("events", BOB)["alerts"]["a2"]["summary"] == "idle for 2 h"
    stranger = played.get("events", Viewer(False, 1000, "alice"))["alerts"]
    assert stranger["a2"]["labels"] == {}
    assert stranger["a2"]["summary"] == ""
    assert stranger["a2"]["name"] == "GPUWaste"
    assert stranger["a1"]["summary"] == "GPU 5 is at 91 °C", "a GPU is nobody's secret"


@pytest.mark.parametrize(
    ("setting", "unix", "loopback", "uid", "authenticated", "sees_all"),
    [
        ("auto", False, True, None, False, True),
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
def test_who_sees_all(
    setting: str, unix: bool, loopback: bool, uid: int | None, authenticated: bool, sees_all: bool
) -> None:
    privacy = Privacy(setting, unix, loopback, agent_uid=777)
    viewer = privacy.viewer(uid, None, authenticated)
    assert viewer.sees_all is sees_all
    assert viewer.uid == (None if sees_all else uid)
    assert privacy.depends_on_peer or viewer.sees_all


def test_metrics_are_closed_where_names_are() -> None:
    assert SEES_ALL.sees_metrics
    assert not BOB.sees_metrics
    assert Privacy("auto", loopback=False).viewer(None, None, False).sees_metrics, "a scraper on another host"
    assert not Privacy("auto", unix=True).viewer(1001, "bob", False).sees_metrics
    assert not Privacy("own").viewer(None, None, False).sees_metrics
    assert Privacy("own").viewer(None, None, True).sees_metrics
