"""`--fleet` of the reading commands: the slots, queues and accounts of all nodes, from their Prometheus.

The agent is asked first; where it has no fleet or does not run, Prometheus is asked with the same queries.
"""

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpucommons.base.periods import spoken_age
from gpucommons.base.text import memory_text, printable
from gpucommons.cli.agent_client import ReadFailed
from gpucommons.cli.command_line import AgentUnreachable, CommandError, NotFound
from gpucommons.cli.gpus_view import short_model, summary_lines
from gpucommons.cli.options import load_settings
from gpucommons.cli.output import Line, Span, show, show_line, show_lines, terminal_width
from gpucommons.cli.reader import Reader, hidden_note
from gpucommons.cli.text_table import Format, TextTable, exact_table
from gpucommons.faces.documents.values import indent

if TYPE_CHECKING:
    from gpucommons.faces.fleet.reader import FleetSource

Document = Mapping[str, Any]

OfFleet = Annotated[
    bool,
    typer.Option("--fleet", help="List the slots of all nodes, from the Prometheus that scrapes them."),
]
CountsOfFleet = Annotated[
    bool,
    typer.Option("--fleet", help="Count what waits, is parked and is reserved on each node, from their Prometheus."),
]
PrometheusUrl = Annotated[
    str | None,
    typer.Option(
        "--prometheus",
        metavar="URL",
        help="Prometheus or VictoriaMetrics of --fleet. Default: that of the agent, else fleet.prometheus_url.",
        show_default=False,
    ),
]

_HEADER = ("node", "slot", "model", "util", "memory free", "owner", "state")
_EXACT = (
    *("node", "slot", "uuid", "model", "profile", "state", "holders", "since_unix_s", "idle_s", "utilization_ratio"),
    *("memory_total_bytes", "memory_free_bytes", "waiting", "paused", "parked"),
)
_NUMBERS = frozenset({3, 4})
_SHORTEST = {"node": 10, "model": 8, "owner": 8, "state": 12}
_LEFT_OUT = ("util", "memory free")
_GIB = 2**30


def show_fleet(reader: Reader, prometheus: str | None, format: Format) -> None:
    document = _document(reader, prometheus)
    fleet = document["fleet"]
    if format is Format.JSON:
        show(indent(document))
    elif not fleet["nodes"]:
        raise NotFound("no node of gpucommons in Prometheus: let it scrape /metrics of the agents")
    elif format is not Format.TABLE:
        show(exact_table(fleet["slots"], _EXACT).render(format))
    else:
        width = terminal_width()
        show_lines(
            [*summary_lines(fleet["summary"], width), *_table(fleet, fleet["slots"], width), *_silent_node_lines(fleet)]
        )
        _show_hidden(document)


def show_free_fleet(reader: Reader, prometheus: str | None, needed_bytes: int, format: Format) -> None:
    """Exit status 1 if there is none."""
    document = _document(reader, prometheus)
    fleet = document["fleet"]
    free = [slot for slot in fleet["slots"] if slot["state"] == "free" and has_memory(slot, needed_bytes)]
    if format is Format.JSON:
        show(indent({**document, "fleet": {**fleet, "slots": free}}))
        raise typer.Exit(0 if free else NotFound.status)
    if not free:
        small = " with enough memory" if needed_bytes else ""
        raise NotFound(f"no free slot{small}: {fleet['summary']['sentence']}; 'gpucommons gpus --fleet' lists all")
    if format is not Format.TABLE:
        show(exact_table(free, _EXACT).render(format))
    else:
        show_lines([*_table(fleet, free, terminal_width(), needed_bytes), *_silent_node_lines(fleet)])


# Prometheus has numbers of these; names, places and times are those of a node.
_COUNTS: Mapping[str, str] = {
    "waiting_requests": "requests",
    "waiting_clients": "for a turn",
    "paused_clients": "paused",
    "parked_programs": "parked",
    "reserved_slots": "reserved",
}


def show_fleet_counts(reader: Reader, prometheus: str | None, command: str, as_json: bool) -> None:
    """The nodes on which something waits, is parked or is reserved, and the command that lists it by name."""
    fleet = _document(reader, prometheus)["fleet"]
    counts = {instance: _counts(node, fleet["slots"], instance) for instance, node in fleet["nodes"].items()}
    if as_json:
        show(indent({"time_unix_s": fleet["time_unix_s"], "nodes": counts}))
        return
    rows = [
        [counted["node"], *("-" if counted[name] is None else str(counted[name]) for name in _COUNTS)]
        for counted in counts.values()
        if any(counted[name] for name in _COUNTS)
    ]
    if rows:
        table = TextTable(("node", *_COUNTS.values()), rows, numbers=frozenset(range(1, len(_COUNTS) + 1)))
        show_lines(table.fit(terminal_width()))
        show_line(printable(f"By name: 'gpucommons {command} --connect http://NODE:PORT', or '{command}' on the node."))
    else:
        show_line(printable(f"nothing waits, is parked or is reserved on {len(counts)} nodes"))
    show_lines(_silent_node_lines(fleet))


def _counts(node: Document, slots: Sequence[Document], instance: str) -> dict[str, Any]:
    own = [slot for slot in slots if slot["node"] == instance]
    return {
        "node": node["name"],
        "answers": node["answers"],
        "waiting_requests": node["waiting"],
        "waiting_clients": sum(slot["waiting"] for slot in own),
        "paused_clients": sum(slot["paused"] for slot in own),
        "parked_programs": sum(slot["parked"] for slot in own),
        "reserved_slots": sum(slot["state"] == "reserved" for slot in own),
    }


def fleet_report(reader: Reader, prometheus: str | None, parameters: Mapping[str, str | None]) -> Document:
    """The document of /api/v1/fleet/report. Raises AgentUnreachable where Prometheus does not answer."""
    answer = _of_agent(reader, prometheus, "fleet/report", parameters)
    # Null for a viewer without a name, which the agent says, or where the agent has no Prometheus.
    if answer is not None and (answer["accounts"] is not None or answer["hidden"] is not None):
        return answer
    source = _source(reader, prometheus)
    # Imported here: a command that asks the agent needs none of them.
    import time
    from functools import partial

    from gpucommons.faces.documents.fleet_report import document, read
    from gpucommons.faces.documents.parameters import BadParameter
    from gpucommons.model.viewer import SEES_ALL

    now_s = time.time()
    try:
        by, months = read({name: value for name, value in parameters.items() if value is not None}, now_s)
    except BadParameter as error:
        raise CommandError(f"--{error.parameter}: {error}") from error
    return _ask(document(by, months, SEES_ALL, partial(source.read_month, now_s=now_s)))


def _document(reader: Reader, prometheus: str | None) -> Document:
    """Raises AgentUnreachable where Prometheus does not answer."""
    document = _of_agent(reader, prometheus, "fleet", {})
    if document is not None and document["fleet"] is not None:
        return document
    source = _source(reader, prometheus)

    async def read() -> object:
        from gpucommons.faces.documents.fleet import fleet_document
        from gpucommons.model.viewer import SEES_ALL

        return fleet_document(await source.read(), SEES_ALL)

    return _ask(read())


def _of_agent(
    reader: Reader, prometheus: str | None, name: str, parameters: Mapping[str, str | None]
) -> Document | None:
    if prometheus is not None or not reader.asks:
        return None
    try:
        return reader.ask(name, parameters)
    except ReadFailed as error:
        raise AgentUnreachable(str(error)) from error


def _source(reader: Reader, prometheus: str | None) -> "FleetSource":
    from gpucommons.faces.fleet.reader import FleetSource

    settings = load_settings(reader.config, {"fleet.prometheus_url": ("--prometheus", prometheus)}).settings.fleet
    if not settings.prometheus_url:
        raise CommandError(
            "--fleet: no Prometheus is known: set fleet.prometheus_url in the agent's configuration, or use "
            "--prometheus URL"
        )
    return FleetSource(settings.prometheus_url, settings.prometheus_selector, settings.page_url)


def _ask(reading: Coroutine[Any, Any, object]) -> Document:
    import asyncio

    from gpucommons.faces.fleet.queries import FleetError

    try:
        answer = asyncio.run(reading)
    except FleetError as error:
        raise AgentUnreachable(str(error)) from error
    assert isinstance(answer, Mapping)
    return answer


def has_memory(slot: Document, needed_bytes: int) -> bool:
    free_bytes = slot["memory_total_bytes"] if slot["memory_free_bytes"] is None else slot["memory_free_bytes"]
    return not needed_bytes or (free_bytes is not None and free_bytes >= needed_bytes)


def _table(fleet: Document, slots: Sequence[Document], width: int | None, needed_bytes: int = 0) -> Iterable[Line]:
    rows = [_cells(slot, fleet["nodes"][slot["node"]], width is None, needed_bytes) for slot in slots]
    table = TextTable(_HEADER, rows, numbers=_NUMBERS, shortest=_SHORTEST, left_out=_LEFT_OUT, states=("state",))
    return table.fit(width)


def _cells(slot: Document, node: Document, full: bool, needed_bytes: int) -> list[str]:
    """The memory in the unit in which it was asked for."""
    free, total, ratio = slot["memory_free_bytes"], slot["memory_total_bytes"], slot["utilization_ratio"]
    there = total if free is None else free
    model = slot["model"] if full else short_model(slot["model"])
    return [
        node["name"],
        slot["slot"],
        " ".join(filter(None, (model, slot["profile"]))),
        "-" if ratio is None else f"{100 * ratio:.0f}%",
        "-" if there is None else memory_text(there, needed_bytes) if needed_bytes else f"{there / _GIB:.0f} GiB",
        _owners(slot, full),
        _state(slot),
    ]


def _owners(slot: Document, full: bool) -> str:
    names, hidden = slot["holders"], slot["hidden_holders"]
    shown = names if full else names[:1]
    others = len(names) - len(shown) + hidden
    return ", ".join([*shown, *([f"{others} hidden" if hidden else f"{others} more"] if others else [])])


def _state(slot: Document) -> str:
    words = {"held_idle": "held idle", "silent": "not answering"}
    idle = f" {spoken_age(slot['idle_s'])}" if slot["idle_s"] is not None else ""
    queued = [f"{slot[queue]} {queue}" for queue in ("waiting", "paused", "parked") if slot[queue]]
    return ", ".join([f"{words.get(slot['state'], slot['state'])}{idle}", *queued])


def _silent_node_lines(fleet: Document) -> Iterable[Line]:
    """A node without known slots has no row."""
    for node in fleet["nodes"].values():
        if not node["answers"]:
            yield [Span(printable(f"{node['name']} is not answering {_since(node, fleet)}"), "bold red")]


def _since(node: Document, fleet: Document) -> str:
    seen_s = node["last_seen_unix_s"]
    return "for more than an hour" if seen_s is None else f"for {spoken_age(max(0.0, fleet['time_unix_s'] - seen_s))}"


def _show_hidden(document: Document) -> None:
    note = hidden_note(document, "slots")
    if note:
        show(note)
