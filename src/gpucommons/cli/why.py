"""`gpucommons why`: why a program waits for a GPU or for its turn, how long, and behind which client."""

import os
import pwd
from collections.abc import Container, Iterable
from typing import Annotated

import typer

from gpucommons.base.text import parse_decimal, printable_lines
from gpucommons.cli.agent_client import Document
from gpucommons.cli.command_line import NotFound
from gpucommons.cli.lease_view import request_line, requests_before, requests_of
from gpucommons.cli.options import AsJson, CaFile, ConfigFile, Connect, PasswordFile
from gpucommons.cli.output import show, terminal_width
from gpucommons.cli.reader import Reader
from gpucommons.cli.scheduler import read_turns
from gpucommons.cli.scheduler_view import behind, clients_named, explanation, room_lines
from gpucommons.cli.suggestions import pids
from gpucommons.cli.text_table import wrapped
from gpucommons.faces.documents.values import indented

# What is known of turns where no scheduler runs.
_NO_TURNS: Document = {"gpus": {}, "clients": {}, "parking": None}
# The pod of a client that runs in none.
_NO_POD = ("", "none")


def why(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[PID|JOB]",
            help="A process, a job, a container, a pod, or the id of a client or a request. Default: yours.",
            show_default=False,
            autocompletion=pids,
        ),
    ] = None,
    as_json: AsJson = False,
    connect: Connect = None,
    password_file: PasswordFile = None,
    ca_file: CaFile = None,
    config: ConfigFile = None,
) -> None:
    """Say why a program waits for a GPU or its turn, how long, and behind which client."""
    reader = Reader(connect, password_file, ca_file, config)
    queued = reader.ask("queue")
    queue = queued and queued["queue"]
    document = queued if queued is not None and reader.get("turns")["turns"] is None else read_turns(reader, None)
    turns: Document = document.get("turns") or _NO_TURNS
    requests = _requests(queue, target)
    paused = paused_for_leases(queue)
    processes = {} if reader.agent is None or (target is None and not paused) else _processes(reader, target, paused)
    clients = own_clients(turns, os.getuid()) if target is None else _clients(turns, target, processes.values())
    unscheduled = {key: row for key, row in processes.items() if row["pid"] in paused or not (clients or requests)}
    rooms = list(room_lines(turns, os.getuid(), target))
    if not clients and not requests and not unscheduled and not rooms:
        raise NotFound(
            "none of your programs waits for a GPU or takes turns on one; see 'gpucommons queue' and 'scheduler status'"
            if target is None
            else f"no process, job, request or client {target!r} is on a GPU or waits for one"
        )
    if as_json:
        found = {id: {**turns["clients"][id], "behind": behind(turns, id)} for id in clients}
        waiting = (
            {id: {**queue["waiting"][id], "behind": requests_before(queue, id)} for id in requests} if queue else {}
        )
        envelope = {name: value for name, value in document.items() if name not in ("turns", "queue")}
        others = {key: {**row, "paused_for_lease": paused.get(row["pid"])} for key, row in unscheduled.items()}
        show(indented({**envelope, "why": found, "requests": waiting, "unscheduled": others, "parking": rooms}))
        return
    lines = [request_line(queue, id, document["time_unix_s"]) for id in requests] if queue else []
    lines += [explanation(turns, id) for id in clients]
    lines += rooms
    lines += [
        f"{row['name']} (pid {row['pid']}) is paused until lease {paused[row['pid']]} ends, which has GPU "
        f"{row['gpu_index']} alone; 'gpucommons run' gets a GPU."
        if row["pid"] in paused
        else f"{row['name']} (pid {row['pid']}) runs on GPU {row['gpu_index']} and takes no turns: it does not wait."
        for row in unscheduled.values()
    ]
    show(printable_lines(wrapped(lines, terminal_width())))


def paused_for_leases(queue: Document | None) -> dict[int, str]:
    """The processes without a lease that are paused, each with the lease of its GPU."""
    leases = {} if queue is None else queue["leases"]
    return {row["pid"]: id for id, lease in leases.items() for row in lease["trespassers"] if row["paused"]}


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _requests(queue: Document | None, target: str | None) -> list[str]:
    """The waiting requests that an id or a name means; without a target, those of this user."""
    if queue is None:
        return []
    if target is None:
        return requests_of(queue, user_name(os.getuid()))
    return [id for id, row in queue["waiting"].items() if target in (id, row["name"] or id)]


def own_clients(turns: Document, uid: int) -> list[str]:
    """The ids of a user's clients, the waiting ones first. What runs in a pod is the pod's, whatever its uid is."""
    clients = turns["clients"]
    own = [id for id, client in clients.items() if client["uid"] == uid and client["pod"] in _NO_POD]
    return sorted(own, key=lambda id: clients[id]["wait"] is None)


def _processes(reader: Reader, target: str | None, paused: Container[int]) -> dict[str, Document]:
    """The processes on GPUs that a pid, a job or a container means; without a target, own ones that are paused."""
    who = reader.get("who")["who"]
    rows = {} if who is None else who["processes"]
    if target is None:
        return {key: row for key, row in rows.items() if row["uid"] == os.getuid() and row["pid"] in paused}
    return {key: row for key, row in rows.items() if target in (str(row["pid"]), row["job"], row["container"])}


def _clients(turns: Document, target: str, processes: Iterable[Document]) -> list[str]:
    pids = {row["pid"] for row in processes} | {parse_decimal(target)} - {None}
    by_pid = [id for id, client in turns["clients"].items() if pids & {client["pid"], *client["processes"]}]
    return list(dict.fromkeys([*clients_named(turns, target), *by_pid]))
