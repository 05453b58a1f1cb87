"""`gpucommons why`: why a program waits for a GPU or for its turn, and for whom; what limits one that runs."""

import os
import pwd
from collections.abc import Iterable, Mapping
from typing import Annotated

import typer

from gpucommons.base.periods import spoken_duration
from gpucommons.base.text import parse_decimal, printable_lines
from gpucommons.cli.agent_client import Document
from gpucommons.cli.command_line import NotFound
from gpucommons.cli.lease_view import request_line, requests_before, requests_of
from gpucommons.cli.options import AsJson
from gpucommons.cli.output import show, terminal_width
from gpucommons.cli.reader import Reader, reading
from gpucommons.cli.scheduler import read_turns
from gpucommons.cli.scheduler_view import behind, explanation, find_clients, kept_lines, room_lines
from gpucommons.cli.suggestions import pids
from gpucommons.cli.text_table import wrap_lines
from gpucommons.faces.documents.values import indent
from gpucommons.model.words import NO_POD

# What is known of turns where no scheduler runs.
_NO_TURNS: Document = {"gpus": {}, "clients": {}, "parking": None}


@reading()
def why(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[PID|JOB|USER]",
            help="A process, a job, a container, a pod, a user, or the id of a client or a request. Default: yours.",
            show_default=False,
            autocompletion=pids,
        ),
    ] = None,
    as_json: AsJson = False,
    *,
    reader: Reader,
) -> None:
    """Say why a program waits for a GPU or its turn, and what limits one that runs."""
    queued = reader.ask("queue")
    queue = queued and queued["queue"]
    document = queued if queued is not None and reader.get("turns")["turns"] is None else read_turns(reader, None)
    turns: Document = document.get("turns") or _NO_TURNS
    requests = _requests(queue, target)
    paused = find_paused_for_leases(queue)
    processes = {} if reader.agent is None else processes_of(reader, target)
    clients = own_clients(turns, os.getuid()) if target is None else _clients(turns, target, processes.values())
    explained = {pid for id in clients for pid in (turns["clients"][id]["pid"], *turns["clients"][id]["processes"])}
    unscheduled = {
        key: row
        for key, row in processes.items()
        if row["pid"] in paused or not row["limit"] or row["limit"]["kind"] != "turn" or row["pid"] not in explained
    }
    held = {} if reader.agent is None else held_without_process(reader, target, processes)
    rooms = list(room_lines(turns, os.getuid(), target))
    gpus = {turns["clients"][id]["gpu_uuid"] for id in clients} | {row["gpu_uuid"] for row in processes.values()}
    rooms += kept_lines(turns, gpus, target)
    if not any((clients, requests, unscheduled, rooms, held)):
        raise NotFound(
            "none of your programs is on a GPU or waits for one; see 'gpucommons queue' and 'gpucommons who'"
            if target is None
            else f"no process, job, user, request or client {target!r} is on a GPU or waits for one{_hidden(reader)}"
        )
    if as_json:
        by_id = {id: {**turns["clients"][id], "behind": behind(turns, id)} for id in clients}
        waiting = (
            {id: {**queue["waiting"][id], "behind": requests_before(queue, id)} for id in requests} if queue else {}
        )
        envelope = {name: value for name, value in document.items() if name not in ("turns", "queue")}
        others = {key: {**row, "paused_for_lease": paused.get(row["pid"])} for key, row in unscheduled.items()}
        programs = {"why": by_id, "requests": waiting, "unscheduled": others}
        show(indent({**envelope, **programs, "parking": rooms, "held": held}))
        return
    now_s = document["time_unix_s"] if queued is None else queued["time_unix_s"]
    lines = [request_line(queue, id, now_s) for id in requests] if queue else []
    lines += [explanation(turns, id) for id in clients]
    lines += rooms
    lines += [
        f"{row['name']} (pid {row['pid']}) is paused until lease {paused[row['pid']]} ends, which has GPU "
        f"{row['gpu_index']} alone; 'gpucommons run' gets a GPU."
        if row["pid"] in paused
        else _running_line(row, row["pid"] in explained)
        for row in unscheduled.values()
    ]
    lines += [_held_line(row) for row in held.values()]
    show(printable_lines(wrap_lines(lines, terminal_width())))


def _hidden(reader: Reader) -> str:
    """That the target may be another user's, whose rows this viewer does not see."""
    hidden = None if reader.agent is None else reader.get("who")["hidden"]
    return f" ({hidden['sentence']})" if hidden and "who" in hidden["sections"] else ""


def _running_line(row: Document, takes_turns: bool) -> str:
    """What limits a program that runs: the sentence of the API."""
    name = f"{row['name']} (pid {row['pid']}) of {row['account'] or 'an unknown owner'} on GPU {row['slot']}"
    if row["limit"] and row["limit"]["kind"] != "parked":
        name += " runs" if takes_turns else " runs and takes no turns"
    return f"{name}: {row['limit']['sentence']}." if row["limit"] else f"{name}; what limits it is not known."


def _held_line(row: Document) -> str:
    """Of a workload that has a GPU and uses it with no process."""
    name = f"{row['workload']} ({row['job']})" if row["job"] not in ("", row["workload"]) else row["workload"]
    idle = "" if row["idle_s"] is None else f" and has not used it for {spoken_duration(row['idle_s'])}"
    return f"{name} of {row['account']} holds GPU {row['slot']}{idle}; none of its processes is on the GPU now."


def find_paused_for_leases(queue: Document | None) -> dict[int, str]:
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
    return [id for id, row in queue["waiting"].items() if target in (id, row["name"] or id, row["user"])]


def own_clients(turns: Document, uid: int) -> list[str]:
    """The ids of a user's clients, the waiting ones first. What runs in a pod is the pod's, whatever its uid is."""
    clients = turns["clients"]
    own = [id for id, client in clients.items() if client["uid"] == uid and client["pod"] in NO_POD]
    return sorted(own, key=lambda id: clients[id]["wait"] is None)


def processes_of(reader: Reader, target: str | None) -> dict[str, Document]:
    """The processes on GPUs that a pid, a job, a container, a pod or a user means; without a target, one's own.

    A job is named as `allocations` lists it: by its workload, such as a lease, or by the slot's holder. What runs in a
    pod is the pod's, whatever its uid is.
    """
    who = reader.get("who")["who"]
    rows = {} if who is None else who["processes"]
    if target is None:
        return {key: row for key, row in rows.items() if row["uid"] == os.getuid() and not row["pod"]}
    held = reader.get("allocations")["allocations"]
    named = () if held is None else [row for row in held["held"].values() if target in (row["workload"], row["job"])]
    places = {(row["slot"], row["user"]) for row in named}
    return {
        key: row
        for key, row in rows.items()
        if target in (str(row["pid"]), row["job"], row["container"], row["pod"] or row["user"], row["account"])
        or (row["slot"], row["user"]) in places
    }


def held_without_process(reader: Reader, target: str | None, processes: Mapping[str, Document]) -> dict[str, Document]:
    """What a job, a container, a pod or a user holds without a process on the GPU, such as a command of `run` that
    computes elsewhere: rows of `allocations`, with how long the slot has been idle. Without a target, one's own."""
    slots = reader.get("slots")["slots"] or {}
    allocations = reader.get("allocations")["allocations"]
    running = {(row["slot"] or str(row["gpu_index"]), row["account"]) for row in processes.values()}
    own = user_name(os.getuid())
    return {
        key: {**row, "idle_s": slots.get(row["slot_uuid"], {}).get("idle_s")}
        for key, row in (allocations["held"] if allocations else {}).items()
        if row["share_ratio"]
        and (row["slot"], row["account"]) not in running
        and (own == row["user"] if target is None else target in (row["workload"], row["job"], row["pod"], row["user"]))
    }


def _clients(turns: Document, target: str, processes: Iterable[Document]) -> list[str]:
    pids = {row["pid"] for row in processes} | {parse_decimal(target)} - {None}
    by_pid = [id for id, client in turns["clients"].items() if pids & {client["pid"], *client["processes"]}]
    return list(dict.fromkeys([*find_clients(turns, target), *by_pid]))
