"""Every table fits the terminal, at 80 to 200 columns, and a pipe gets everything.

One agent of the scenario `faults` serves the reads: after some seconds its GPU 3 is lost. The terminals are real.
"""

import csv
import io
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpucommons.cli.gpus_view import slot_owners
from gpucommons.cli.lease_view import queue_lines
from gpucommons.cli.main import main
from gpucommons.cli.text_table import TextTable, shorten, wrap_lines
from gpucommons.simulation.lab_gpus import LabGpus
from gpucommons.simulation.scenarios import HOT_GPU, LOST_GPU
from running import RunningAgent, command, running_agent
from terminal import in_terminal, text_of, texts_of, without_escapes
from tiers import in_long_tier
from waiting import until

# The exit status of `gpus` where a GPU of the node is lost.
GPU_IS_LOST = 1
WIDTHS = (80, 100, 140, 200)
LONG_ID = "3f1a5c7e9b2d4f6a8c0e1d3b5f7a9c2e4d6f8a0b1c3e5d7f9a2b4c6d8e0f1a3b"


@contextmanager
def faulty_agent() -> Iterator[RunningAgent]:
    with running_agent("--simulate", "faults") as agent:
        yield agent


@pytest.fixture(scope="module")
def agent() -> Iterator[RunningAgent]:
    with faulty_agent() as running:
        lost = LabGpus(0.0).at(0.0).gpus[LOST_GPU].identity.uuid
        until(
            lambda: json.loads(running.get("/api/v1/slots")[1])["slots"][lost]["state"] == "lost",
            "the GPU is lost",
            within_s=60,
        )
        yield running


def lines_of(columns: int, agent: RunningAgent, *arguments: str) -> list[str]:
    status, written = in_terminal(columns, *arguments, "--connect", agent.url)
    assert status == (1 if arguments[0] == "gpus" else 0), written
    return without_escapes(written).splitlines()


@pytest.mark.parametrize("columns", [*WIDTHS[:1], *in_long_tier(*WIDTHS[1:])])
def test_tables_fit_the_terminal(agent: RunningAgent, columns: int) -> None:
    for name in ("gpus", "allocations", "who", "free", "events", "report", "report --job 48213"):
        lines = lines_of(columns, agent, *name.split())
        assert lines
        assert max(map(len, lines)) <= columns, name
        if columns == WIDTHS[0] and name in ("gpus", "allocations"):
            assert max(map(len, lines)) > columns - 12, "the width is used"


@pytest.mark.long
@pytest.mark.parametrize("columns", WIDTHS)
def test_gpus_has_its_columns_at_every_width(agent: RunningAgent, columns: int) -> None:
    lines = lines_of(columns, agent, "gpus")
    header = next(line for line in lines if line.startswith("GPU ")).split()
    assert [title for title in header if title not in ("PROCESSES", "HEALTH")] == [
        *("GPU", "MODEL", "UTIL", "MEMORY", "TEMP", "POWER", "OWNER", "STATE")
    ]
    first = next(line for line in lines if line.startswith("0 "))
    assert first.split()[1] == "H200"
    assert "alice" in first
    assert "busy" in first
    assert "GPU-" not in "\n".join(lines)
    assert any(
        "GPU-c963cfe0-afae-5a3b-b909-6a04e7d80068" in line for line in lines_of(columns, agent, "gpus", "--wide")
    )


def test_the_first_24_lines_of_gpus_have_what_matters(agent: RunningAgent) -> None:
    lines = lines_of(80, agent, "gpus")[:24]
    slots = json.loads(agent.get("/api/v1/slots")[1])["slots"].values()
    free = sum(slot["state"] == "free" for slot in slots)
    text = "\n".join(lines)
    assert f"1 GPU lost (GPU {LOST_GPU})" in text
    assert f"1 overheating (GPU {HOT_GPU})" in text
    assert f"{free} free" in text
    idle = [slot for slot in slots if slot["state"] == "held_idle"]
    longest = max(idle, key=lambda slot: (slot["idle_s"], -slot["gpu_index"]))
    assert f"longest {longest['holders'][0]['account']}, " in text
    (lost,) = [line for line in lines if line.split()[:2] == [str(LOST_GPU), "H200"]]
    assert lost.split()[-1] == "lost"
    (hot,) = [line for line in lines if line.split()[:2] == [str(HOT_GPU), "H200"]]
    assert "91 C" in hot
    assert "hot, busy" in hot


def test_gpus_ends_with_the_problems_and_what_to_do(agent: RunningAgent) -> None:
    def problems() -> dict[str, dict[str, str]]:
        return dict(json.loads(agent.get("/api/v1/problems")[1])["problems"])

    def shown() -> tuple[dict[str, dict[str, str]], str] | None:
        """All three problems and what `gpus` prints; None where one began or changed meanwhile, as XIDs still do."""
        before = problems()
        text = " ".join(" ".join(lines_of(80, agent, "gpus")).split())
        return (before, text) if len(before) >= 3 and before == problems() else None

    listed, text = until(shown, "three problems that do not change")
    for problem in listed.values():
        assert f"{problem['level']}: {problem['sentence'][:20]}" in text
        assert " ".join(problem["remedy"].split()) in text


@pytest.mark.long
def test_the_first_24_lines_of_gpus_in_the_lab() -> None:
    with TemporaryDirectory() as directory:
        status, written = in_terminal(
            80, "gpus", "--simulate", "lab", environment={"STATE_DIRECTORY": directory, "RUNTIME_DIRECTORY": directory}
        )
    assert status == 0, written
    text = "\n".join(without_escapes(written).splitlines()[:24])
    assert "lost" not in text
    assert "3 free" in text
    assert "5 held idle (longest emeka, " in text


def test_states_have_colours_in_a_terminal_only(agent: RunningAgent) -> None:
    _, written = in_terminal(80, "gpus", "--connect", agent.url)
    assert "\x1b[1;31mlost\x1b[0m" in written
    assert "\x1b[32mfree\x1b[0m" in written
    piped = command("gpus", "--connect", agent.url).stdout
    assert "\x1b" not in piped
    assert "GPU-c963cfe0-afae-5a3b-b909-6a04e7d80068" in piped
    _, written = in_terminal(80, "events", "--type", "gpu.lost", "--connect", agent.url)
    assert "\x1b[1;31mgpu.lost\x1b[0m" in written


def test_a_pipe_gets_every_column_in_full(agent: RunningAgent) -> None:
    piped = command("allocations", "--connect", agent.url).stdout
    assert "inference/llm-serve-6d9f7c5b8-x2x4k" in piped
    header = piped.splitlines()[0].split()
    assert header[-4:] == ["INTERFACE", "MANAGED", "PROFILE", "SINCE"]
    assert "GPU-" not in piped, "the slot of a lost GPU has its number too"
    narrow = "\n".join(lines_of(80, agent, "allocations"))
    assert "inference/llm-serve-6d9f7c5b8-x2x4k" not in narrow
    assert "STATE" in narrow


def csv_of(agent: RunningAgent, *arguments: str, status: int = 0) -> list[dict[str, str]]:
    done = command(*arguments, "--format", "csv", "--connect", agent.url)
    assert (done.returncode, done.stderr) == (status, "")
    return list(csv.DictReader(io.StringIO(done.stdout)))


def test_csv_has_exact_values_and_json_is_the_document(agent: RunningAgent) -> None:
    gpus = json.loads(agent.get("/api/v1/gpus")[1])["gpus"]["by_uuid"]
    rows = {row["uuid"]: row for row in csv_of(agent, "gpus", status=GPU_IS_LOST)}
    assert set(rows) == {*gpus, *(mig for gpu in gpus.values() for mig in gpu["mig"])}
    hot = next(uuid for uuid, gpu in gpus.items() if gpu["index"] == HOT_GPU)
    assert int(rows[hot]["memory_total_bytes"]) == gpus[hot]["memory_total_bytes"]
    assert "hot" in rows[hot]["reasons"]
    lost = next(row for row in rows.values() if row["slot"] == str(LOST_GPU))
    assert (lost["state"], lost["utilization_ratio"]) == ("lost", ""), "missing is not 0"
    assert {row["slot"] for row in csv_of(agent, "free")} == {"7.3", "7.4", "7.5"}
    who = csv_of(agent, "who")
    assert {row["account"] for row in who if row["pid"]} >= {"alice", "bob", "chen", "dana"}
    held = csv_of(agent, "allocations")
    assert {row["slot"] for row in held} >= {"0", "7.6", "any"}
    assert all(float(row["gpu_equivalents"]) <= 1 for row in held if row["gpu_equivalents"])
    for name in ("gpus", "who", "free", "allocations", "report", "events"):
        done = command(name, "--format", "json", "--connect", agent.url)
        assert json.loads(done.stdout)["simulated"] == "faults"
        assert done.returncode == (GPU_IS_LOST if name == "gpus" else 0), name


def test_a_line_of_an_event_has_names_and_no_ids(agent: RunningAgent) -> None:
    seen = ("events", "--type", "allocation.seen", "--user", "alice")
    lines = command(*seen, "--connect", agent.url).stdout.splitlines()
    assert lines
    assert not [line for line in lines if "workload_id=" in line or "owner=alice" in line]
    assert all("workload_id=" in row["details"] for row in csv_of(agent, *seen))
    assert "gpu.lost" in command("events", "--connect", agent.url).stdout, "an event of no user and no owner"


def test_what_is_empty_says_so_in_a_terminal(agent: RunningAgent) -> None:
    assert lines_of(80, agent, "events", "--type", "program.stranded") == ["no event matches"]
    assert lines_of(80, agent, "allocations", "--user", "zzz") == ["no slot is held by 'zzz'"]
    assert command("events", "--type", "program.stranded", "--connect", agent.url).stdout == ""


def test_sentences_that_do_not_fit_stand_below_their_rows() -> None:
    why = "GPU 3 is held by emeka, idle for 2 min; 16 more that fit are in use"
    rows = [("1", "dana", why), ("2", "bob", "")]
    table = TextTable(("place", "user", "why"), rows, sentence="why")
    assert texts_of(table.fit(40)) == [
        "PLACE  USER",
        "1      dana",
        "    GPU 3 is held by emeka, idle for 2",
        "        min; 16 more that fit are in use",
        "2      bob",
    ]
    assert text_of(table.fit(120)[1]).endswith(why)


def test_a_folded_uuid_leaves_no_gap() -> None:
    rows = [("7.5", "MIG-3be4c78b-b4ae-3dd3-447e-604605f9eb87", "1g.18gb")]
    table = TextTable(("slot", "uuid", "profile"), rows, shortest={"uuid": 13})
    assert text_of(table.fit(50)[1]) == "7.5   MIG-3be4c78b…  1g.18gb"


@pytest.mark.parametrize(
    ("accounts", "hidden", "shown"),
    [
        (["bob", "dana"], 0, "bob, dana"),
        (["bob"], 1, "bob, 1 hidden"),
        ([], 2, "2 hidden"),
        (["inference/llm-serve-0", "bob", "dana"], 0, "inference/llm-serve-0 +2"),
    ],
)
def test_short_names_of_owners_are_all_shown(accounts: list[str], hidden: int, shown: str) -> None:
    holders = [{"account": account, "active": True} for account in accounts]
    assert slot_owners({"holders": holders, "hidden_holders": hidden}, full=False) == shown


def test_columns_are_shortened_then_left_out() -> None:
    table = TextTable(
        ("name", "n", "note"),
        [("a" * 30, "1", "spare"), ("b", "22", "")],
        numbers=frozenset({1}),
        shortest={"name": 8},
        left_out=("note",),
    )
    shown = texts_of(table.fit(20))
    assert shown == ["NAME        N  NOTE", f"{'a' * 8}…   1  spare", "b          22"]
    assert texts_of(table.fit(12)) == [
        "NAME       N",
        "aaaaaaa…   1",
        "b         22",
    ]
    assert text_of(table.fit(None)[1]) == f"{'a' * 30}   1  spare", "in full without a terminal"


def test_hashes_are_folded_before_text_is_left_out() -> None:
    text = f"container={LONG_ID} on GPU-c963cfe0-afae-5a3b-b909-6a04e7d80068"
    assert shorten(text, 60) == "container=3f1a5c7e9b2d… on GPU-c963cfe0…"
    assert wrap_lines([text], 60) == ["container=3f1a5c7e9b2d… on GPU-c963cfe0…"]
    assert wrap_lines([text], None) == [text]
    assert wrap_lines(["  one two three"], 11) == ["  one two", "      three"], "the indent stays, once"


@pytest.mark.parametrize("columns", [*WIDTHS[:1], *in_long_tier(*WIDTHS[1:])])
def test_queue_and_scheduler_status_fit_the_terminal(agent: RunningAgent, columns: int) -> None:
    lines = lines_of(columns, agent, "scheduler", "status")
    assert len(lines) > 5
    assert max(map(len, lines)) <= columns
    queue = {
        "off": "",
        "leases": {
            "7": {
                "user": "a-user-with-a-long-name",
                "name": "a job with a name that is longer than most",
                "slots": ["0", "1", "2", "3"],
                "shared": False,
                "mps": False,
                "sm_percent": None,
                "since_unix_s": 0.0,
                "ends_unix_s": 7300.0,
                "trespassers": [{"user": "bob", "pid": 4711, "paused": False, "not_paused_because": "it is exempt"}],
            }
        },
        "waiting": {
            "8": {
                "position": 1,
                "user": "another-user-with-a-long-name",
                "name": "another job",
                "gpus": 2,
                "since_unix_s": 0.0,
                "expected_start_unix_s": 900.0,
                "sentence": "every GPU that fits is in use, and two of them are reserved from tomorrow on",
            }
        },
    }
    shown = texts_of(queue_lines(queue, 100.0, columns))
    assert max(map(len, shown)) <= columns
    assert any("EXPECTED" in line for line in shown)
    assert "two of them are reserved from tomorrow on" in " ".join(" ".join(shown).split()), "the reason is not cut"
    assert "13 min" in "\n".join(shown)
    in_full = texts_of(queue_lines(queue, 100.0, None))
    assert "from tomorrow on" in in_full[4]
    assert "  in 2 h  " in in_full[1], "the lease ends"


def test_report_speaks_of_hours_and_kilowatt_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpucommons.ledger.store import Store
    from ledger.builders import ALICE, batch, moment

    store = Store(tmp_path / "ledger.sqlite", "run", "boot")
    store.begin(moment(0))
    store.write(1, batch(3096, ALICE, time.time() - 3600), moment(1))
    store.close()
    for name in ("STATE_DIRECTORY", "RUNTIME_DIRECTORY"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("GPUCOMMONS_WEB_LISTEN", "")
    with pytest.raises(SystemExit):
        main(["report"])
    table = capsys.readouterr().out.splitlines()
    assert table[2].split()[:3] == ["USER", "HELD", "ACTIVE"]
    assert "0.86 h" in table[3]
    assert "kWh" in table[3]
    with pytest.raises(SystemExit):
        main(["report", "--format", "csv"])
    assert "0.8600" in capsys.readouterr().out


@pytest.mark.long
def test_up_on_a_terminal_ends_its_start_with_the_next_thing_to_do(tmp_path: Path) -> None:
    places = {"STATE_DIRECTORY": str(tmp_path), "RUNTIME_DIRECTORY": str(tmp_path)}
    arguments = ("up", "--simulate", "lab", "--listen", "127.0.0.1:0")
    status, shown = in_terminal(100, *arguments, environment=places, until="next: ")
    assert status == 0, shown
    last = next(line for line in shown.splitlines() if line.startswith("next: "))
    assert re.fullmatch(r"next: open http://127\.0\.0\.1:\d+/ in a browser", last), shown
