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
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

from browser import demo_agent
from demo_node import DemoNode
from gpucommons.agent.agent import Agent
from gpucommons.base.process_stat import start_ticks
from gpucommons.cli.agent_client import AgentAddress, named_address
from gpucommons.cli.command_line import CommandError
from gpucommons.cli.one_sample import api_document, take_sample
from gpucommons.cli.reader import local_urls
from gpucommons.cli.top_app import Top
from gpucommons.cli.top_dialogs import Page
from gpucommons.cli.top_feed import AgentFeed, FeedUpdate, LocalFeed
from gpucommons.cli.top_rows import (
    EVENT_COLUMNS,
    GPU_COLUMNS,
    OWNER_COLUMNS,
    PROCESS_COLUMNS,
    QUEUE_COLUMNS,
    TURN_COLUMNS,
    arranged,
    duration,
    gpu_rows,
    host_use,
    owner_rows,
    process_rows,
    queue_rows,
    size,
    spark,
    turn_rows,
)
from gpucommons.cli.top_signals import refusal, send_signal
from gpucommons.config.settings import Settings
from gpucommons.model.snapshot import Readings
from gpucommons.simulation.scenarios import SCENARIOS
from needs import needs_program
from played import Played, snapshot_of
from running import command, running_agent
from waiting import until

NODE = DemoNode(lost=7, hot=5)


def document_of(node: DemoNode = NODE, seconds: int = 3) -> Any:
    return Played(node).play(seconds).get("snapshot")


class QueueFeed:
    """Yields what the test puts."""

    where = "the test"
    is_local = True

    def __init__(self, played: Played | None = None) -> None:
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
    for columns in (GPU_COLUMNS, OWNER_COLUMNS, PROCESS_COLUMNS, TURN_COLUMNS, EVENT_COLUMNS, QUEUE_COLUMNS):
        assert sum(column.width + 2 for column in columns) <= 78
        assert sum(column.wide for column in columns) == 1


def test_rows_have_the_values_of_the_document() -> None:
    document = document_of()
    gpus = {row.cells[0].rstrip("!"): row for row in gpu_rows(document, {})}
    card = next(gpu for gpu in document["gpus"]["by_uuid"].values() if gpu["index"] == 1)
    filled = round(5 * card["utilization_ratio"])
    bar = "█" * filled + "░" * (5 - filled)
    assert gpus["1"].cells[1] == f"{bar} {round(100 * card['utilization_ratio'])} %"
    assert gpus["1"].cells[3] == f"{card['power_watts']:.0f} W"
    assert gpus["7"].cells[1] == "LOST"
    assert gpus["7"].grave
    assert gpus["5"].grave, "it is hot"
    assert gpus["5"].cells[0] == "5!"
    assert not gpus["1"].grave
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
    assert "rest/no_owner" in owners
    assert "rest/rounding" not in owners, "a row of zeros is left out"
    assert len(process_rows(document)) == len(document["who"]["processes"])
    turns = turn_rows(document)
    assert [row.cells[1] for row in turns] == ["0", "0", "0", "1", "1", "1", "0"]
    assert turns[-1].cells[2].startswith("parked")
    assert turns[0].cells[2].startswith("runs")
    assert "another client has the turn" in turns[1].cells[2]


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
    memory = [row.sort[1] for row in arranged(rows, "", 1, True)]
    known = [value for value in memory if value is not None]
    assert known == sorted(known, key=float, reverse=True)
    assert memory[len(known) :] == [None] * (len(memory) - len(known)), "rows without a reading come last"
    assert [row.sort[1] for row in arranged(rows, "", 1, False)][: len(known)] == known[::-1]
    assert [row.key for row in arranged(rows, " ALI ", 1, True)] == ["user/1000"]
    assert arranged(rows, "no such name", 1, True) == []


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
        app = Top(feed)
        async with app.run_test(size=(80, 24)) as pilot:
            feed.put(FeedUpdate(document_of(), {}))
            await shown(pilot)
            gpus = [row[0] for row in cells(app, "gpus") if "." not in row[0]]
            assert gpus == ["0", "1", "2", "3", "4", "5!", "6", "7!"]
            assert cells(app)[0][0] == "farah"
            assert "by memory ↓" in text_of(app, "note")
            await pilot.press("r")
            assert "by memory ↑" in text_of(app, "note")
            assert cells(app)[0][0].startswith("unattributed: driver")
            await pilot.press("s")
            assert "by sm ↓" in text_of(app, "note")
            await pilot.press("slash", *"alice")
            assert [row[0] for row in cells(app)] == ["alice"]
            assert "filter: alice" in text_of(app, "note")
            await pilot.press("escape")
            assert len(cells(app)) > 5
            assert not app.query_one("#filter", Input).has_class("open")
            await pilot.press("p")
            assert len(cells(app)) == 16
            await pilot.press("t")
            assert [row[0] for row in cells(app)][:1] == ["research/alice-job"]
            await pilot.press("q")
        assert app.return_code == 0

    run(scenario())


def test_it_follows_the_feed_and_keeps_the_cursor_on_its_row() -> None:
    async def scenario() -> None:
        feed, played = QueueFeed(), Played(NODE).play(1)
        app = Top(feed)
        async with app.run_test(size=(80, 24)) as pilot:
            feed.put(FeedUpdate(played.get("snapshot"), {}))
            await shown(pilot)
            table = app.query_one("#rows", DataTable)
            chosen = cells(app)[2][0]
            table.move_cursor(row=2)
            for second in range(1, 30):
                document = played.play(1, start_s=second).get("snapshot")
                feed.put(FeedUpdate(document))
            expected = [list(row.cells) for row in arranged(owner_rows(document), "", 1, True)]
            while cells(app) != expected:
                await pilot.pause()
            assert cells(app)[table.cursor_row][0] == chosen
            assert cells(app, "gpus")[0][6].strip() != "", "the history is drawn"

    run(scenario())


def test_a_lost_agent_is_reported_and_its_last_values_stay() -> None:
    async def scenario() -> None:
        feed = QueueFeed()
        app = Top(feed)
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
        app = Top(feed)
        async with app.run_test(size=(80, 24)) as pilot:
            feed.put(FeedUpdate(played.get("snapshot"), {}))
            while "are unknown" not in text_of(app, "note"):
                await pilot.pause()
            await pilot.press("t")
            assert "does not run" in text_of(app, "note")

    run(scenario())


def test_columns_grow_with_the_terminal() -> None:
    async def scenario() -> None:
        feed = QueueFeed()
        app = Top(feed)
        async with app.run_test(size=(160, 40)) as pilot:
            feed.put(FeedUpdate(document_of(DemoNode(hostile=True)), {}))
            await shown(pilot)
            assert app.query_one("#rows", DataTable).columns["Owner"].width == 24 + 80  # type: ignore[index]
            await pilot.resize_terminal(80, 24)
            await pilot.pause()
            assert app.query_one("#rows", DataTable).columns["Owner"].width == 24  # type: ignore[index]

    run(scenario())


def test_help_details_events_and_queue() -> None:
    async def scenario() -> None:
        played = Played(NODE).play(3)
        feed = QueueFeed(played)
        app = Top(feed)
        async with app.run_test(size=(80, 24)) as pilot:
            feed.put(FeedUpdate(played.get("snapshot"), {}))
            await shown(pilot)
            while "lost: GPU 7" not in text_of(app, "sentence"):
                await pilot.pause()
            await pilot.press("question_mark")
            assert "interrupt, terminate or kill" in page(app)
            await pilot.press("escape", "p")
            first = cells(app)[0]
            await pilot.press("enter")
            while not isinstance(app.screen, Page):
                await pilot.pause()
            assert page(app).startswith(f"pid {first[1]} on ")
            assert "owner: " in page(app)
            await pilot.press("escape", "e")
            assert "by" not in text_of(app, "note")
            assert [str(column.label) for column in app.query_one("#rows", DataTable).columns.values()][1] == "Type"
            await pilot.press("u")
            assert app.query_one("#bar-queue").has_class("chosen")

    run(scenario())


def page(app: Top) -> str:
    return str(app.screen.query_one("#page", Static).render())


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
    assert "only its user or root" in refusal(stranger, key, True)
    assert "run top there" in refusal({**row, "uid": 1000}, mine, False)
    assert refusal({**row, "uid": 1000}, mine, True) == ""
    monkeypatch.undo()
    assert send_signal(f"GPU-x/{sleeper.pid}/{ticks + 1}", signal.SIGKILL) == f"pid {sleeper.pid} has ended", "reused"

    async def scenario() -> None:
        feed = QueueFeed()
        app = Top(feed)
        async with app.run_test(size=(80, 24)) as pilot:
            feed.put(FeedUpdate(document, {}))
            await shown(pilot)
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
    assert host_use(before, now) == {
        "a": {"cpu_ratio": 1.5, "rss_bytes": 6, "age_s": 62.0},
        "b": {"cpu_ratio": None, "rss_bytes": None, "age_s": None},
    }
    _, snapshot = take_sample(None, "lab", None)
    document = api_document(snapshot, "who")
    row = next(row for row in process_rows(document, host_use(None, document)) if row.cells[1] == "4100")
    assert row.cells[2] == "alice"
    assert row.cells[6].endswith("GiB")
    assert row.cells[7] != "-"
    assert row.cells[8] == "python train.py --rank 0"


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
    rows = queue_rows({"leases": {"7": lease}, "waiting": {"8": request}}, 120.0)
    assert [row.cells for row in rows] == [
        ("lease", "7", "alice", "0,1", "2 min", "", "train"),
        ("1", "8", "bob", "2", "1 min", "~10 min", "every GPU is in use"),
    ]
    assert queue_rows(None, 0.0) == []


# Feeds.


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
            assert set(whole.recent) == set(whole.document["gpus"]["by_uuid"])
    lost, again = asyncio.run(first_two(AgentFeed(AgentAddress(url))))
    assert lost.document is None
    assert "Cannot connect" in lost.lost
    assert again.document is None


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
        app = Top(LocalFeed(Agent(Settings(), SCENARIOS["lab"])))
        async with app.run_test(size=(80, 24)) as pilot:
            await shown(pilot, "gpus")
            while not cells(app, "gpus")[0][6].strip():
                await pilot.pause()
            assert "SIMULATED lab" in text_of(app, "head")
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
            screen = until_the_screen_shows("1 lost: GPU 3")
            assert "1 overheating: GPU 1" in screen
            until_the_screen_shows(r"\d free")
            until_the_screen_shows(r"held idle, longest: \w+ on ")
            tmux("send-keys", "t")
            until_the_screen_shows("does not run|Client")
            tmux("send-keys", "o", "/")
            until_the_screen_shows("^ / Filter")
            tmux("send-keys", "-l", "nothing")
            until_the_screen_shows("^ nothing")
            tmux("send-keys", "Escape")
            # A key directly after Escape would be read as one sequence with it.
            until(lambda: not re.search("^ nothing", tmux("capture-pane", "-p"), re.MULTILINE), "the filter is gone")
            tmux("send-keys", "q")
            until_the_screen_shows("^left=0")
        finally:
            tmux("kill-server")
