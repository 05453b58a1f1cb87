"""`gpucommons top`: its rows, its keys through the pilot of textual, and once in a real terminal."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest
from textual.binding import Binding
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

from browser import demo_agent
from demo_node import DemoNode
from gpucommons.agent.agent import Agent
from gpucommons.base.processes import start_ticks
from gpucommons.cli.agent_client import AgentAddress, named_address
from gpucommons.cli.command_line import CommandError
from gpucommons.cli.one_sample import api_document, take_sample
from gpucommons.cli.reader import local_urls
from gpucommons.cli.top import check_choice, several_feeds
from gpucommons.cli.top_app import Page, Top
from gpucommons.cli.top_feed import MEMORY, UTILIZATION, AgentFeed, FeedUpdate, LocalFeed, Recent
from gpucommons.cli.top_options import EVERY_GPU, GpuChoice, Look, choice_of, restrict
from gpucommons.cli.top_orders import environment_lines, refusal, send_signal
from gpucommons.cli.top_rows import GPU_COLUMNS, gpu_rows, owner_rows, queue_rows, turn_rows
from gpucommons.cli.top_table import arrange, duration, fit_columns, graph, size, spark
from gpucommons.cli.top_view import TABS, HostUse, host_use, process_rows
from gpucommons.config.settings import Settings
from gpucommons.model.snapshot import Readings
from gpucommons.model.viewer import Viewer
from gpucommons.simulation.scenarios import SCENARIOS
from needs import needs_program
from played import Played, snapshot_of
from running import command, running_agent
from users import as_user
from waiting import until

NODE = DemoNode(lost=7, hot=5)


def document_of(node: DemoNode = NODE, seconds: int = 3) -> Any:
    return Played(node).play(seconds).get("snapshot")


class QueueFeed:
    """Yields what the test puts."""

    is_local = True

    def __init__(self, played: Played | None = None, where: str = "the test") -> None:
        self.where = where
        self._queue: asyncio.Queue[FeedUpdate] = asyncio.Queue()
        self._played = played

    async def ask(self, name: str, parameters: Mapping[str, str]) -> Mapping[str, Any] | None:
        query = "&".join(f"{key}={value}" for key, value in parameters.items())
        found: Mapping[str, Any] | None = self._played.get(f"{name}?{query}") if self._played else None
        return found

    def put(self, update: FeedUpdate) -> None:
        self._queue.put_nowait(update)

    async def updates(self) -> AsyncGenerator[FeedUpdate, None]:
        while True:
            yield await self._queue.get()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await scenario

    asyncio.run(bounded())


def cells(app: Top, id: str = "rows") -> list[list[str]]:
    table = app.query_one(f"#{id}", DataTable)
    return [[cell.plain for cell in table.get_row(key)] for key in table.rows]


def text_of(app: Top, id: str) -> str:
    return str(app.query_one(f"#{id}", Static).render())


async def shown(pilot: Pilot[None], id: str = "rows") -> None:
    """Wait until the table has rows."""
    while not pilot.app.query_one(f"#{id}", DataTable).row_count:
        await pilot.pause()


# Rows.


def test_every_view_fits_into_eighty_columns() -> None:
    for columns in (GPU_COLUMNS, *(tab.columns for tab in TABS.values())):
        assert sum(column.width + 2 for column in columns if column.width) <= 78
        assert any(column.most or column.whole for column in columns)
        widths = fit_columns(columns, 120)
        assert sum(2 + (width or 0) for width in widths.values()) <= 78 + 120
    assert fit_columns(GPU_COLUMNS, 0)["Owner"] == 8
    assert fit_columns(GPU_COLUMNS, 20) == {**fit_columns(GPU_COLUMNS, 0), "Owner": 26}
    assert "Owner" not in fit_columns(GPU_COLUMNS, -12), "a node's name takes its place"


def test_rows_have_the_values_of_the_document() -> None:
    document = document_of()
    gpus = {row.cells[0].rstrip("!"): row for row in gpu_rows(document, {})}
    card = next(gpu for gpu in document["gpus"]["by_uuid"].values() if gpu["index"] == 1)
    filled = round(5 * card["utilization_ratio"])
    bar = "█" * filled + "░" * (5 - filled)
    assert gpus["1"].cells[5:7] == ("bob", "busy")
    assert gpus["1"].cells[1] == f"{bar} {round(100 * card['utilization_ratio']):3} %"
    assert gpus["1"].cells[3] == f"{card['power_watts']:.0f} W"
    assert gpus["7"].cells[1] == "LOST"
    assert gpus["7"].colour == "bold red"
    assert gpus["5"].colour, "it is hot"
    assert gpus["5"].cells[0] == "5!"
    assert not gpus["1"].colour
    owners = {row.key: row for row in owner_rows(document)}
    alice = document["who"]["owners"]["user/1000"]
    assert owners["user/1000"].cells == (
        "alice",
        size(alice["memory_bytes"]),
        f"~{100 * alice['sm_ratio']:.0f} %",
        f"~{alice['power_watts']:.0f} W",
        "12.6 h",
        "0 4",
    )
    bars = {len(cell) for row in gpus.values() for cell in row.cells[1:3] if cell[0] in "█░"}
    assert bars == {len("█████ 100 %"), len("█████ 140/140 G")}, "the bars of a column begin in one place"
    assert "rest/no_owner" in owners
    assert "rest/rounding" not in owners, "a row of zeros is left out"
    assert len(process_rows(document)) == len(document["who"]["processes"])
    turns = turn_rows(document)
    assert [row.cells[1] for row in turns] == ["0", "0", "0", "1", "1", "1", "0"]
    assert turns[-1].cells[2].startswith("parked")
    assert turns[0].cells[2].startswith("runs")
    assert "another client has the turn" in turns[1].cells[2]


def test_clients_on_mig_devices_have_the_name_of_their_slot() -> None:
    document = document_of()
    turns = json.loads(json.dumps(document["turns"]))
    (first, second) = list(turns["gpus"].values())[:2]
    first["slot"], second["slot"] = "6.1", "6"
    rows = turn_rows({"turns": turns})
    assert [row.cells[1] for row in rows] == ["6"] * 3 + ["6.1"] * 3 + ["6.1"]


def test_what_the_viewer_may_not_see_is_hidden_and_not_absent() -> None:
    async def scenario() -> None:
        feed = QueueFeed()
        app = Top([feed])
        async with app.run_test(size=(80, 24)) as pilot:
            feed.put(FeedUpdate(Played(NODE).play(3).get("snapshot", Viewer(False)), {}))
            await shown(pilot, "gpus")
            assert text_of(app, "note").startswith("0, rest hidden")
            assert "1 hidden" in {row[5] for row in cells(app, "gpus")}

    run(scenario())


def test_a_node_without_readings_has_no_rows() -> None:
    played = Played()
    played.show(snapshot_of(Readings()))
    document = played.get("snapshot")
    assert gpu_rows(document, {}) == owner_rows(document) == process_rows(document) == turn_rows(document) == []


def test_control_characters_in_names_are_escaped() -> None:
    document = document_of(DemoNode(hostile=True))
    for rows in (owner_rows(document), process_rows(document), turn_rows(document), gpu_rows(document, {})):
        assert all(cell.isprintable() for row in rows for cell in row.cells)


def test_rows_are_sorted_and_filtered() -> None:
    rows = owner_rows(document_of())
    memory = [row.sort[1] for row in arrange(rows, "", 1, True)]
    known = [value for value in memory if value is not None]
    assert known == sorted(known, key=float, reverse=True)
    assert memory[len(known) :] == [None] * (len(memory) - len(known)), "rows without a reading come last"
    assert [row.sort[1] for row in arrange(rows, "", 1, False)][: len(known)] == known[::-1]
    assert [row.key for row in arrange(rows, " ALI ", 1, True)] == ["user/1000"]
    assert arrange(rows, "no such name", 1, True) == []


def test_sparks() -> None:
    assert spark([], 10) == ""
    assert spark([0.0, 0.5, 1.0], 3) == "▁▅█"
    assert spark([0.0, None, 2.0], 5) == "  ▁ █"
    assert len(spark([0.3] * 120, 15)) == 15
    assert spark([0.0, 1.0, None, None], 2) == "▅ "


@pytest.mark.parametrize(("seconds", "text"), [(-1, "0 s"), (59.4, "59 s"), (61, "1 min"), (7300, "2 h")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    "value", [(None, "-"), (0, "0 B"), (1023, "1.0 KiB"), (120 * 2**30, "120 GiB"), (2**50, "1024 TiB")]
)
def test_sizes(value: tuple[float | None, str]) -> None:
    assert size(value[0]) == value[1]


# The view, through its pilot.


def test_keys_choose_sort_reverse_filter_and_clear() -> None:
    async def scenario() -> None:
        feed = QueueFeed()
        app = Top([feed])
        async with app.run_test(size=(80, 24)) as pilot:
            feed.put(FeedUpdate(document_of(), {}))
            await shown(pilot)
            gpus = [row[0] for row in cells(app, "gpus") if "." not in row[0]]
            assert gpus == ["0", "1", "2", "3", "4", "5!", "6", "7!"]
            assert [row[0] for row in cells(app)] == sorted(row[0] for row in cells(app))
            table = app.query_one("#gpus", DataTable)
            rows = [table.get_row(key) for key in table.rows]
            styles = {row[0].plain: (row[6].plain, str(row[6].style)) for row in rows}
            assert (styles["0"], styles["7!"]) == (("busy", ""), ("lost", "bold red"))
            assert styles["6"] == ("free", "green")
            assert text_of(app, "note").startswith("16 by gpu ↑")
            await pilot.press("o")
            assert cells(app)[0][0] == "farah"
            assert "by memory ↓" in text_of(app, "note")
            await pilot.press("r")
            assert "by memory ↑" in text_of(app, "note")
            assert cells(app)[0][0].startswith("unattributed: driver")
            await pilot.press("s")
            assert "by sm ↓" in text_of(app, "note")
            await pilot.press("comma", "less_than_sign")
            assert "by owner ↑" in text_of(app, "note")
            await pilot.press("greater_than_sign", "full_stop")
            await pilot.press("slash", *"alice")
            assert [row[0] for row in cells(app)] == ["alice"]
            assert "filter: alice" in text_of(app, "note")
            await pilot.press("escape")
            assert len(cells(app)) > 5
            assert not app.query_one("#filter", Input).has_class("open")
            await pilot.press("1")
            assert len(cells(app)) == 16
            await pilot.press("w")
            assert [row[0] for row in cells(app)][:1] == ["research/alice-job"]
            await pilot.press("q")
        assert app.return_code == 0

    run(scenario())


@pytest.mark.long
def test_it_follows_the_feed_and_keeps_the_cursor_on_its_row() -> None:
    async def scenario() -> None:
        feed, played = QueueFeed(), Played(NODE).play(1)
        app = Top([feed])
        async with app.run_test(size=(80, 24)) as pilot:
            feed.put(FeedUpdate(played.get("snapshot"), {}))
            await shown(pilot)
            await pilot.press("o")
            table = app.query_one("#rows", DataTable)
            chosen = cells(app)[2][0]
            table.move_cursor(row=2)
            for second in range(1, 30):
                document = played.play(1, start_s=second).get("snapshot")
                feed.put(FeedUpdate(document))
            expected = [list(row.cells) for row in arrange(owner_rows(document), "", 1, True)]
            while cells(app) != expected:
                await pilot.pause()
            assert cells(app)[table.cursor_row][0] == chosen
            await pilot.resize_terminal(120, 24)
            await pilot.pause()
            assert cells(app, "gpus")[0][7].strip() != "", "the history is drawn"

    run(scenario())


def test_a_lost_agent_is_reported_and_its_last_values_stay() -> None:
    async def scenario() -> None:
        feed = QueueFeed()
        app = Top([feed])
        async with app.run_test(size=(80, 24)) as pilot:
            feed.put(FeedUpdate(None, lost="connection refused"))
            while "no agent answers" not in text_of(app, "head"):
                await pilot.pause()
            feed.put(FeedUpdate(document_of(), {}))
            await shown(pilot)
            feed.put(FeedUpdate(None, lost="gone"))
            while not text_of(app, "head").startswith("LOST"):
                await pilot.pause()
            assert len(cells(app)) > 5

    run(scenario())


def test_a_view_without_data_says_why() -> None:
    async def scenario() -> None:
        played = Played()
        played.show(snapshot_of(Readings()))
        feed = QueueFeed()
        app = Top([feed])
        async with app.run_test(size=(80, 24)) as pilot:
            feed.put(FeedUpdate(played.get("snapshot"), {}))
            while "are unknown" not in text_of(app, "note"):
                await pilot.pause()
            await pilot.press("w")
            assert "does not run" in text_of(app, "note")

    run(scenario())


def test_columns_grow_with_the_terminal() -> None:
    async def scenario() -> None:
        feed = QueueFeed()
        app = Top([feed])
        async with app.run_test(size=(160, 40)) as pilot:
            feed.put(FeedUpdate(document_of(DemoNode(hostile=True)), {}))
            await shown(pilot)
            await pilot.press("o")
            assert app.query_one("#rows", DataTable).columns["Owner"].width == 60  # type: ignore[index]
            await pilot.resize_terminal(80, 24)
            await pilot.pause()
            assert app.query_one("#rows", DataTable).columns["Owner"].width == 24  # type: ignore[index]

    run(scenario())


@pytest.mark.long
def test_help_details_events_and_queue() -> None:
    async def scenario() -> None:
        played = Played(NODE).play(3)
        feed = QueueFeed(played)
        app = Top([feed])
        async with app.run_test(size=(80, 24)) as pilot:
            feed.put(FeedUpdate(played.get("snapshot"), {}))
            await shown(pilot)
            assert "1 GPU lost (GPU 7) · 1 overheating (GPU 5)" in text_of(app, "sentence")
            await pilot.press("question_mark")
            assert "interrupt, terminate, kill" in page(app)
            assert max(map(len, page(app).splitlines())) <= 66, "no line is broken at 80 columns"
            await pilot.press("escape", "p")
            first = cells(app)[0]
            await pilot.press("enter")
            while not isinstance(app.screen, Page):
                await pilot.pause()
            assert page(app).splitlines()[0].startswith(first[8]), "the whole command"
            assert f"pid {first[1]} on " in page(app)
            assert "owner: " in page(app)
            await pilot.press("escape", "e")
            assert "by" not in text_of(app, "note")
            assert [str(column.label) for column in app.query_one("#rows", DataTable).columns.values()][1] == "Type"
            await pilot.press("enter")
            while not isinstance(app.screen, Page):
                await pilot.pause()
            assert re.search(r"^Type +\w+", page(app), re.MULTILINE), "the whole event"
            await pilot.press("escape", "u")
            assert app.query_one("#bar-queue").has_class("chosen")
            assert cells(app)[0][0] == "lease"
            await pilot.press("exclamation_mark")
            assert any("GPU 7" in row[1] for row in cells(app))
            await pilot.press("shift+tab", "enter")
            while not isinstance(app.screen, Page):
                await pilot.pause()
            assert page(app).startswith("GPU 0  NVIDIA")
            assert "UUID         GPU-" in page(app)

    run(scenario())


def page(app: Top) -> str:
    return str(app.screen.query_one("#page", Static).render())


@pytest.mark.long
def test_a_process_is_ended_after_a_question_and_only_with_the_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real process takes the place of one in the document."""
    sleeper = subprocess.Popen(["sleep", "600"])
    ticks = start_ticks(Path(f"/proc/{sleeper.pid}/stat").read_bytes())
    document = json.loads(json.dumps(document_of()))
    key, row = next(iter(document["who"]["processes"].items()))
    mine = f"{row['gpu_uuid']}/{sleeper.pid}/{ticks}"
    document["who"]["processes"] = {mine: {**row, "pid": sleeper.pid, "uid": os.geteuid(), "memory_bytes": 2**40}}
    document["simulated"] = None
    stranger = {**row, "uid": 12345}
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "only its user or root" in refusal(stranger, key)
    assert refusal({**row, "uid": 1000}, mine) == ""
    monkeypatch.undo()
    assert send_signal(f"GPU-x/{sleeper.pid}/{ticks + 1}", signal.SIGKILL) == f"pid {sleeper.pid} has ended", "reused"

    async def scenario() -> None:
        feed = QueueFeed()
        app = Top([feed])
        async with app.run_test(size=(80, 24)) as pilot:
            feed.put(FeedUpdate(document, {}))
            await shown(pilot)
            for elsewhere, reason in ((True, "the node is simulated"), (False, "run top there")):
                feed.put(FeedUpdate({**document, "simulated": "lab" if elsewhere else None}))
                feed.is_local = elsewhere
                await pilot.pause(0.2)
                await pilot.press("p", "T", "P")
                assert not app.screen.query("#question")
                notes = [note.message for note in app._notifications]
                assert sum(reason in note for note in notes) == 2, notes
            feed.is_local = True
            feed.put(FeedUpdate(document))
            await pilot.pause(0.2)
            await pilot.press("p", "T")
            assert f"Send SIGTERM to pid {sleeper.pid}" in str(app.screen.query_one("#question", Static).render())
            await pilot.press("n")
            assert sleeper.poll() is None
            await pilot.press("T", "y")
            while sleeper.poll() is None:
                await pilot.pause()
            await pilot.press("ctrl+c")
        assert app.return_code == 0

    try:
        run(scenario())
        assert sleeper.returncode == -signal.SIGTERM
    finally:
        sleeper.kill()
        sleeper.wait()


def test_processes_have_their_part_of_the_host() -> None:
    before = {"time_unix_s": 100.0, "host_use": {"a": {"cpu_seconds": 10.0, "rss_bytes": 5, "start_unix_s": 40.0}}}
    now = {
        "time_unix_s": 102.0,
        "host_use": {
            "a": {"cpu_seconds": 13.0, "rss_bytes": 6, "start_unix_s": 40.0},
            "b": {"cpu_seconds": None, "rss_bytes": None, "start_unix_s": None},
        },
    }
    assert host_use(before, now) == {"a": HostUse(1.5, 6, 62.0), "b": HostUse()}
    _, snapshot = take_sample(None, "lab", None)
    document = api_document(snapshot, "who")
    row = next(row for row in process_rows(document, host_use(None, document)) if row.cells[1] == "4100")
    assert row.cells[2] == "alice"
    assert row.cells[6].endswith("GiB")
    assert row.cells[7] != "-"
    assert row.cells[8] == "python train.py --rank 0"
    found = next(found for found in document["who"]["processes"].values() if found["pid"] == 4100)
    older = {name: value for name, value in found.items() if name != "command"} | {"name": "python3"}
    (row,) = process_rows({"who": {"processes": {"a": older}}})
    assert row.cells[8] == "python3", "an agent of an older release sends no command"


def test_queue_rows() -> None:
    lease = {"user": "alice", "slots": ["0", "1"], "since_unix_s": 0.0, "name": "train"}
    request = {
        "user": "bob",
        "position": 1,
        "gpus": 2,
        "since_unix_s": 60.0,
        "expected_start_unix_s": 720.0,
        "sentence": "every GPU is in use",
    }
    queue = {"leases": {"7": lease}, "waiting": {"8": request}}
    rows = queue_rows({"queue": queue, "time_unix_s": 120.0})
    assert [row.cells for row in rows] == [
        ("lease", "7", "alice", "0,1", "2 min", "", "train"),
        ("1", "8", "bob", "2", "1 min", "~10 min", "every GPU is in use"),
    ]
    assert queue_rows({"queue": None, "time_unix_s": 0.0}) == []


def test_a_tree_has_the_processes_below_their_job_and_sums() -> None:
    _, snapshot = take_sample(None, "lab", None)
    who = api_document(snapshot, "who")
    rows = arrange(process_rows(who, host_use(None, who), tree=True), "", 3, True)
    commands = [str(row.cells[8]) for row in rows]
    at = commands.index("container train-vit")
    ranks = commands[at + 1 : at + 4]
    assert [command[:3] for command in ranks] == ["├─ ", "├─ ", "└─ "]
    assert sorted(command[3:] for command in ranks) == [f"python train.py --rank {rank}" for rank in range(3)]
    parent, children = rows[at], rows[at + 1 : at + 4]
    assert parent.cells[:3] == ("0+", "3 pids", "alice")
    for column in (3, 4, 6):
        known = [row.sort[column] for row in children]
        assert parent.sort[column] == pytest.approx(sum(float(value or 0) for value in known))
    assert {"job 48213", "pod inference/ray-worker-0", "unit ollama.service"} <= set(commands)
    assert "python eval.py" in commands, "a process of a session stands alone"
    found = [row.cells[8] for row in arrange(process_rows(who, tree=True), "rank 1", 3, True)]
    assert found == ["container train-vit", "└─ python train.py --rank 1"]
    assert len(arrange(process_rows(who, tree=True), "train-vit", None, True)) == 4


def test_a_process_on_two_gpus_counts_once_on_the_host() -> None:
    document = json.loads(json.dumps(document_of()))
    key, row = next(iter(document["who"]["processes"].items()))
    twice = {key: {**row, "job": "7"}, f"{key}b": {**row, "job": "7", "gpu_index": 1, "slot": "1"}}
    document["who"]["processes"] = twice
    parent = process_rows(document, dict.fromkeys(twice, HostUse(0.5, 2**30, 60.0)), tree=True)[0]
    assert parent.cells[5:8] == ("50", "1.0 GiB", "1 min")
    assert parent.sort[3] == 2 * row["memory_bytes"]


def test_graphs() -> None:
    assert graph([0.0, 0.5, 1.0], 3, 2) == ["  █", "▁██"]
    assert graph([None, 1.0], 4, 1) == ["   █"], "a gap is empty, and the newest value is at the right"
    assert [len(line) for line in graph([0.5] * 600, 37, 6)] == [37] * 6
    assert graph([], 3, 2) == ["   ", "   "]


@pytest.mark.long
def test_the_graph_follows_the_chosen_gpu_and_the_tree_is_switched() -> None:
    async def scenario() -> None:
        played = Played(NODE).play(3)
        document = played.get("snapshot")
        uuids = sorted(document["gpus"]["by_uuid"], key=lambda uuid: document["gpus"]["by_uuid"][uuid]["index"])
        recent: Recent = {UTILIZATION: {uuids[1]: [1.0] * 300}, MEMORY: {uuids[1]: [None] * 300}}
        feed = QueueFeed(played)
        app = Top([feed])
        async with app.run_test(size=(100, 30)) as pilot:
            feed.put(FeedUpdate(document, recent))
            await shown(pilot)
            assert not app.query_one("#graph").has_class("open")
            await pilot.press("g")
            assert text_of(app, "graph").startswith("GPU 0 utilisation")
            await pilot.press("shift+tab", "down")
            while not text_of(app, "graph").startswith("GPU 1 utilisation"):
                await pilot.pause()
            assert "last 5 min" in text_of(app, "graph")
            assert "█" in text_of(app, "graph").splitlines()[1]
            await pilot.press("t")
            assert "tree" in text_of(app, "note")
            assert any(row[8].startswith("└─ ") for row in cells(app))
            await pilot.press("t", "g")
            assert "tree" not in text_of(app, "note")
            assert not app.query_one("#graph").has_class("open")
            await pilot.resize_terminal(100, 50)
            await pilot.pause()
        tall = Top([feed])
        async with tall.run_test(size=(100, 50)) as pilot:
            feed.put(FeedUpdate(document, recent))
            await shown(pilot)
            assert tall.query_one("#graph").has_class("open"), "where there is room"

    run(scenario())


@pytest.mark.long
def test_the_mouse_chooses_a_tab_sorts_and_opens_a_row() -> None:
    async def scenario() -> None:
        played = Played(NODE).play(3)
        feed = QueueFeed(played)
        app = Top([feed])
        async with app.run_test(size=(100, 40)) as pilot:
            feed.put(FeedUpdate(played.get("snapshot"), {}))
            await shown(pilot)
            await pilot.click("#bar-owners")
            assert app.query_one("#bar-owners").has_class("chosen")
            await pilot.click("#bar-processes")
            await pilot.click("#rows", offset=(8, 0))
            assert "by pid ↓" in text_of(app, "note")
            await pilot.click("#rows", offset=(8, 2))
            assert app.query_one("#rows", DataTable).cursor_row == 1
            chosen = cells(app)[1][1]
            await pilot.click("#rows", offset=(8, 2))
            while not isinstance(app.screen, Page):
                await pilot.pause()
            assert f"pid {chosen} on " in page(app)

    run(scenario())


@pytest.mark.long
def test_several_nodes_and_one_that_does_not_answer() -> None:
    async def scenario() -> None:
        played = Played(NODE).play(3)
        document = played.get("snapshot")
        feeds = [QueueFeed(played, "a:1"), QueueFeed(played, "b:1"), QueueFeed(None, "c:1")]
        app = Top(feeds)
        async with app.run_test(size=(120, 40)) as pilot:
            feeds[0].put(FeedUpdate({**document, "hostname": "gpu-a"}, {}))
            feeds[1].put(FeedUpdate({**document, "hostname": "gpu-b"}, {}))
            feeds[2].put(FeedUpdate(None, lost="Connection refused"))
            while "gpu-b: 1 GPU lost" not in text_of(app, "sentence") or "c:1: no answer" not in text_of(
                app, "sentence"
            ):
                await pilot.pause()
            assert "c:1: no answer: Connection refused" in text_of(app, "sentence")
            assert "3 nodes · 1 without an answer" in text_of(app, "head")
            assert len(cells(app)) == 32
            assert {row[0] for row in cells(app)} == {row[0] for row in cells(app, "gpus")} == {"gpu-a", "gpu-b"}
            await pilot.press("slash", *"gpu-b")
            assert {row[0] for row in cells(app)} == {"gpu-b"}
            await pilot.press("escape", "o")
            assert len(cells(app)) == 2 * len(owner_rows(document))
            feeds[1].put(FeedUpdate(None, lost="gone"))
            while "gpu-b: no answer: gone" not in text_of(app, "sentence"):
                await pilot.pause()
            assert {row[0] for row in cells(app)} == {"gpu-a", "gpu-b (lost)"}, "its last values stay, and are marked"

    run(scenario())


def test_two_nodes_with_one_name_are_called_by_their_addresses() -> None:
    async def scenario() -> None:
        played = Played(NODE).play(3)
        feeds = [QueueFeed(played, "a:1"), QueueFeed(played, "b:1")]
        app = Top(feeds)
        async with app.run_test(size=(80, 24)) as pilot:
            for feed in feeds:
                feed.put(FeedUpdate(played.get("snapshot"), {}))
            while {row[0] for row in cells(app, "gpus")} != {"a:1", "b:1"}:
                await pilot.pause()

    run(scenario())


# Feeds.


@pytest.mark.long
def test_the_stream_of_an_agent_is_followed_and_its_loss_reported(tmp_path: Path) -> None:
    async def first_two(feed: AgentFeed) -> list[FeedUpdate]:
        found = []
        async for update in feed.updates():
            found.append(update)
            if len(found) == 2:
                break
        return found

    socket = tmp_path / "api.sock"
    with demo_agent("--interval", "0.3", "--socket", str(f"unix:{socket}")) as url:
        for where in (url, f"unix:{socket}"):
            whole, delta = asyncio.run(first_two(AgentFeed(AgentAddress(where))))
            assert whole.document is not None
            assert delta.document is not None
            assert delta.document["sequence"] == whole.document["sequence"] + 1
            assert delta.document["gpus"]["by_uuid"].keys() == whole.document["gpus"]["by_uuid"].keys()
            assert whole.recent is not None
            for series in (UTILIZATION, MEMORY):
                assert set(whole.recent[series]) == set(whole.document["gpus"]["by_uuid"])
    lost, again = asyncio.run(first_two(AgentFeed(AgentAddress(url))))
    assert lost.document is None
    assert lost.lost in ("Connection refused", "No such file or directory")
    assert again.document is None


@pytest.mark.long
def test_of_several_nodes_one_that_answers_is_enough() -> None:
    dead = AgentAddress("http://127.0.0.1:1")
    with demo_agent() as url:
        feeds = several_feeds([dead, AgentAddress(url)])
        assert [feed.where for feed in feeds] == [dead.url, url]
    done = command("top", "--connect", "http://127.0.0.1:1", "--connect", "http://127.0.0.1:2")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert done.stderr.count("Connection refused") == 2


@pytest.mark.parametrize("url", ["", "gpu1:9460", "ftp://x", "http://", "unix:api.sock"])
def test_a_wrong_url_is_one_line(url: str) -> None:
    with pytest.raises(CommandError) as caught:
        named_address(url, None, None)
    assert "\n" not in str(caught.value)


def test_a_wrong_url_on_the_command_line_is_one_line() -> None:
    done = command("top", "--connect", "gpu1:9460")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--connect: invalid URL 'gpu1:9460'" in done.stderr


def test_an_agent_that_does_not_answer_at_the_start_is_one_line() -> None:
    done = command("top", "--connect", "http://127.0.0.1:1")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "no answer of the agent: http://127.0.0.1:1: Connection refused" in done.stderr


def test_without_an_agent_it_samples_this_machine() -> None:
    async def scenario() -> None:
        app = Top([LocalFeed(Agent(Settings(), SCENARIOS["lab"]))])
        async with app.run_test(size=(80, 24)) as pilot:
            await shown(pilot, "gpus")
            assert "SIMULATED lab" in text_of(app, "head")
            # The first 24 lines.
            assert "3 free (GPU 7.3, 7.4, 7.5)" in text_of(app, "sentence")
            assert "held idle (longest emeka, " in text_of(app, "sentence")
            assert len(cells(app, "gpus")) == 8 + 11

    run(scenario())


def test_the_url_of_a_local_listener() -> None:
    assert local_urls("127.0.0.1:9460") == ["http://127.0.0.1:9460"]
    assert local_urls(":9460") == ["http://127.0.0.1:9460"]
    assert local_urls("0.0.0.0:1") == ["http://127.0.0.1:1"]
    assert local_urls("[::1]:9460") == ["http://[::1]:9460"]
    assert local_urls("unix:/run/x.sock") == ["unix:/run/x.sock"]
    assert local_urls("127.0.0.1:0") == local_urls("") == []


# A real terminal.


def tmux(*arguments: str) -> str:
    done = subprocess.run(["tmux", "-L", "gpucommons-test", *arguments], capture_output=True, text=True, timeout=30)
    return done.stdout


def until_the_screen_shows(pattern: str) -> str:
    try:
        found = until(
            lambda: re.search(pattern, tmux("capture-pane", "-p"), re.MULTILINE), f"the screen shows {pattern}"
        )
    except AssertionError as late:
        late.add_note(tmux("capture-pane", "-p"))
        raise
    return found.string


@pytest.mark.long
def test_in_a_real_terminal_of_80_by_24() -> None:
    needs_program("tmux")
    with running_agent("--simulate", "faults") as agent:
        # cat keeps the session open after the command, to see how it left the terminal.
        line = f"{sys.executable} -m gpucommons top --connect {agent.url}; echo left=$?; exec cat"
        environment = f"PYTHONPATH={':'.join(filter(None, sys.path))}"
        tmux("new-session", "-d", "-x", "80", "-y", "24", "-e", environment, "sh", "-c", line)
        try:
            screen = until_the_screen_shows(r"^ 5!? .*/140 G")
            assert "SIMULATED faults" in screen
            assert len(screen.splitlines()) == 24
            gpus = json.loads(agent.get("/api/v1/gpus")[1])["gpus"]["by_uuid"]
            hot = next(gpu for gpu in gpus.values() if gpu["index"] == 1)
            assert re.search(rf"^ 1! .* {hot['temperature_celsius']} °C", screen, re.MULTILINE)
            # What matters is on the first screen.
            screen = until_the_screen_shows(r"1 GPU lost \(GPU 3\)")
            assert "1 overheating (GPU 1)" in screen
            until_the_screen_shows(r"\d free \(GPU 7\.")
            until_the_screen_shows(r"held idle \(longest \w+, ")
            tmux("send-keys", "w")
            until_the_screen_shows("does not run|Client")
            tmux("send-keys", "o", "/")
            until_the_screen_shows("^ / Filter|^ filter")
            tmux("send-keys", "-l", "nothing")
            until_the_screen_shows("^ nothing")
            tmux("send-keys", "Escape")
            # A key directly after Escape would be read as one sequence with it.
            until(lambda: not re.search("^ nothing", tmux("capture-pane", "-p"), re.MULTILINE), "the filter is gone")
            tmux("send-keys", "q")
            until_the_screen_shows("^left=0")
        finally:
            tmux("kill-server")


# The options: which GPUs, which characters and colours.


def lab_document() -> Any:
    return api_document(take_sample(None, "lab", None)[1], "snapshot", {})


def test_only_the_chosen_gpus_are_shown_in_every_tab() -> None:
    document = lab_document()
    uuids = {str(gpu["index"]): uuid for uuid, gpu in document["gpus"]["by_uuid"].items()}
    for names in (("0", "4"), (uuids["0"], uuids["4"][:12].lower())):
        shown = restrict(document, GpuChoice(names))
        assert [row.cells[0] for row in gpu_rows(shown, {})] == ["0", "4"]
        assert {row.cells[0] for row in process_rows(shown)} == {"0", "4"}
        assert {row.key for row in owner_rows(shown) if "rest" not in row.key} == {
            key for key, owner in document["who"]["owners"].items() if owner["by_gpu"].keys() & {uuids["0"], uuids["4"]}
        }
    alice = next(row for row in owner_rows(restrict(document, GpuChoice(("0",)))) if row.cells[0] == "alice")
    part = document["who"]["owners"][alice.key]["by_gpu"][uuids["0"]]
    assert alice.sort[1:4] == (part["memory_bytes"], part["sm_ratio"], part["power_watts"]), "sums of the chosen GPUs"
    assert restrict(document, EVERY_GPU) is document


def test_a_mig_device_is_shown_below_its_gpu_with_its_processes_alone() -> None:
    shown = restrict(lab_document(), GpuChoice(("6.0",)))
    assert [row.cells[0] for row in gpu_rows(shown, {})] == ["6", " 6.0"]
    assert [row.cells[0] for row in process_rows(shown)] == ["6.0"]
    whole = restrict(lab_document(), GpuChoice(("6",)))
    assert [row.cells[0] for row in gpu_rows(whole, {})] == ["6", " 6.0", " 6.1", " 6.2", " 6.3"]


def test_turns_and_problems_of_other_gpus_are_left_out() -> None:
    document = document_of()
    assert {row.cells[1] for row in turn_rows(restrict(document, GpuChoice(("1",))))} == {"1"}
    lost = {problem["gpu_uuid"] for problem in document["problems"].values()} - {None}
    assert lost
    first = next(uuid for uuid, gpu in document["gpus"]["by_uuid"].items() if gpu["index"] == 0)
    kept = restrict(document, GpuChoice(("0",)))["problems"].values()
    assert {problem["gpu_uuid"] for problem in kept} <= {None, first}
    assert lost - {first}


@pytest.mark.parametrize(
    ("only", "environment", "names"),
    [
        ([], {}, ()),
        (["0,1", "6.0"], {}, ("0", "1", "6.0")),
        (["all"], {"CUDA_VISIBLE_DEVICES": "GPU-a"}, ()),
        (["2"], {"CUDA_VISIBLE_DEVICES": "GPU-a"}, ("2",)),
        ([], {"CUDA_VISIBLE_DEVICES": "GPU-a,MIG-b"}, ("GPU-a", "MIG-b")),
        # A number is CUDA's, unless CUDA numbers as the driver does.
        ([], {"CUDA_VISIBLE_DEVICES": "1"}, ()),
        ([], {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, ("1",)),
        ([], {"CUDA_VISIBLE_DEVICES": ""}, ()),
        ([], {"CUDA_VISIBLE_DEVICES": "-1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, ()),
    ],
)
def test_the_choice_is_that_of_the_option_else_of_the_variable(
    only: list[str], environment: dict[str, str], names: tuple[str, ...]
) -> None:
    assert choice_of(only, environment).names == names


def test_a_gpu_that_the_node_does_not_have_is_an_error() -> None:
    document = lab_document()
    with pytest.raises(CommandError, match=r"-o 9: the node has no such GPU; it has 0, 1, 2, 3, 4, 5, 6, 6\.0, "):
        check_choice(document, choice_of(["0,9"], {}))
    elsewhere = choice_of([], {"CUDA_VISIBLE_DEVICES": "GPU-ffffffff"})
    assert check_choice(document, elsewhere) == EVERY_GPU, "the variable may mean another machine's"


def test_the_key_a_shows_every_gpu_and_the_chosen_ones_again() -> None:
    async def scenario() -> None:
        feed = QueueFeed()
        app = Top([feed], choice=GpuChoice(("1",), "-o"))
        async with app.run_test(size=(120, 30)) as pilot:
            feed.put(FeedUpdate(document_of()))
            await shown(pilot)
            assert [row[0] for row in cells(app, "gpus")] == ["1"]
            assert {row[0] for row in cells(app)} == {"1"}
            assert "only GPU 1 (a: all)" in text_of(app, "head")
            await pilot.press("a")
            assert len(cells(app, "gpus")) > 1
            assert "only GPU" not in text_of(app, "head")
            await pilot.press("a")
            assert [row[0] for row in cells(app, "gpus")] == ["1"]

    run(scenario())


def screen_text(app: Top) -> str:
    return "\n".join("".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips())


@pytest.mark.long
def test_the_ascii_mode_has_no_other_character() -> None:
    async def scenario() -> None:
        feed = QueueFeed()
        app = Top([feed], look=Look(is_ascii=True))
        async with app.run_test(size=(120, 45)) as pilot:
            feed.put(FeedUpdate(document_of(DemoNode(lost=7, hot=5, hostile=True)), recent_of([0.1, 0.9, None])))
            await shown(pilot)
            screens = set()
            for key in ("p", "t", "o", "w", "u", "e", "exclamation_mark", "g", "question_mark"):
                await pilot.press(key)
                await pilot.pause()
                found = screen_text(app)
                assert "GPU" in found, key
                assert sorted({character for character in found if not character.isascii()}) == [], key
                screens.add(found)
            assert len(screens) >= 6, "the keys lead to other screens"

    run(scenario())


def recent_of(values: list[float | None]) -> Recent:
    uuids = document_of()["gpus"]["by_uuid"]
    return {UTILIZATION: dict.fromkeys(uuids, values), MEMORY: {}}


def test_the_light_mode_has_dark_letters_on_a_light_screen() -> None:
    async def scenario() -> None:
        feed = QueueFeed()
        app = Top([feed], look=Look(is_light=True))
        async with app.run_test(size=(120, 30)) as pilot:
            feed.put(FeedUpdate(document_of()))
            await shown(pilot)
            assert app.screen.styles.background.brightness > 0.8
            colours = {
                str(cell.style) for key in app.query_one("#gpus", DataTable).rows for cell in gpu_cells(app, key)
            }
            assert colours & {"bold #a40e26"}, "GPU 7 is lost"
            assert not colours & {"yellow", "green", "bold red"}, "too bright on white"

    run(scenario())


def gpu_cells(app: Top, key: Any) -> Any:
    return app.query_one("#gpus", DataTable).get_row(key)


# The environment of a process.


def own_row(pid: int, uid: int | None = None) -> tuple[dict[str, Any], str]:
    started = start_ticks(Path(f"/proc/{pid}/stat").read_bytes())
    row = {"pid": pid, "uid": os.getuid() if uid is None else uid, "account": "alice"}
    return row, f"GPU-a/{pid}/{started}"


def test_the_environment_of_an_own_process_is_shown() -> None:
    with subprocess.Popen(["sleep", "60"], env={"EPOCHS": "3", "A": "line\nbreak"}) as process:
        until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n", "it runs")
        assert environment_lines(*own_row(process.pid)) == ["A=line\nbreak", "EPOCHS=3"]
        row, key = own_row(process.pid)
        with pytest.raises(CommandError, match="has ended"):
            environment_lines(row, f"{key}1")
        process.kill()
    with pytest.raises(CommandError, match="has ended"):
        environment_lines(row, key)


def test_the_environment_of_another_users_process_is_not_shown_to_root_either() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    needs_program("setpriv")
    with subprocess.Popen([*as_user(4711), "sleep", "60"], env={**os.environ, "TOKEN": "secret"}) as process:
        try:
            until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n", "it runs")
            for claimed in (4711, 0):
                with pytest.raises(CommandError, match=f"pid {process.pid} belongs to alice"):
                    environment_lines(*own_row(process.pid, claimed))
        finally:
            process.kill()


# The pages that list the keys.

DOCS = Path(__file__).resolve().parents[2] / "docs"
# The names of keys on the pages, where textual has others.
KEY_NAMES = {
    "full_stop": ".",
    "greater_than_sign": ">",
    "comma": ",",
    "less_than_sign": "<",
    "slash": "/",
    "question_mark": "?",
    "exclamation_mark": "!",
    "ctrl+c": "Ctrl-C",
    "escape": "Esc",
}
# Of the tables of textual, not of the app; Esc is on the pages where it clears the filter.
OF_TABLES = {"Tab", "Enter", "arrows", "1", "6"}
KEY = re.compile(r"`[^`]+`|Ctrl-C|Enter|Tab|arrows")


def keys_of_page(page: str, heading: str) -> set[str]:
    rows = (DOCS / page).read_text().partition(heading)[2].partition("\n\n")[0].splitlines()[1:]
    cells = [row.split(" | ")[0] for row in rows]
    return {key.removeprefix("`").removesuffix("`") for cell in cells for key in KEY.findall(cell)}


def test_the_pages_list_the_keys_that_there_are() -> None:
    bindings = [binding for binding in Top.BINDINGS if isinstance(binding, Binding)]
    bound = {KEY_NAMES.get(key, key) for binding in bindings for key in binding.key.split(",")}
    full = keys_of_page("commands.md", "\n| key | what it does | in nvitop |\n")
    assert full - OF_TABLES == bound - {str(number) for number in range(1, 7)} - {"Esc"}
    brief = keys_of_page("page.md", "\n| key | action |\n")
    assert {"p", "/", "q"} < brief <= full
