"""The terminal app of `gpucommons top`: a sentence, the GPUs, their history, and tabs of tables; and its dialogs."""

import asyncio
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.css.query import NoMatches
from textual.events import Click, Resize
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import DataTable, Footer, Input, Static

from gpucommons.base.text import Printable, printable, printable_lines
from gpucommons.cli.command_line import CommandError
from gpucommons.cli.output import Line, Span, check_printable, rich_lines, rich_text
from gpucommons.cli.text_table import state_colour
from gpucommons.cli.top_feed import MEMORY, UTILIZATION, Feed
from gpucommons.cli.top_options import EVERY_GPU, GpuChoice, Look
from gpucommons.cli.top_orders import QUESTIONS, carry_out, environment_lines, refusal, send_signal, target_pid
from gpucommons.cli.top_rows import GPU_COLUMNS, SPARK, gpu_of, gpu_page, gpu_rows, graph_lines
from gpucommons.cli.top_table import Column, TopRow, arrange, duration, fit_columns, of_node, percent, size
from gpucommons.cli.top_view import TABS, TopNode, command_of, head_line, sentence_lines
from gpucommons.cli.who import explain

# The dialogs of `gpucommons top`: a page of text, and a question.


class Page(ModalScreen[None]):
    """Text that scrolls; Escape, Enter, q and ? close it."""

    CSS = """
    Page { align: center middle; }
    Page > VerticalScroll { width: 90%; height: auto; max-height: 90%; border: round $primary; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q,question_mark", "close", "Close")]

    def __init__(self, text: Printable) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(check_printable(self._text), id="page", markup=False)

    def action_close(self) -> None:
        self.dismiss()


class Confirm(ModalScreen[bool]):
    """Only `y` agrees."""

    CSS = """
    Confirm { align: center middle; }
    Confirm > Static { width: 80%; height: auto; border: heavy $error; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,enter,q", "answer(False)", "No"),
    ]

    def __init__(self, question: Printable) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        yield Static(printable(f"{self._question}  y: yes, n: no"), id="question", markup=False)

    def action_answer(self, agreed: bool) -> None:
        self.dismiss(agreed)


# The terminal app of `gpucommons top`: a sentence, the GPUs, their history, and tabs that follow the feeds.
#
# What the processes use of the host is asked for every two seconds; the rest comes with the feeds.

_NARROW = 80
_PLAIN_LOOK = Look()
_CHOOSE_PROCESS = "choose a process first: p, then the arrows"
_TALL = 40
_GRAPH_LINES = 7
_SPARK_S = 120
_ASK_S = 2.0
# Only with several nodes.
_NODE_COLUMN = Column("Node", False, 10)
_HELP = """\
p o w u e !  processes, owners, turns, queue, events, problems
1 to 6       the same; or click on a tab
a            all GPUs, or those of -o and CUDA_VISIBLE_DEVICES
t            tree: processes below their job, pod or container
g            graph of the chosen GPU: utilisation and memory
Tab          from the GPUs to the rows below, and back
arrows       choose a row; left, right: scroll to all of a command
Enter        details; of a process also how its owner was found
v            environment of the process: your own
s . >        sort by the next column; , < by the one before
r            reverse the order; or click on the title of a column
/            filter; Escape clears it
I T K        interrupt, terminate, kill: your own, as root any
P W          park, wake: your own programs, as an admin any
? h          this help
q Ctrl-C     quit
Signals and orders ask first.
"""


class TabTitle(Static):
    """A tab that can be clicked."""

    def __init__(self, name: str) -> None:
        super().__init__(printable(f"{_shown_key(TABS[name].key)} {TABS[name].title}"), id=f"bar-{name}", markup=False)
        self._tab = name

    async def on_click(self, event: Click) -> None:
        await self.app.run_action(f"choose('{self._tab}')")


def _shown_key(key: str) -> str:
    return "!" if key == "exclamation_mark" else key


class Top(App[None]):
    """`config` is the file of the settings that name the scheduler's socket, for orders."""

    TITLE = "gpucommons"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; }
    #head { height: 1; background: $primary; color: $text; padding: 0 1; text-style: bold; }
    #head.lost { background: $error; }
    #sentence { height: auto; max-height: 8; padding: 0 1; }
    #gpus { height: auto; max-height: 50%; }
    #graph { height: 7; padding: 0 1; color: $text-accent; display: none; }
    #graph.open { display: block; }
    #bar { height: 1; }
    #bar Static { width: auto; padding: 0 1; color: $text-muted; }
    #bar .chosen { color: $text; text-style: bold reverse; }
    #filter { height: 1; border: none; padding: 0 1; display: none; }
    #filter.open { display: block; }
    #rows { height: 1fr; }
    DataTable { scrollbar-size: 0 1; scrollbar-background: $surface; }
    DataTable > .datatable--header { text-style: bold; }
    .ascii Page > VerticalScroll { border: ascii $primary; }
    .ascii Confirm > Static { border: ascii $error; }
    .ascii DataTable { scrollbar-size: 0 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(f"{tab.key},{number}", f"choose('{name}')", tab.title, show=False)
            for number, (name, tab) in enumerate(TABS.items(), start=1)
        ),
        Binding("a", "all", "All GPUs", show=False),
        Binding("v", "environment", "Environment", show=False),
        Binding("t", "tree", "Tree"),
        Binding("g", "graph", "Graph"),
        Binding("s,full_stop,greater_than_sign", "sort(1)", "Sort", key_display="s"),
        Binding("comma,less_than_sign", "sort(-1)", "Sort back", show=False),
        Binding("r", "reverse", "Reverse", show=False),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("I", "signal('SIGINT')", "Interrupt", show=False),
        Binding("T", "signal('SIGTERM')", "Terminate"),
        Binding("K", "signal('SIGKILL')", "Kill", show=False),
        Binding("P", "order('park')", "Park"),
        Binding("W", "order('wake')", "Wake", show=False),
        Binding("escape", "clear", "Clear", show=False),
        Binding("question_mark,h", "help", "Help", key_display="?"),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
    ]

    def __init__(
        self,
        feeds: Sequence[Feed],
        config: Path | None = None,
        choice: GpuChoice = EVERY_GPU,
        look: Look = _PLAIN_LOOK,
    ) -> None:
        super().__init__()
        self._top_nodes = [TopNode(feed, choice) for feed in feeds]
        self._choice = choice
        self._config = config
        self._look = look
        self.theme = "textual-light" if look.is_light else "textual-dark"
        self.set_class(look.is_ascii, "ascii")
        self._view = next(iter(TABS))
        self._sort: int | None = None
        self._down = False
        self._sort_by(TABS[self._view].sort)
        self._tree = False
        # None: as the height of the terminal allows.
        self._graph: bool | None = None
        self._text = ""
        self._spare = 0

    def compose(self) -> ComposeResult:
        yield Static(check_printable(self._look.text(head_line(self._top_nodes))), id="head", markup=False)
        yield Static("", id="sentence", markup=False)
        yield DataTable(id="gpus", cursor_type="row")
        yield Static("", id="graph", markup=False)
        with Horizontal(id="bar"):
            yield from (TabTitle(name) for name in TABS)
            yield Static("", id="note", markup=False)
        yield Input(placeholder="filter", id="filter")
        yield DataTable(id="rows", cursor_type="row")
        yield Footer()

    def on_mount(self) -> None:
        self._focus_on(self.query_one("#rows", DataTable))
        for node in self._top_nodes:
            self.run_worker(self._follow(node))
            self.run_worker(self._keep_asking(node))

    async def _keep_asking(self, node: TopNode) -> None:
        while True:
            await node.ask_host_use()
            self._draw_while_open()
            await asyncio.sleep(_ASK_S)

    async def _follow(self, node: TopNode) -> None:
        async for update in node.feed.updates():
            node.apply(update)
            self._draw_while_open()

    def _draw_while_open(self) -> None:
        """For the workers: while the app closes they still run, and its widgets are removed one by one."""
        with suppress(NoMatches):
            self._draw()

    def on_resize(self, event: Resize) -> None:
        self._spare = event.size.width - _NARROW - (_NODE_COLUMN.width + 2 if self._is_many else 0)
        self._lay_out()

    def _focus_on(self, widget: Widget) -> None:
        """Set the focus at once: widget.focus() is deferred and would undo what the next key does."""
        self.screen.set_focus(widget)

    # Nodes.

    @property
    def _is_many(self) -> bool:
        return len(self._top_nodes) > 1

    @property
    def _names(self) -> list[str]:
        """What each node is called: its host name, or its address where two have the same."""
        names = [node.name for node in self._top_nodes]
        return [
            node.feed.where if names.count(name) > 1 else name
            for node, name in zip(self._top_nodes, names, strict=True)
        ]

    def _of_nodes(self, rows: Mapping[int, list[TopRow]]) -> Iterator[TopRow]:
        """The rows of all nodes. The number of the node begins their keys; with several nodes, its name their cells."""
        for number, name in enumerate(self._names):
            for row in rows.get(number, []):
                shown = f"{name} (lost)" if self._top_nodes[number].lost else name
                named = of_node(row, shown) if self._is_many else row
                parent = f"{number}/{row.parent}" if row.parent else ""
                yield replace(named, key=f"{number}/{row.key}", parent=parent)

    def _columns(self, columns: tuple[Column, ...]) -> tuple[Column, ...]:
        return (_NODE_COLUMN, *columns) if self._is_many else columns

    def _selected_row(self, id: str) -> tuple[TopNode, str]:
        """The node and the key of the row under the cursor; the key is empty where there is no row."""
        table = self.query_one(f"#{id}", DataTable)
        keys = [key.value or "" for key in table.rows]
        return self._find_row(keys[table.cursor_row] if 0 <= table.cursor_row < len(keys) else "")

    def _find_row(self, row_key: str) -> tuple[TopNode, str]:
        number, _, key = row_key.partition("/")
        return self._top_nodes[int(number or 0)], key

    # Keys.

    def action_choose(self, name: str) -> None:
        self._view = name
        self._sort_by(TABS[name].sort)
        self._lay_out()
        self._focus_on(self.query_one("#rows", DataTable))

    def action_tree(self) -> None:
        self._tree = not self._tree
        self.action_choose("processes")

    def action_graph(self) -> None:
        self._graph = not self._shows_graph
        self._draw()

    def action_sort(self, step: int) -> None:
        self._sort_by((-1 if self._sort is None else self._sort) + step)
        self._draw_from_the_top()

    def _sort_by(self, column: int | None) -> None:
        """Numbers begin with the greatest, texts and GPUs with the least."""
        columns = TABS[self._view].columns
        self._sort = None if column is None else column % len(columns)
        self._down = self._sort is not None and columns[self._sort].number

    def action_reverse(self) -> None:
        self._down = not self._down
        self._draw_from_the_top()

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
        chosen = event.column_index - self._is_many
        if event.data_table.id == "rows" and chosen >= 0:
            self._down = not self._down if self._sort == chosen else True
            self._sort = chosen
            self._draw_from_the_top()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        if event.data_table.id == "gpus":
            # As for the workers: the event may come while the app closes.
            with suppress(NoMatches):
                self._draw_graph()

    async def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        node, key = self._find_row(event.row_key.value or "")
        if node.document is None:
            return
        if event.data_table.id == "gpus":
            self._open(gpu_page(node.document, key))
        elif (process := self._process(node, key)) is not None:
            self._open(await _process_page(node, key, process))
        else:
            cells = event.data_table.get_row(event.row_key)
            titles = (str(column.label) for column in event.data_table.columns.values())
            lines = (f"{title:<10} {cell.plain}" for title, cell in zip(titles, cells, strict=True))
            self._open(printable_lines(lines))

    def _process(self, node: TopNode, key: str) -> Mapping[str, Any] | None:
        who = node.document["who"] if node.document else None
        row: Mapping[str, Any] | None = who["processes"].get(key) if who and self._view == "processes" else None
        return row

    def _open(self, text: Printable) -> None:
        self.push_screen(Page(self._look.text(text)))

    def action_all(self) -> None:
        """Every GPU, and back to the chosen ones."""
        for node in self._top_nodes:
            node.choose(EVERY_GPU if node.choice.names else self._choice)
        self._draw()

    def action_environment(self) -> None:
        node, key = self._selected_row("rows")
        row = self._process(node, key)
        if row is None:
            self.notify(printable(_CHOOSE_PROCESS))
            return
        if reason := _elsewhere(node):
            self.notify(printable(reason), severity="error")
            return
        try:
            lines = environment_lines(row, key)
        except CommandError as error:
            self.notify(printable(str(error)), severity="error")
        else:
            self._open(printable_lines([f"environment of pid {row['pid']} as it was started", "", *lines]))

    def action_help(self) -> None:
        self._open(printable_lines(_HELP.splitlines()))

    def action_signal(self, name: str) -> None:
        node, key = self._selected_row("rows")
        row = self._process(node, key)
        if row is None:
            self.notify(printable(_CHOOSE_PROCESS))
            return
        if reason := _elsewhere(node) or refusal(row, key):
            self.notify(printable(reason), severity="error")
            return

        def on_answer(agreed: bool | None) -> None:
            if agreed and (failure := send_signal(key, signal.Signals[name])):
                self.notify(printable(failure), severity="error")

        question = f"Send {name} to pid {row['pid']} of {row['account']}: {row['name']}?"
        self.push_screen(Confirm(printable(question)), on_answer)

    def action_order(self, order: str) -> None:
        node, key = self._selected_row("rows")
        pid = target_pid(node.document, key) if node.document else None
        if pid is None:
            self.notify(printable("choose a process (p) or a parked program (w) first"))
            return
        if reason := _elsewhere(node):
            self.notify(printable(reason), severity="error")
            return

        def on_answer(agreed: bool | None) -> None:
            if agreed:
                self.run_worker(self._order(order, pid))

        self.push_screen(Confirm(printable(QUESTIONS[order].format(f"the program of pid {pid}"))), on_answer)

    async def _order(self, order: str, pid: int) -> None:
        said, done = await asyncio.to_thread(carry_out, order, pid, self._config)
        self.notify(printable(said), severity="information" if done else "error")

    # Drawing.

    def _lay_out(self) -> None:
        """Set the columns of the chosen view for the width of the terminal."""
        for id, columns in (("gpus", GPU_COLUMNS), ("rows", TABS[self._view].columns)):
            table = self.query_one(f"#{id}", DataTable)
            table.clear(columns=True)
            widths = fit_columns(self._columns(columns), self._spare)
            for column in self._columns(columns):
                if column.title in widths:
                    title = rich_text(printable(column.title), justify="right" if column.number else "left")
                    table.add_column(title, width=widths[column.title], key=column.title)
        self._draw()

    def _draw_from_the_top(self) -> None:
        """After a change of the order: what comes first is what was asked for."""
        self._draw()
        self.query_one("#rows", DataTable).move_cursor(row=0, animate=False)

    def _draw(self) -> None:
        self._draw_bar()
        head = self.query_one("#head", Static)
        head.set_class(any(node.lost for node in self._top_nodes), "lost")
        head.update(check_printable(self._look.text(head_line(self._top_nodes))))
        self._draw_sentence()
        spark_width = fit_columns(self._columns(GPU_COLUMNS), self._spare).get(SPARK) or 0
        gpus = {
            number: gpu_rows(node.document, node.recent(UTILIZATION, _SPARK_S), spark_width)
            for number, node in enumerate(self._top_nodes)
            if node.document is not None
        }
        self._fill("gpus", list(self._of_nodes(gpus)), GPU_COLUMNS)
        self._draw_graph()
        tab = TABS[self._view]
        rows_of_node = {
            number: tab.rows(node.document, node, self._tree)
            for number, node in enumerate(self._top_nodes)
            if node.document is not None
        }
        column = None if self._sort is None else self._sort + self._is_many
        rows = arrange(self._of_nodes(rows_of_node), self._text, column, self._down)
        self._fill("rows", rows, tab.columns)
        self._draw_note(len(rows))

    def _fill(self, id: str, rows: list[TopRow], columns: tuple[Column, ...]) -> None:
        table: DataTable[Text] = self.query_one(f"#{id}", DataTable)
        widths = fit_columns(self._columns(columns), self._spare)
        shown = {place: column for place, column in enumerate(self._columns(columns)) if column.title in widths}
        cells = [replace(row, cells=tuple(row.cells[place] for place in shown)) for row in rows]
        _fill(table, cells, list(shown.values()), self._look)

    def _draw_bar(self) -> None:
        for name in TABS:
            self.query_one(f"#bar-{name}", Static).set_class(name == self._view, "chosen")

    def _draw_sentence(self) -> None:
        lines = sentence_lines(self._top_nodes, self._names, max(20, self.size.width - 2))
        self.query_one("#sentence", Static).update(rich_lines(map(self._looking, lines)))

    def _looking(self, line: Line) -> Line:
        return [Span(self._look.text(span.text), self._look.colour(span.colour)) for span in line]

    @property
    def _shows_graph(self) -> bool:
        return self.size.height >= _TALL if self._graph is None else self._graph

    def _draw_graph(self) -> None:
        panel = self.query_one("#graph", Static)
        panel.set_class(self._shows_graph, "open")
        node, key = self._selected_row("gpus")
        uuid = gpu_of(node.document, key) if node.document is not None else None
        if not self._shows_graph or node.document is None or uuid is None:
            return
        gpu = node.document["gpus"]["by_uuid"][uuid]
        name = f"{self._names[self._top_nodes.index(node)]} " if self._is_many else ""
        used, memory = (node.recent(name).get(uuid, ()) for name in (UTILIZATION, MEMORY))
        room = (self.size.width - 2, _GRAPH_LINES)
        lines = graph_lines(f"{name}GPU {gpu['index']}", gpu, used, memory, room)
        panel.update(check_printable(self._look.text(lines)))

    def _draw_note(self, shown: int) -> None:
        tab = TABS[self._view]
        documents = [node.document for node in self._top_nodes if node.document is not None]
        if documents and all(document[tab.section] is None for document in documents):
            note = tab.absent
        else:
            by = "" if self._sort is None else f" by {tab.columns[self._sort].title.lower()}"
            hidden = any(document["hidden"] and tab.section in document["hidden"]["sections"] for document in documents)
            note = f"{shown}, rest hidden{by}" if hidden else f"{shown}{by}"
            note += "" if self._sort is None else " ↓" if self._down else " ↑"
            note += " · tree" if self._tree and self._view == "processes" else ""
            note += f" · filter: {self._text}" if self._text else ""
        self.query_one("#note", Static).update(check_printable(self._look.text(printable(note))))


def _elsewhere(node: TopNode) -> str:
    """Why the processes of the node are not those of this machine; empty if they are."""
    if node.document is None or node.document["simulated"]:
        return "the node is simulated: its processes do not exist"
    return "" if node.feed.is_local else "the agent is not asked through its socket on this machine: run top there"


async def _process_page(node: TopNode, key: str, row: Mapping[str, Any]) -> Printable:
    """The whole command, what it uses of the host, and how its owner was found."""
    use = node.host_use().get(key)
    command = command_of(row)
    lines = [command] if command else []
    if use:
        age = "" if use.age_s is None else f", started {duration(use.age_s)} ago"
        lines += [f"CPU {percent(use.cpu_ratio)}, host memory {size(use.rss_bytes)}{age}", ""]
    answer = await node.feed.ask("who", {"pid": str(row["pid"])})
    if answer is None or answer["who"] is None or not answer["explanations"]:
        return printable_lines([*lines, f"pid {row['pid']} is not on a GPU any more"])
    return printable_lines([*lines, *explain(answer["who"], answer["explanations"]).splitlines()])


def _fill(table: "DataTable[Text]", rows: list[TopRow], columns: Sequence[Column], look: Look) -> None:
    """Update the cells if the rows are the same; else rebuild the table and keep the cursor on its row."""
    shown_keys = [key.value for key in table.rows]
    if shown_keys == [row.key for row in rows]:
        for row in rows:
            for column, cell in zip(columns, _cells(row, columns, look), strict=True):
                if table.get_cell(row.key, column.title) != cell:
                    table.update_cell(row.key, column.title, cell, update_width=column.whole)
        return
    place = table.cursor_row
    at = shown_keys[place] if 0 <= place < len(shown_keys) else None
    table.clear()
    for row in rows:
        table.add_row(*_cells(row, columns, look), key=row.key)
    keys = [row.key for row in rows]
    if at in keys:
        table.move_cursor(row=keys.index(at), animate=False)


def _cells(row: TopRow, columns: Sequence[Column], look: Look) -> list[Text]:
    return [
        rich_text(
            look.text(cell),
            look.colour(row.colour or (state_colour(cell) if column.state else "")),
            justify="right" if column.number else "left",
            overflow="crop" if look.is_ascii else "ellipsis",
        )
        for cell, column in zip(row.cells, columns, strict=True)
    ]
