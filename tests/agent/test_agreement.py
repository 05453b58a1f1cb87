"""Every face gives the same answer for the same quantity at one sequence number: API, command line and metrics.

The lab is played from a random instant for a random time. Then each face is drawn from its last snapshot.
"""

import asyncio
import csv
import io
import json
import random
from collections import Counter
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.test_accounts import played
from faces.dialects.test_ds01 import family
from gpucommons.agent.accounts import Accounts
from gpucommons.cli.main import main
from gpucommons.config.settings import Settings
from gpucommons.faces.dialects.all import DIALECTS
from gpucommons.faces.exposition.exposition import Exposition
from gpucommons.ledger.events import EventLog
from gpucommons.ledger.query import read_accounts, read_totals
from gpucommons.model.snapshot import Snapshot
from gpucommons.model.words import By
from parsing import Series, parsed
from played import Played
from tiers import in_long_tier
from waiting import until

HOUR_NS = 3600 * 10**9
LAB_S = 40_000


class Faces:
    """All faces of one snapshot."""

    def __init__(self, snapshot: Snapshot, capsys: pytest.CaptureFixture[str]) -> None:
        self.snapshot = snapshot
        self._played = Played()
        self._played.show(snapshot)
        self._capsys = capsys

    def api(self, path: str) -> Any:
        return self._played.get(path)

    def command(self, *arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--simulate", "lab"])
        out, err = self._capsys.readouterr()
        assert ended.value.code == 0, err
        return out

    @cached_property
    def metrics(self) -> Series:
        body, _ = Exposition(lambda: self.snapshot, DIALECTS).metrics(None, False, gzip=False)
        return parsed(body.decode())


@pytest.fixture(params=[0, *in_long_tier(1, 2)])
def faces(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Faces:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    luck = random.Random(request.param)
    snapshot = asyncio.run(played("lab", luck.randrange(12, 45), Settings(), begin_s=luck.uniform(0, LAB_S)))
    # The last flush came after the last snapshot: read what is on the disk now.
    path = tmp_path / "ledger-lab.sqlite"
    ledger = Accounts(Settings(), "lab").ledger_reading()
    log = EventLog(tmp_path / "events-lab.jsonl")
    log.start()
    until(lambda: log.detector_state is not None, "the event log is read")
    log.close(5.0)
    snapshot = snapshot._replace(
        readings=snapshot.readings._replace(
            accounts=read_accounts(path, snapshot.wall_s),
            ledger=ledger._replace(totals={key: total.amounts for key, total in read_totals(path).items()}),
            event_log=log.reading(),
        ),
    )
    monkeypatch.setattr("gpucommons.cli.one_sample.take_sample", lambda *_: (None, snapshot))
    monkeypatch.setattr("gpucommons.cli.report.time", SimpleNamespace(time=lambda: snapshot.wall_s))
    return Faces(snapshot, capsys)


def test_every_face_agrees(faces: Faces) -> None:
    check_totals(faces)
    check_hours(faces)
    check_gpu_filter(faces)
    check_names(faces)
    check_equivalents(faces)
    check_documents(faces)


def check_totals(faces: Faces) -> None:
    api = faces.api("accounts")["accounts"]
    assert api["today"]["total"]["held_gpu_hours"] > 0
    printed = set()
    for by in By:
        period = json.loads(faces.command("report", "--by", by, "--format", "json"))["accounts"]["30d"]
        for column, number in api["30d"]["total"].items():
            assert period["total"][column] == number, (by, column)
        if by is By.USER:
            assert period["users"] == api["30d"]["users"] == api["today"]["users"]
        total = list(csv.DictReader(io.StringIO(faces.command("report", "--by", by, "--format", "csv"))))[-1]
        printed.add(tuple(total[column] for column in api["30d"]["total"]))
    assert len(printed) == 1
    for column, metric in (
        ("held_gpu_hours", "held_gpu"),
        ("active_gpu_hours", "active_gpu"),
        ("sm_gpu_hours", "sm_gpu"),
    ):
        seconds = family(faces.metrics, f"gpucommons_owner_{metric}_seconds_total").values()
        assert round(sum(round(each * 10**9) for each in seconds) / HOUR_NS, 6) == api["30d"]["total"][column]


def check_hours(faces: Faces) -> None:
    users = faces.api("accounts")["accounts"]["today"]["users"]
    answer = faces.api("who?by=user")
    assert set(answer["groups"]) == {row["account"] for row in answer["who"]["processes"].values()}
    for name, group in answer["groups"].items():
        assert group["gpu_hours_today"] == users[name]["held_gpu_hours"]
        assert answer["who"]["accounts"][name]["gpu_hours_today"] == users[name]["held_gpu_hours"]
    held = family(faces.metrics, "gpucommons_owner_held_gpu_seconds_total")
    for owner in answer["who"]["owners"].values():
        labels = {"kind": owner["kind"], "owner": owner["name"], "namespace": owner["namespace"]}
        seconds = held[tuple(sorted((name, value) for name, value in labels.items() if value))]
        assert owner["gpu_hours_today"] == round(round(seconds * 10**9) / HOUR_NS, 6)


def check_gpu_filter(faces: Faces) -> None:
    everything = faces.api("who")["who"]
    by_gpu = json.loads(faces.command("report", "--by", "gpu", "--format", "json"))["accounts"]["30d"]["gpus"]
    reading = faces.snapshot.readings.accounts
    assert reading is not None
    billed: Counter[str] = Counter()
    for key, ns in reading.held_today_ns.items():
        billed[key.gpu_uuid] += ns
    slots = {slot["slot"]: slot["gpu_uuid"] for slot in faces.api("allocations")["allocations"]["slots"].values()}
    for uuid in {slot["gpu_uuid"] for slot in faces.api("allocations")["allocations"]["slots"].values()}:
        rows = [row for name, row in by_gpu.items() if slots.get(name.split()[0]) == uuid]
        assert sum(row["held_gpu_hours"] for row in rows) == pytest.approx(billed[uuid] / HOUR_NS, abs=1e-5)
        one = faces.api(f"who?gpu={uuid}")["who"]
        for key, owner in one["owners"].items():
            part = everything["owners"][key]["by_gpu"][uuid]
            assert {name: owner[name] for name in part if name != "gpu_index"} == {
                name: value for name, value in part.items() if name != "gpu_index"
            }
        shown = json.loads(faces.command("who", "--gpu", uuid, "--json"))["who"]
        assert shown == one


def check_names(faces: Faces) -> None:
    held = faces.api("allocations")["allocations"]["held"].values()
    names = {row["account"] for row in held if row["share_ratio"] or row["managed"]}
    metrics = faces.metrics
    assert {dict(labels)["user"] for labels in family(metrics, "ds01_gpu_allocated")} == names
    assert {row["account"] for row in faces.api("who")["who"]["processes"].values()} <= names
    assert set(faces.api("accounts")["accounts"]["today"]["users"]) >= {
        row["account"] for row in held if row["share_ratio"]
    }
    pods = {row["account"] for row in held if row["kind"] == "pod"}
    assert pods == {f"{row['owner']['namespace']}/{row['pod']}" for row in held if row["kind"] == "pod"}
    table = list(csv.DictReader(io.StringIO(faces.command("allocations", "--format", "csv"))))
    assert {row["user"] for row in table} - {"(free)"} >= names
    slots = {slot["slot"] for slot in faces.api("allocations")["allocations"]["slots"].values()}
    assert {row["slot"] for row in table} - {"any"} == slots
    assert {dict(labels)["gpu_slot"] for labels in family(metrics, "ds01_gpu_allocated")} <= slots
    assert {row["slot"] for row in faces.api("who")["who"]["processes"].values()} <= slots
    gpus = faces.api("gpus")["gpus"]["by_uuid"].values()
    mig = {device["slot"] for gpu in gpus for device in gpu["mig"].values()}
    assert mig == {slot for slot in slots if "." in slot}


def check_equivalents(faces: Faces) -> None:
    sums: Counter[str] = Counter()
    for row in faces.api("allocations")["allocations"]["held"].values():
        sums[row["account"]] += row["gpu_equivalents"]
    metrics = family(faces.metrics, "ds01_user_gpu_equivalents")
    assert {dict(labels)["user"]: value for labels, value in metrics.items()} == pytest.approx(sums)


def check_documents(faces: Faces) -> None:
    assert json.loads(faces.command("who", "--json")) == faces.api("who")
    assert json.loads(faces.command("allocations", "--format", "json")) == faces.api("allocations")
    events = faces.api("events?limit=1000")["events"]
    assert events
    assert json.loads(faces.command("events", "--format", "json"))["events"] == events
    assert list(json.loads(faces.command("events", "--format", "json"))["events"]) == list(events)
