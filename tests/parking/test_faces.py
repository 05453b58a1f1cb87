"""Parked programs on every face: document, text, metrics, events, and what other users see of them."""

from typing import Any

from demo_node import DemoNode
from gpucommons.cli.parking import is_done, live_line, order_document, outcome, outcome_line, table_lines
from gpucommons.cli.scheduler_view import explanations, kept_lines, room_lines, status_lines
from gpucommons.cli.top_rows import turn_rows
from gpucommons.faces.dialects.gpucommons import sharing as metrics
from gpucommons.faces.documents.turns import turns_of
from gpucommons.faces.exposition.text import FamilyRenderer, prometheus_head
from gpucommons.ledger.events import DetectorState, detect_events
from gpucommons.model.sharing import (
    ARRIVAL,
    ArrivalReading,
    HistogramReading,
    KeptReading,
    ParkedFor,
    ParkedReading,
    ParkEvent,
    ParkingReading,
    SharingReading,
)
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.model.viewer import Viewer
from gpucommons.rules.privacy import redact_sharing
from parsing import parsed
from terminal import texts_of

GIB = 1 << 30
BEFORE = DemoNode().sharing(3.0)._replace(parking=None)
UUID = BEFORE.gpus[0].uuid
NAME = "alice · lab.ipynb (pid 4711)"
PARKED = ParkedReading(
    "session:8@1000", NAME, "alice", 1000, "parked", UUID, (4711,), 40 * GIB, 40 * GIB, 100.0, "idle"
)
MOVING = PARKED._replace(
    key="session:9@1001",
    name="bob · train.py (pid 5)",
    user="bob",
    uid=1001,
    pids=(5,),
    stage="waking",
    gpu_bytes=10 * GIB,
    host_bytes=4 * GIB,
    rate_bytes_s=3.0 * GIB,
    remaining_s=4 / 3,
)
EVENT = ParkEvent(
    "1/parked/session:8@1000", "parked", 130.0, PARKED.key, NAME, "alice", 1000, UUID, 40 * GIB, 21.5, "40.0 GiB moved"
)
REFUSED = EVENT._replace(
    id="2", kind="refused", key="x", user="bob", uid=1001, sentence="managed", why="managed_memory"
)
READING = ParkingReading(
    1800.0, False, "", (PARKED, MOVING), (EVENT, REFUSED), parks=3, wakes=2, refusals={"managed_memory": 1}
)
DURATIONS = HistogramReading((0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0), (0,) * 7 + (3,) * 4, 60.0)
SHARING: SharingReading = BEFORE._replace(parking=READING, park_seconds=DURATIONS, wake_seconds=DURATIONS)
TURNS: dict[str, Any] = dict(turns_of(SHARING, {}))


def test_the_document_has_what_is_parked() -> None:
    row = TURNS["parking"]["programs"][PARKED.key]
    assert (row["stage"], row["host_bytes"], row["cause"]) == ("parked", 40 * GIB, "idle")
    assert turns_of(BEFORE, {})["parking"] is None


def test_both_owners_read_one_sentence_about_room_that_was_made() -> None:
    """Neither sees the name of the other where owners are hidden."""
    train, notebook = ParkedFor("train.py", "dana", 1003, 0), ParkedFor("lab.ipynb", "alice", 1000, 40 * GIB)
    parked = PARKED._replace(cause=ARRIVAL, made_for=train)
    arrival = ArrivalReading(
        "arrival:7.1", "dana · train.py (pid 7)", "dana", 1003, 7, UUID, False, 100.0, 6.2, (notebook,)
    )
    sharing = SHARING._replace(parking=READING._replace(programs=(parked,), arrivals=(arrival,)))

    def sentences(viewer: Viewer) -> list[list[str]]:
        parking: Any = dict(turns_of(redact_sharing(sharing, viewer), {}))["parking"]
        return [[row["sentence"] for row in parking[part].values()] for part in ("programs", "arrivals")]

    (for_alice,), for_dana = sentences(Viewer(sees_all=True))
    assert for_alice.endswith(" to make room for dana's train.py; wakes when it is used")
    assert for_dana == ["waited 6 s for room: 40.0 GiB of alice's idle lab.ipynb was parked"]
    (for_alice,), hidden = sentences(Viewer(False, 1000, "alice"))
    assert for_alice.endswith(" to make room for another user's program; wakes when it is used")
    assert hidden == []
    _, for_dana = sentences(Viewer(False, 1003, "dana"))
    assert for_dana == ["waited 6 s for room: 40.0 GiB of another user's idle program was parked"]
    assert list(room_lines(dict(turns_of(sharing, {})), 1003)) == [
        "dana · train.py (pid 7) waited 6 s for room: 40.0 GiB of alice's idle lab.ipynb was parked."
    ]
    assert any("to make room for dana's train.py" in line for line in room_lines(dict(turns_of(sharing, {})), 1000))


def test_the_next_job_reads_why_the_memory_of_a_suspended_one_stays() -> None:
    sentence = "suspended job 49 keeps 40.0 GiB of GPU memory: host memory is short"
    kept = KeptReading("49", (UUID,), sentence)
    everyone = redact_sharing(SHARING._replace(parking=READING._replace(kept=(kept,))), Viewer(False, 1003, "dana"))
    turns = dict(turns_of(everyone, {}))
    assert list(kept_lines(turns, {UUID})) == [f"{sentence}."]
    assert list(kept_lines(turns, set(), "49")) == [f"{sentence}."], "its own user asks for it by its id"
    assert list(kept_lines(turns, {"GPU-other"}, "50")) == []


def test_status_explain_and_top_show_it() -> None:
    assert any(f"  {NAME}: parked, 40.0 GiB in host memory; parked " in line for line in status_lines(TURNS))
    assert explanations(TURNS, "pid:4711") == explanations(TURNS, NAME)
    assert explanations(TURNS, NAME)[0].startswith(f"{NAME}: parked, 40.0 GiB in host memory; parked ")
    row = next(row for row in turn_rows({"turns": TURNS}) if row.key == PARKED.key)
    assert row.cells[2].startswith("parked: 40")


def test_the_table_and_the_line_of_progress() -> None:
    parking = TURNS["parking"]
    header, first, second = texts_of(table_lines(parking, 3700.0, None))
    assert "HOST RAM" in header
    assert f"{NAME}  parked" in first
    assert "6.0 GiB of 10.0 GiB, 3.0 GiB/s, about 1 s left" in second
    assert texts_of(table_lines({**parking, "programs": {}}, 0.0, None)) == ["no program is parked"]
    assert "waking 6.0 GiB" in live_line(parking["programs"])
    assert is_done("park", parking["programs"][PARKED.key])
    assert not is_done("wake", parking["programs"][PARKED.key])
    event = outcome(parking, PARKED.key, 129.0)
    assert event is not None
    assert outcome_line(event) == f"{NAME}: parked in 21.5 s: 40.0 GiB moved"
    assert outcome(parking, PARKED.key, 131.0) is None, "of an earlier order"


def test_the_document_of_an_order_has_each_program_and_the_refusals() -> None:
    parking = TURNS["parking"]
    answer = {"keys": [PARKED.key, "gone"], "names": [NAME, "bob · x (pid 6)"], "refused": ["carol · y: managed"]}
    event = outcome(parking, PARKED.key, 129.0)
    assert event is not None
    found = order_document(answer, {PARKED.key: event})
    assert found["refused"] == ["carol · y: managed"]
    assert found["programs"][PARKED.key] == {
        "name": NAME,
        "kind": "parked",
        "unix_s": 130.0,
        "bytes": 40 * GIB,
        "duration_s": 21.5,
        "sentence": "40.0 GiB moved",
        "why": "",
    }
    assert set(found["programs"]["gone"].values()) == {"bob · x (pid 6)", None}, "it ended: its outcome is unknown"


def test_metrics() -> None:
    snapshot = Snapshot(1, 0.0, 0.0, "host", readings=Readings(sharing=SHARING))
    text = "".join(
        prometheus_head(family.metric) + str(FamilyRenderer(family.metric).render(family).lines, "utf-8")
        for family in metrics.collect_parking(snapshot)
    )
    found = {(name, tuple(value for _, value in labels)): value for (name, labels), value in parsed(text).items()}
    assert found["gpucommons_parking_programs", ("parked",)] == 1
    assert found["gpucommons_parking_programs", ("parking",)] == 0
    assert found["gpucommons_parking_host_bytes", ("alice",)] == 40 * GIB
    assert found["gpucommons_parking_parked_total", ()] == 3
    assert found["gpucommons_parking_refused_total", ("managed_memory",)] == 1
    assert found["gpucommons_parking_park_seconds_count", ()] == 3
    assert not list(metrics.collect_parking(Snapshot(1, 0.0, 0.0, "host", readings=Readings(sharing=BEFORE))))


def test_each_event_is_reported_once() -> None:
    snapshot = Snapshot(0, 200.0, 200.0, "host", readings=Readings(sharing=SHARING))
    state, events = detect_events(DetectorState(), snapshot, {})
    assert [(event.type, event.user) for event in events] == [
        ("program.parked", "alice"),
        ("program.not_parked", "bob"),
    ]
    assert events[1].details["reason"] == "managed_memory"
    assert detect_events(state, snapshot, {})[1] == []


def test_other_users_see_no_names() -> None:
    seen = redact_sharing(SHARING, Viewer(sees_all=False, uid=1000, user="alice")).parking
    assert seen is not None
    assert seen.programs[0] == PARKED
    assert "bob" not in str(seen.programs[1])
    assert (seen.programs[1].host_bytes, seen.programs[1].pids) == (4 * GIB, ())
    assert seen.events == (EVENT,)
