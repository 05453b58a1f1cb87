"""The terminal app of `gpucommons top`: two tables that follow the feed, and keys to choose, sort and filter."""

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

from gpucommons.base.printable import printable
from gpucommons.cli.output import rich_text
from gpucommons.cli.top_feed import RECENT_S, Feed, FeedUpdate
from gpucommons.cli.top_rows import (
    GPU_COLUMNS,
    OWNER_COLUMNS,
    PROCESS_COLUMNS,
    SPARK_WIDTH,
    TURN_COLUMNS,
    Column,
    TopRow,
    arranged,
    gpu_rows,
    head_line,
    owner_rows,
    process_rows,
    turn_rows,
)

_NARROW = 80
_ABSENT = {
    "owners": "the processes of the GPUs are unknown",
    "processes": "the processes of the GPUs are unknown",
    "turns": "the scheduler does not run (start it with: gpucommons up --scheduler)",
}


@dataclass(frozen=True, slots=True)
class TopTab:
    title: str
    columns: tuple[Column, ...]
    rows: Callable[[Mapping[str, Any]], list[TopRow]]
    sort: int | None


TABS: Mapping[str, TopTab] = {
    "owners": TopTab("Owners", OWNER_COLUMNS, owner_rows, 1),
    "processes": TopTab("Processes", PROCESS_COLUMNS, process_rows, 2),
    "turns": TopTab("Turns", TURN_COLUMNS, turn_rows, None),
}


class Top(App[None]):
    TITLE = "gpucommons"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; }
    #head { height: 1; background: $primary; color: $text; padding: 0 1; text-style: bold; }
    #head.lost { background: $error; }
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
        Binding("s", "sort", "Sort"),
        Binding("r", "reverse", "Reverse"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("escape", "clear", "Clear", show=False),
        Binding("q", "quit", "Quit"),
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

    def compose(self) -> ComposeResult:
        yield Static(printable(f"connecting to {self._feed.where} ..."), id="head", markup=False)
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
        self.run_worker(self._follow(), exclusive=True)

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

    # Drawing.

    def _lay_out(self) -> None:
        """Set the columns of the chosen view for the width of the terminal."""
        for id, columns in (("gpus", GPU_COLUMNS), ("rows", TABS[self._view].columns)):
            table = self.query_one(f"#{id}", DataTable)
            table.clear(columns=True)
            for column in columns:
                title = rich_text(printable(column.title), justify="right" if column.number else "left")
                table.add_column(title, width=column.width + (self._spare if column.wide else 0), key=column.title)
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
        _fill(
            self.query_one("#gpus", DataTable), gpu_rows(document, self._recent, SPARK_WIDTH + self._spare), GPU_COLUMNS
        )
        view = TABS[self._view]
        rows = arranged(view.rows(document), self._text, self._sort, self._down)
        _fill(self.query_one("#rows", DataTable), rows, view.columns)
        self._draw_note(document, len(rows))

    def _draw_bar(self) -> None:
        for name in TABS:
            self.query_one(f"#bar-{name}", Static).set_class(name == self._view, "chosen")

    def _draw_note(self, document: Mapping[str, Any], shown: int) -> None:
        absent = document["turns" if self._view == "turns" else "who"] is None
        if absent:
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
                    table.update_cell(row.key, column.title, cell)
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
