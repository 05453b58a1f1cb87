"""`gpucommons report`, `allocations` and `events` on the command line."""

import csv
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from attribution.builders import gpu
from gpucommons.cli.allocations import render, table_lines
from gpucommons.cli.main import main
from gpucommons.cli.one_sample import api_document
from gpucommons.cli.report import table_lines as report_lines
from gpucommons.cli.text_table import Format, TextTable
from gpucommons.faces.documents.accounts import SCHEMA as ACCOUNTS
from gpucommons.faces.documents.events import EVENTS_SCHEMA as EVENTS
from gpucommons.faces.documents.slots import ALLOCATIONS_SCHEMA as ALLOCATIONS
from gpucommons.ledger.events import EventLog
from gpucommons.ledger.integrate import NS, Batch, Gap
from gpucommons.ledger.store import Store
from gpucommons.model.accounts import Amounts
from gpucommons.model.allocations import Account, Slot
from gpucommons.model.events import Event, format_line
from gpucommons.model.snapshot import Snapshot
from gpucommons.model.workloads import Container
from gpucommons.owners.holding_stage import AllocationStage
from holding.test_allocations import SPLIT, docker, managed, process, readings
from ledger.builders import ALICE, BOB, GPU, MIG, batch, moment
from terminal import text_of, texts_of

HOSTILE = Account("user", "eve|\n\x1b[31m,\"'", user="eve|\n\x1b[31m,\"'", group="lab")


@pytest.fixture(autouse=True)
def no_files_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent may have run here."""
    monkeypatch.setattr("gpucommons.config.state_directory._OF_ROOT", tmp_path / "of-root")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("GPUCOMMONS_WEB_LISTEN", "")
    with monkeypatch.context() as clock:
        clock.setenv("TZ", "UTC")
        time.tzset()
        yield tmp_path
    time.tzset()


def written(state: Path, batches: Iterable[Batch]) -> None:
    store = Store(state / "ledger.sqlite", "run", "boot")
    store.begin(moment(0))
    for number, each in enumerate(batches, 1):
        store.write(number, each, moment(number))
    store.close()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    assert ended.value.code == 0, err
    return out


def rendered_allocations(snapshot: Snapshot, user: str | None, format: Format) -> str:
    chosen = {} if user is None else {"user": user}
    allocations, slots = api_document(snapshot, "allocations", chosen), api_document(snapshot, "slots")
    found = allocations["allocations"], slots["slots"], user
    if format is not Format.TABLE:
        return render(*found, format)
    return "\n".join(texts_of(table_lines(*found, None)))


def allocated(*containers: Container, **more: Any) -> Snapshot:
    return Snapshot(1, 0.0, 0.0, "host", readings=AllocationStage()(readings(*containers, **more)))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    assert ended.value.code == 2
    assert not out
    assert err.count("\n") == 1
    return err


@pytest.fixture
def ledger(state: Path) -> Path:
    now_s = time.time()
    long_ago_s = now_s - 40 * 86_400
    written(
        state,
        [
            batch(1201, ALICE, now_s - 3600),
            batch(1201, BOB, now_s - 3600, MIG),
            batch(1201, HOSTILE, now_s - 7200),
            batch(50, Account("pod", "train-0", "research", "uid", pod="train-0"), now_s - 86_400),
            batch(3600, BOB, long_ago_s),
            Batch({}, {}, (Gap(int(now_s) - 100, "", "restart", 1800 * 10**9),)),
        ],
    )
    return state


def test_report_in_json_is_the_document_of_the_api(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(run(capsys, "report", "--format", "json"))["accounts"]
    Draft202012Validator(ACCOUNTS).validate(document)
    period = document["30d"]
    assert set(period["users"]) == {"alice", "bob", HOSTILE.user, "research/train-0"}
    assert period["total"]["held_gpu_hours"] == round(3653 / 3600, 6)
    assert period["gap_hours"] == {"restart": 0.5}


def test_report_totals_are_equal_whatever_the_rows_are(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    totals = []
    for by in ("user", "group", "namespace", "pod", "job", "day", "gpu"):
        table = run(capsys, "report", "--by", by, "--format", "csv", "--since", "60d")
        *parts, total = list(csv.DictReader(io.StringIO(table)))
        assert total.pop(by) == "total"
        assert ("free_gpu_hours" in total) == (by == "gpu")
        for column in total.keys() - {"efficiency_ratio"}:
            rows = sum(float(part[column] or 0) for part in parts)
            assert rows == pytest.approx(float(total[column]), abs=0.00005 * (len(parts) + 1)), column
        total.pop("free_gpu_hours", None)
        total.pop("unknown_gpu_hours", None)
        totals.append(total)
    assert totals[0]["held_gpu_hours"] == f"{7253 / 3600:.4f}"
    assert all(total == totals[0] for total in totals)


def test_report_as_a_table_and_as_markdown(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = run(capsys, "report", "--since", "2d")
    assert "\x1b" not in table, "names are escaped"
    assert [line.split()[0] for line in table.splitlines()[3:6]] == ["alice", "bob", "eve|\\n\\x1b[31m,\"'"]
    assert "not observed, not billed: 0.50 h (restart)" in table
    lines = table.splitlines()
    assert lines[-2].startswith("total")
    assert "0.33 h" in lines[3], "hours with their unit"
    markdown = run(capsys, "report", "--since", "2d", "--format", "markdown").splitlines()
    assert markdown[2].startswith("| user | held_gpu_hours |")
    assert all(line.replace("\\|", "").count("|") == 11 for line in markdown[2:8])


PRICED = """
[accounts]
price_per_gpu_hour = { "*H100*" = 3, "*a100*" = 1.5 }
price_per_kwh = 0.25
currency = "EUR"
co2_g_per_kwh = 400
"""


def with_model(seconds: int, account: Account, wall_s: float, slot: Slot, model: str) -> Batch:
    return batch(seconds, account, wall_s, slot)._replace(models={slot.gpu_uuid: model} if model else {})


@pytest.fixture
def priced(state: Path) -> tuple[str, str]:
    """An hour of alice on an H100, of bob on 3 of 7 slices of an A100, and of eve on a GPU of an unknown model."""
    now_s = time.time() - 3600
    third = Slot("GPU-9", "GPU-9", "9")
    written(
        state,
        [
            with_model(3600, ALICE, now_s, GPU, "NVIDIA H100 80GB HBM3"),
            with_model(0, BOB, now_s, MIG, "NVIDIA A100-SXM4")._replace(
                usage={(int(now_s // 60), MIG, BOB): Amounts(3600 * NS, 0, 0, 3600 * NS * 3 // 7)},
            ),
            with_model(3600, HOSTILE, now_s, third, ""),
        ],
    )
    (state / "config.toml").write_text(PRICED)
    return "--config", str(state / "config.toml")


def test_what_the_accounts_cost(priced: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(run(capsys, "report", "--json", *priced))["accounts"]
    Draft202012Validator(ACCOUNTS).validate(document)
    period = document["30d"]
    assert period["currency"] == "EUR"
    # An hour at 300 W is 0.3 kWh: 0.075 EUR and 120 g.
    costs = ("gpu_cost", "energy_cost", "cost", "unpriced_gpu_hours", "co2_g")
    assert {user: tuple(row[name] for name in costs) for user, row in period["users"].items()} == {
        "alice": (3, 0.075, 3.075, 0, 120),
        # Its energy was not measured: it is not known to be free of cost.
        "bob": (round(1.5 * 3 / 7, 6), None, round(1.5 * 3 / 7, 6), 0, None),
        # No pattern matches: only its energy has a price.
        HOSTILE.user: (None, 0.075, 0.075, 1, 120),
    }
    assert tuple(period["total"][name] for name in costs) == (3.642857, 0.15, 3.792857, 1, 240)


def test_costs_in_every_format(priced: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    table = list(csv.DictReader(io.StringIO(run(capsys, "report", "--format", "csv", *priced))))
    assert [(row["cost"], row["currency"], row["co2_g"]) for row in table] == [
        ("3.0750", "EUR", "120.0000"),
        ("0.6429", "EUR", ""),
        ("0.0750", "EUR", "120.0000"),
        ("3.7929", "EUR", "240.0000"),
    ]
    text = run(capsys, "report", *priced)
    assert "COST EUR" in text
    assert "240.0 g" in text
    assert "without a price: 1.00 h" in text
    (period,) = json.loads(run(capsys, "report", "--json", *priced))["accounts"].values()
    for by_width in (80, 100):
        lines = texts_of(report_lines(period, by_width))
        assert max(map(len, lines)) <= by_width, lines
        assert "COST EUR" in lines[2]
        assert lines[2].split()[:4] == ["USER", "HELD", "ACTIVE", "IDLE"]


def test_without_a_price_nothing_is_shown(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "cost" not in run(capsys, "report", "--json")
    assert "cost" not in run(capsys, "report")
    assert "co2" not in run(capsys, "report", "--format", "csv")


def test_report_of_one_user_and_of_a_month(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only = json.loads(run(capsys, "report", "--user", "bob", "--by", "gpu", "--format", "json", "--since", "60d"))
    period = only["accounts"]["60d"]
    assert set(period["gpus"]) == {f"{MIG.name} {MIG.uuid}", f"{GPU.name} {GPU.uuid}"}
    assert period["total"]["held_gpu_hours"] == round(4801 / 3600, 6)
    pod = json.loads(run(capsys, "report", "--user", "research/train-0", "--format", "json"))["accounts"]["30d"]
    assert pod["total"]["held_gpu_hours"] == round(50 / 3600, 6)
    long_ago = time.strftime("%Y-%m", time.gmtime(time.time() - 40 * 86_400))
    month = json.loads(run(capsys, "report", "--month", long_ago, "--format", "json"))["accounts"][long_ago]
    assert month["total"]["held_gpu_hours"] >= 1.0
    with pytest.raises(SystemExit) as ended:
        main(["report", "--user", "bobb"])
    assert ended.value.code == 0
    assert "no use by 'bobb' in this period" in capsys.readouterr().err


def test_report_errors_are_one_line(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "invalid period 'xx': use 30d, 12h or a date" in refused(capsys, "report", "--since", "xx")
    assert "invalid month 'November': use YYYY-MM" in refused(capsys, "report", "--month", "November")
    assert "exclude each other" in refused(capsys, "report", "--since", "1d", "--month", "2026-11")
    (ledger / "ledger.sqlite").unlink()
    assert "no ledger" in refused(capsys, "report")
    (ledger / "ledger.sqlite").write_bytes(b"garbage" * 300)
    assert "ledger.sqlite" in refused(capsys, "report")


def test_allocations() -> None:
    busy = managed("busy", "bob", "0")
    snapshot = allocated(
        managed("kept", "alice", "1:0", running=False),
        busy,
        docker("sneaky", "2", labels={"ds01.user": "eve"}, privileged=True),
        docker("monitor", count=-1),
        gpus=(gpu(0), SPLIT, gpu(2)),
        processes=[process(busy)],
    )
    lines = rendered_allocations(snapshot, None, Format.TABLE).splitlines()
    assert [line.split()[:5] for line in lines[1:]] == [
        ["0", "bob", "busy", "container", "active"],
        ["1.0", "alice", "kept", "container", "held"],
        ["1.1", "(free)"],
        ["2", "eve", "sneaky", "container", "running"],
        ["any", "unattributed", "monitor", "container", "running"],
    ]
    document = api_document(snapshot, "allocations")["allocations"]
    Draft202012Validator(ALLOCATIONS).validate(document)
    held = {
        row["workload"]: (row["slot"], row["managed"], row["gpu_equivalents"])
        for row in document["held"].values()
        if row["share_ratio"]
    }
    assert held == {
        "busy": ("0", True, 1.0),
        "kept": ("1.0", True, 3 / 7),
        "sneaky": ("2", False, 1.0),
    }
    assert sorted(slot["slot"] for slot in document["slots"].values()) == ["0", "1.0", "1.1", "2"]
    assert "(free)" not in rendered_allocations(snapshot, "alice", Format.CSV)
    assert len(rendered_allocations(snapshot, "alice", Format.CSV).splitlines()) == 2


HAPPENED = [
    Event(1_700_000_000.0, "gpu.lost", "", "gpucommons", {"gpu": "3"}),
    Event(time.time() - 60, "quota.exceeded", "alice", "gpucommons", {"used": "3", "limit": "2"}),
    Event(time.time() - 30, "allocation.seen", "bob\x1b[2J", "gpucommons", {"slot": "1.0", "workload": "x\ny"}),
]


@pytest.fixture
def log(state: Path) -> Path:
    (state / "events.jsonl.1").write_bytes(format_line(HAPPENED[0]))
    (state / "events.jsonl").write_bytes(b"damaged\n" + b"".join(map(format_line, HAPPENED[1:])))
    return state / "events.jsonl"


def test_events(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "events").splitlines()
    assert [line.split()[2] for line in lines] == ["gpu.lost", "quota.exceeded", "allocation.seen"]
    assert "used=3 limit=2" in lines[1]
    assert "\x1b" not in lines[2]
    assert "workload=x\\ny" in lines[2]
    recent = json.loads(run(capsys, "events", "--since", "1h", "--format", "json"))["events"]
    Draft202012Validator(EVENTS).validate(recent)
    assert [event["type"] for event in recent.values()] == ["allocation.seen", "quota.exceeded"], "newest first"
    assert run(capsys, "events", "--type", "gpu").count("\n") == 1
    assert run(capsys, "events", "--user", "alice", "--format", "csv").count("\n") == 2
    assert run(capsys, "events", "--user", "unknown") == ""


def test_event_errors_are_one_line(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no event log" in refused(capsys, "events")
    (state / "events.jsonl").touch()
    assert "invalid period" in refused(capsys, "events", "--since", "soon")
    assert "--since: '2100-01-01' is in the future" in refused(capsys, "events", "--since", "2100-01-01")
    unknown = refused(capsys, "events", "--type", "gpus")
    assert "--type: unknown type 'gpus': use gpu.lost, gpu.back, " in unknown
    assert "table or json" in refused(capsys, "events", "--follow", "--format", "csv")


def test_events_are_followed(log: Path) -> None:
    source = Path(__file__).resolve().parents[2] / "src"
    following = subprocess.Popen(
        [sys.executable, "-m", "gpucommons", "events", "--follow", "--type", "quota", "--format", "json"],
        env={**os.environ, "PYTHONPATH": str(source), "STATE_DIRECTORY": str(log.parent)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert following.stdout is not None
        ((_, event),) = json.loads(following.stdout.readline()).items()
        assert (event["type"], event["details"]["limit"]) == ("quota.exceeded", "2")
        with log.open("ab") as file:
            file.write(format_line(HAPPENED[0]))
            file.write(format_line(Event(time.time(), "quota.kept", "alice", "gpucommons", {"used": "1"})))
        assert "quota.kept" in following.stdout.readline()
    finally:
        following.kill()
        following.wait()
        following.stdout.close() if following.stdout else None


def test_a_table_escapes_names() -> None:
    grid = TextTable(("name", "n"), [("a|b\\", "1"), ("=1+1", "20")], ("total", "21"), frozenset({1}))
    lines = texts_of(grid.fit(None))
    assert lines == ["NAME    N", "a|b\\    1", "=1+1   20", "-----  --", "total  21"]
    assert grid.as_markdown().splitlines()[2] == "| a\\|b\\\\ | 1 |"
    assert grid.as_csv().splitlines() == ["name,n", "a|b\\,1", "'=1+1,20", "total,21"]


@contextmanager
def as_nobody() -> Iterator[None]:
    """Files are opened as another user and group, without supplementary groups."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_another_user_reads_neither_the_ledger_nor_the_events(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """An empty report would say that nothing was used."""
    # Not below pytest's directory, which only its user may enter.
    with TemporaryDirectory() as name:
        state = Path(name)
        monkeypatch.setenv("STATE_DIRECTORY", name)
        written(state, [batch(10, wall_s=time.time() - 60)])
        events = EventLog(state / "events.jsonl")
        events.start()
        events.record([Event(time.time() - 30, "gpu.lost", "alice", "gpucommons", {})])
        assert events.close(5.0)
        state.chmod(mode)
        for command in ("report", "events"):
            assert "alice" in run(capsys, command)
            with as_nobody():
                assert "no permission to read it; use sudo" in refused(capsys, command)


@pytest.mark.parametrize("by", ["user", "group"])
def test_a_mig_device_counts_as_held_and_by_its_part_of_the_gpu(
    state: Path, capsys: pytest.CaptureFixture[str], by: str
) -> None:
    """3 of 7 slices for an hour: one hour held, 0.43 hours of a whole GPU. Both columns fit 80 columns."""
    ns = 3600 * NS
    now_s = time.time()
    mine = Batch({(int(now_s // 60), MIG, BOB): Amounts(ns, ns, 0, ns * 3 // 7)}, {}, seconds=3600.0)
    written(state, [mine])
    period = json.loads(run(capsys, "report", "--since", "2d", "--by", by, "--json"))["accounts"]["2d"]
    (row,) = period[f"{by}s"].values()
    assert (row["held_gpu_hours"], row["gpu_equivalent_hours"]) == (1.0, pytest.approx(3 / 7, abs=1e-6))
    header = text_of(report_lines(period, 80)[2])
    assert "HELD" in header.upper()
    assert "EQUIVALENTS" in header.upper()
