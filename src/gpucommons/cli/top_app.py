"""The terminal app of `gpucommons top`: a sentence, two tables that follow the feed, and keys.

Slots, the queue and the host's part of the processes are asked for every two seconds; the rest comes with the feed.
"""

import asyncio
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.events import Resize
from textual.widget import Widget
from textual.widgets import DataTable, Footer, Input, Static

from gpucommons.base.printable import printable, printable_lines
from gpucommons.cli.gpus_view import sentence_parts
from gpucommons.cli.output import rich_text
from gpucommons.cli.top_dialogs import Confirm, Page
from gpucommons.cli.top_feed import RECENT_S, Feed, FeedUpdate
from gpucommons.cli.top_rows import (
    EVENT_COLUMNS,
    GPU_COLUMNS,
    OWNER_COLUMNS,
    PROCESS_COLUMNS,
    QUEUE_COLUMNS,
    SPARK_WIDTH,
    TURN_COLUMNS,
    Column,
    TopRow,
    arranged,
    event_rows,
    gpu_rows,
    head_line,
    host_use,
    owner_rows,
    process_rows,
    queue_rows,
    turn_rows,
)
from gpucommons.cli.top_signals import refusal, send_signal
from gpucommons.cli.who_view import explain

_NARROW = 80
_ASK_S = 2.0
_SECTIONS = {"owners": "who", "processes": "who", "turns": "turns", "events": "events"}
_HELP = """\
o p t e u   owners, processes, turns, events, queue
s r         sort by the next column, reverse
/           filter; Escape clears it
arrows      move; left and right scroll to the whole command
Enter       details of a process: how its owner was found
I T K       interrupt, terminate or kill the process, after a question: your own, as root any
?           this help
q Ctrl-C    quit
"""
_ABSENT = {
    "owners": "the processes of the GPUs are unknown",
    "processes": "the processes of the GPUs are unknown",
    "turns": "the scheduler does not run (start it with: gpucommons up --scheduler)",
    "events": "the agent keeps no event log",
    "queue": "the queue is not known: no agent answers",
}


@dataclass(frozen=True, slots=True)
class TopTab:
    title: str
    columns: tuple[Column, ...]
    rows: Callable[[Mapping[str, Any], "Asked"], list[TopRow]]
    sort: int | None


@dataclass(frozen=True, slots=True)
class Asked:
    """The documents that were asked for; None: no answer."""

    slots: Mapping[str, Any] | None = None
    queue: Mapping[str, Any] | None = None
    who: Mapping[str, Any] | None = None
    who_before: Mapping[str, Any] | None = None


TABS: Mapping[str, TopTab] = {
    "owners": TopTab("Owners", OWNER_COLUMNS, lambda document, _: owner_rows(document), 1),
    "processes": TopTab(
        "Processes",
        PROCESS_COLUMNS,
        lambda document, asked: process_rows(document, host_use(asked.who_before, asked.who) if asked.who else None),
        3,
    ),
    "turns": TopTab("Turns", TURN_COLUMNS, lambda document, _: turn_rows(document), None),
    "events": TopTab("Events", EVENT_COLUMNS, lambda document, _: event_rows(document), None),
    "queue": TopTab("Queue", QUEUE_COLUMNS, lambda _, asked: queue_rows(asked.queue, time.time()), None),
}


class Top(App[None]):
    TITLE = "gpucommons"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; }
    #head { height: 1; background: $primary; color: $text; padding: 0 1; text-style: bold; }
    #head.lost { background: $error; }
    #sentence { height: auto; max-height: 3; padding: 0 1; color: $warning; }
    #sentence.lost { color: $error; text-style: bold; }
    #gpus { height: auto; max-height: 50%; }
    #bar { height: 1; }
    #bar Static { width: auto; padding: 0 1; color: $text-muted; }
    #bar .chosen { color: $text; text-style: bold reverse; }
    #filter { height: 1; border: none; padding: 0 1; display: none; }
    #filter.open { display: block; }
    #rows { height: 1fr; }
    DataTable > .datatable--header { text-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("o", "choose('owners')", "Owners"),
        Binding("p", "choose('processes')", "Processes"),
        Binding("t", "choose('turns')", "Turns"),
        Binding("e", "choose('events')", "Events"),
        Binding("u", "choose('queue')", "Queue"),
        Binding("I", "signal('SIGINT')", "Interrupt", show=False),
        Binding("T", "signal('SIGTERM')", "Terminate", show=False),
        Binding("K", "signal('SIGKILL')", "Kill", show=False),
        Binding("s", "sort", "Sort", show=False),
        Binding("r", "reverse", "Reverse", show=False),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("escape", "clear", "Clear", show=False),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
    ]

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        self._feed = feed
        self._document: Mapping[str, Any] | None = None
        self._lost = ""
        self._recent: dict[str, deque[float | None]] = {}
        self._view = "owners"
        self._sort = TABS["owners"].sort
        self._down = True
        self._text = ""
        self._spare = 0
        self._asked = Asked()

    def compose(self) -> ComposeResult:
        yield Static(printable(f"connecting to {self._feed.where} ..."), id="head", markup=False)
        yield Static("", id="sentence", markup=False)
        yield DataTable(id="gpus", cursor_type="row")
        with Horizontal(id="bar"):
            for name, view in TABS.items():
                yield Static(printable(view.title), id=f"bar-{name}")
            yield Static("", id="note", markup=False)
        yield Input(placeholder="filter", id="filter")
        yield DataTable(id="rows", cursor_type="row")
        yield Footer()

    def on_mount(self) -> None:
        self._focus_on(self.query_one("#rows", DataTable))
        self.run_worker(self._follow())
        self.run_worker(self._keep_asking())

    async def _keep_asking(self) -> None:
        while True:
            slots, queue, who = [await self._feed.ask(name, {}) for name in ("slots", "queue", "who")]
            self._asked = Asked(
                slots["slots"] if slots else None, queue["queue"] if queue else None, who, self._asked.who
            )
            self._draw()
            await asyncio.sleep(_ASK_S)

    async def _follow(self) -> None:
        async for update in self._feed.updates():
            self._apply(update)
            self._draw()

    def _apply(self, update: FeedUpdate) -> None:
        self._lost = update.lost
        if update.document is None:
            return
        self._document = update.document
        if update.recent is not None:
            self._recent = {uuid: deque(values, RECENT_S) for uuid, values in update.recent.items()}
        for uuid, gpu in ((update.document["gpus"] or {}).get("by_uuid") or {}).items():
            self._recent.setdefault(uuid, deque(maxlen=RECENT_S)).append(gpu["utilization_ratio"])

    def on_resize(self, event: Resize) -> None:
        self._spare = max(0, event.size.width - _NARROW)
        self._lay_out()

    def _focus_on(self, widget: Widget) -> None:
        """Set the focus at once: widget.focus() is deferred and would undo what the next key does."""
        self.screen.set_focus(widget)

    # Keys.

    def action_choose(self, name: str) -> None:
        self._view, self._sort, self._down = name, TABS[name].sort, True
        self._lay_out()
        self._focus_on(self.query_one("#rows", DataTable))

    def action_sort(self) -> None:
        columns = TABS[self._view].columns
        self._sort = 0 if self._sort is None else (self._sort + 1) % len(columns)
        self._down = columns[self._sort].number
        self._draw()

    def action_reverse(self) -> None:
        self._down = not self._down
        self._draw()

    def action_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.add_class("open")
        self._focus_on(box)

    def action_clear(self) -> None:
        box = self.query_one("#filter", Input)
        box.value = ""
        box.remove_class("open")
        self._focus_on(self.query_one("#rows", DataTable))

    def on_input_changed(self, event: Input.Changed) -> None:
        self._text = event.value
        self._draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._focus_on(self.query_one("#rows", DataTable))

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        if event.data_table.id == "rows":
            self._down = not self._down if self._sort == event.column_index else True
            self._sort = event.column_index
            self._draw()

    async def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter on a process: how its owner was found."""
        row = self._process(event.row_key.value or "")
        if row is None:
            return
        answer = await self._feed.ask("who", {"pid": str(row["pid"])})
        if answer is None or answer["who"] is None or not answer["explanations"]:
            text = printable_lines([f"pid {row['pid']} is not on a GPU any more"])
        else:
            text = explain(answer["who"], answer["explanations"])
        self.push_screen(Page(text))

    def _process(self, key: str) -> Mapping[str, Any] | None:
        who = self._document["who"] if self._document else None
        row: Mapping[str, Any] | None = who["processes"].get(key) if who and self._view == "processes" else None
        return row

    def action_help(self) -> None:
        self.push_screen(Page(printable_lines(_HELP.splitlines())))

    def action_signal(self, name: str) -> None:
        table = self.query_one("#rows", DataTable)
        keys = [key.value or "" for key in table.rows]
        key = keys[table.cursor_row] if 0 <= table.cursor_row < len(keys) else ""
        row = self._process(key)
        if row is None or self._document is None:
            self.notify(printable("choose a process first: p, then the arrows"))
            return
        if reason := refusal(row, key, self._feed.is_local and not self._document["simulated"]):
            self.notify(printable(reason), severity="error")
            return

        def answered(agreed: bool | None) -> None:
            if agreed and (failure := send_signal(key, signal.Signals[name])):
                self.notify(printable(failure), severity="error")

        question = f"Send {name} to pid {row['pid']} of {row['account']}: {row['name']}?"
        self.push_screen(Confirm(printable(question)), answered)

    # Drawing.

    def _lay_out(self) -> None:
        """Set the columns of the chosen view for the width of the terminal."""
        for id, columns in (("gpus", GPU_COLUMNS), ("rows", TABS[self._view].columns)):
            table = self.query_one(f"#{id}", DataTable)
            table.clear(columns=True)
            for column in columns:
                title = rich_text(printable(column.title), justify="right" if column.number else "left")
                width = None if column.whole else column.width + (self._spare if column.wide else 0)
                table.add_column(title, width=width, key=column.title)
        self._draw()

    def _draw(self) -> None:
        self._draw_bar()
        document = self._document
        head = self.query_one("#head", Static)
        head.set_class(bool(self._lost), "lost")
        if document is None:
            if self._lost:
                head.update(printable(f"no agent answers at {self._feed.where}: {self._lost}"))
            return
        head.update(head_line(document, self._lost))
        self._draw_sentence(document)
        gpus = gpu_rows(document, self._recent, SPARK_WIDTH + self._spare, self._asked.slots)
        _fill(self.query_one("#gpus", DataTable), gpus, GPU_COLUMNS)
        view = TABS[self._view]
        rows = arranged(view.rows(document, self._asked), self._text, self._sort, self._down)
        _fill(self.query_one("#rows", DataTable), rows, view.columns)
        self._draw_note(document, len(rows))

    def _draw_bar(self) -> None:
        for name in TABS:
            self.query_one(f"#bar-{name}", Static).set_class(name == self._view, "chosen")

    def _draw_sentence(self, document: Mapping[str, Any]) -> None:
        parts = list(sentence_parts(document["gpus"], self._asked.slots or {})) if document["gpus"] else []
        line = self.query_one("#sentence", Static)
        line.set_class(any(colour == "bold red" for _, colour in parts), "lost")
        line.update(printable(" · ".join(text for text, _ in parts)))

    def _draw_note(self, document: Mapping[str, Any], shown: int) -> None:
        known = self._asked.queue if self._view == "queue" else document[_SECTIONS[self._view]]
        if known is None:
            note = _ABSENT[self._view]
        else:
            by = "" if self._sort is None else f"by {TABS[self._view].columns[self._sort].title.lower()}"
            note = f"{shown} {by} {'' if self._sort is None else '↓' if self._down else '↑'}"
            note += f" · filter: {self._text}" if self._text else ""
        self.query_one("#note", Static).update(printable(note))


def _fill(table: "DataTable[Text]", rows: list[TopRow], columns: tuple[Column, ...]) -> None:
    """Update the cells if the rows are the same; else rebuild the table and keep the cursor on its row."""
    known = [key.value for key in table.rows]
    if known == [row.key for row in rows]:
        for row in rows:
            for column, cell in zip(columns, _cells(row, columns), strict=True):
                if table.get_cell(row.key, column.title) != cell:
                    table.update_cell(row.key, column.title, cell, update_width=column.whole)
        return
    place = table.cursor_row
    at = known[place] if 0 <= place < len(known) else None
    table.clear()
    for row in rows:
        table.add_row(*_cells(row, columns), key=row.key)
    keys = [row.key for row in rows]
    if at in keys:
        table.move_cursor(row=keys.index(at), animate=False)


def _cells(row: TopRow, columns: tuple[Column, ...]) -> list[Text]:
    style = "bold red" if row.grave else ""
    return [
        rich_text(cell, style, justify="right" if column.number else "left", overflow="ellipsis")
        for cell, column in zip(row.cells, columns, strict=True)
    ]
