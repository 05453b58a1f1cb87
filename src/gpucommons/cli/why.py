"""`gpucommons why`: why a program waits for a GPU, how long, and behind which client."""

import os
from typing import Annotated

import typer

from gpucommons.base.decimal_text import parse_decimal
from gpucommons.base.printable import printable, printable_lines
from gpucommons.cli.agent_client import Document
from gpucommons.cli.command_line import NotFound
from gpucommons.cli.options import AsJson, CaFile, ConfigFile, Connect, PasswordFile
from gpucommons.cli.output import show
from gpucommons.cli.reader import Reader
from gpucommons.cli.scheduler import read_turns
from gpucommons.cli.scheduler_view import behind, clients_named, explanation
from gpucommons.faces.documents.values import indented


def why(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[PID|JOB]",
            help="A process, a job, a container, a pod or a client's id. Default: your own programs.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    connect: Connect = None,
    password_file: PasswordFile = None,
    ca_file: CaFile = None,
    config: ConfigFile = None,
) -> None:
    """Say why a program waits for its turn, how long, and behind which client."""
    reader = Reader(connect, password_file, ca_file, config)
    document = read_turns(reader, None)
    turns = document["turns"]
    processes = [] if target is None or reader.agent is None else _processes(reader, target)
    chosen = own_clients(turns, os.getuid()) if target is None else _clients(turns, target, processes)
    unscheduled = [] if chosen else processes
    if not chosen and not unscheduled:
        raise NotFound(
            "none of your programs takes turns on a GPU; 'gpucommons scheduler status' lists those that do"
            if target is None
            else f"no process, job or client {target!r} is on a GPU or waits for one"
        )
    if as_json:
        found = {id: {**turns["clients"][id], "behind": behind(turns, id)} for id in chosen}
        show(indented({**{name: document[name] for name in document if name != "turns"}, "why": found}))
        return
    lines = [explanation(turns, id) for id in chosen]
    lines += [
        printable(
            f"{row['name']} (pid {row['pid']}) runs on GPU {row['gpu_index']} and takes no turns: it does not wait."
        )
        for row in unscheduled
    ]
    show(printable_lines(lines))


def own_clients(turns: Document, uid: int) -> list[str]:
    """The ids of a user's clients, the waiting ones first."""
    own = [id for id, client in turns["clients"].items() if client["uid"] == uid]
    return sorted(own, key=lambda id: turns["clients"][id]["wait"] is None)


def _processes(reader: Reader, target: str) -> list[Document]:
    """The processes on GPUs that a pid, a job or a container means."""
    who = reader.get("who")["who"]
    rows = [] if who is None else list(who["processes"].values())
    return [row for row in rows if target in (str(row["pid"]), row["job"], row["container"])]


def _clients(turns: Document, target: str, processes: list[Document]) -> list[str]:
    pids = {row["pid"] for row in processes} | {parse_decimal(target)} - {None}
    by_pid = [id for id, client in turns["clients"].items() if client["pid"] in pids]
    return list(dict.fromkeys([*clients_named(turns, target), *by_pid]))
