"""`gpucommons me`: my jobs and what they use, my messages, my wait, my GPU-hours of this month, and my quota."""

import os
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from gpucommons.cli.command_line import CommandError
from gpucommons.cli.gpus_view import missing
from gpucommons.cli.job_view import co2_text, money_text
from gpucommons.cli.lease_view import LONG_WAIT_S, request_line, requests_before, requests_of, start_line
from gpucommons.cli.options import AsJson
from gpucommons.cli.output import Line, plain_line, show, show_lines, terminal_width
from gpucommons.cli.reader import Reader, reading
from gpucommons.cli.scheduler_view import behind, explanation, room_lines, seconds
from gpucommons.cli.text_table import TextTable, wrap_lines
from gpucommons.cli.why import own_clients, user_name
from gpucommons.faces.documents.values import indent

_HEADER = ("slot", "workload", "kind", "state", "sm", "memory", "power", "idle for")
_NUMBERS = frozenset({4, 5, 6, 7})

Document = Mapping[str, Any]


@reading("simulate", "procfs")
def me(
    messages: Annotated[
        bool, typer.Option("--messages", help="Only my messages about GPUs that are idle now, for a login script.")
    ] = False,
    as_json: AsJson = False,
    *,
    reader: Reader,
) -> None:
    """Show my jobs and what they use, my messages, my wait, my hours of this month, my quota."""
    if messages:
        _show_messages(reader, user_name(os.getuid()), as_json)
        return
    document, waits = gather(reader, user_name(os.getuid()), os.getuid())
    if as_json:
        show(indent(document))
    else:
        show_lines(_lines(document["me"], waits, terminal_width()))


def gather(reader: Reader, user: str, uid: int) -> tuple[Document, list[str]]:
    """The document of this command, null where a part is not known; and a line for each of the user's waits."""
    slots = reader.get("slots")
    if slots["slots"] is None:
        raise CommandError(missing(reader.get("snapshot")))
    allocations = reader.get("allocations", {"user": user})["allocations"]
    turns = reader.get("turns")["turns"]
    queue = reader.get("queue")["queue"]
    own = own_clients(turns, uid) if turns else []
    asked = requests_of(queue, user) if queue else []
    received = reader.get("messages", {"user": user})["messages"]
    month = time.strftime("%Y-%m")
    accounts = _month(reader, month, user)
    jobs = {
        key: {**row, "idle_s": slots["slots"].get(row["slot_uuid"], {}).get("idle_s")}
        for key, row in (allocations["held"] if allocations else {}).items()
        if row["share_ratio"]
    }
    me = {
        "user": user,
        "uid": uid,
        "jobs": jobs if allocations else None,
        "clients": {id: {**turns["clients"][id], "behind": behind(turns, id)} for id in own} if turns else None,
        "requests": {id: {**queue["waiting"][id], "behind": requests_before(queue, id)} for id in asked}
        if queue
        else None,
        "leases": {id: lease for id, lease in queue["leases"].items() if lease["user"] == user} if queue else None,
        "messages": received,
        "month": None if accounts is None else {month: _with_currency(accounts[month])},
        "quota": allocations["quotas"].get(user) if allocations else None,
        "limits": _limits(reader, uid),
        "lease_quotas": queue["quotas"].get(user, queue["quotas"].get("*", [])) if queue else None,
    }
    waits = [request_line(queue, id, slots["time_unix_s"]) for id in asked]
    if turns is not None:
        waits += [explanation(turns, id) for id in own if turns["clients"][id]["wait"] is not None]
        waits += room_lines(turns, uid)
    return {**{name: slots[name] for name in slots if name != "slots"}, "me": me}, waits


def _limits(reader: Reader, uid: int) -> Document | None:
    """What limits each process of the user, by pid; null where no process is known."""
    who = reader.get("who")["who"]
    if who is None:
        return None
    rows = [row for row in who["processes"].values() if row["uid"] == uid and row["limit"]]
    return {str(row["pid"]): {"name": row["name"], **row["limit"]} for row in rows}


def _show_messages(reader: Reader, user: str, as_json: bool) -> None:
    """Of a running agent only: a sample of this command's own has no messages."""
    document = reader.ask("messages", {"user": user})
    if document is None:
        raise CommandError(f"{reader.why}: start the agent with 'gpucommons up', or name one with --connect")
    if as_json:
        show(indent(document))
        return
    lines = [message_line(message) for message in (document["messages"] or {}).values() if not message["over"]]
    show_lines(map(plain_line, wrap_lines(iter(lines), terminal_width())))


def message_line(message: Document) -> str:
    when = time.strftime("%d %b %H:%M", time.localtime(message["time_unix_s"]))
    return f"message ({when}{', over' if message['over'] else ''}): {message['text']}"


def _month(reader: Reader, month: str, user: str) -> Document | None:
    """The accounts of the month; null where neither an agent nor a readable file has them."""
    try:
        document = reader.ask("report", {"month": month, "user": user})
        if document is None:
            # Imported here: with an agent, it is not needed.
            from gpucommons.cli.report import own_report
            from gpucommons.model.words import By

            document = own_report(reader, None, month, By.USER, user)
    except CommandError:
        return None
    accounts: Document | None = document["accounts"]
    return accounts


def _with_currency(period: Document) -> Document:
    """The total of a period, with the currency of its cost where it has one."""
    total: dict[str, Any] = period["total"]
    return total | ({"currency": period["currency"]} if "currency" in period else {})


def _lines(me: Document, waits: list[str], width: int | None) -> Iterator[Line]:
    yield plain_line(f"{me['user']} (uid {me['uid']})")
    if me["jobs"] is None:
        yield plain_line("jobs: not known")
    elif not me["jobs"]:
        yield plain_line("jobs: none holds a GPU")
    else:
        yield from TextTable(
            _HEADER,
            [_cells(row) for row in me["jobs"].values()],
            numbers=_NUMBERS,
            shortest={"workload": 12},
            left_out=("kind",),
            states=("state",),
        ).fit(width)
    yield from map(plain_line, wrap_lines(_end(me, waits), width))


def _end(me: Document, waits: list[str]) -> Iterator[str]:
    yield from map(message_line, (me["messages"] or {}).values())
    yield from (start_line(lease) for lease in (me["leases"] or {}).values() if lease["waited_s"] >= LONG_WAIT_S)
    yield from (f"wait: {line}" for line in waits)
    if not waits and (me["clients"] is not None or me["requests"] is not None):
        yield "wait: none of your programs waits"
    for pid, limit in (me["limits"] or {}).items():
        yield f"{limit['name']} (pid {pid}): {limit['sentence']}"
    yield _hours(me["month"])
    yield _quota(me["quota"])
    for quota in me["lease_quotas"] or ():
        yield f"quota of leases: {quota['sentence']}"


def _cells(row: Document) -> list[str]:
    sm, memory, watts, idle_s = row["sm_ratio"], row["memory_bytes"], row["power_watts"], row["idle_s"]
    return [
        row["slot"],
        row["workload"],
        row["kind"],
        row["state"],
        "?" if sm is None else f"{sm:.0%}",
        "?" if memory is None else f"{memory / 2**30:.1f} GiB",
        "?" if watts is None else f"{watts:.0f} W",
        "" if idle_s is None else seconds(idle_s),
    ]


def _hours(month: Document | None) -> str:
    if month is None:
        return "GPU-hours this month: not known"
    ((name, total),) = month.items()
    parts = [f"{total[f'{kind}_gpu_hours']:.2f} {kind}" for kind in ("held", "active", "idle")]
    if total.get("cost") is not None:
        parts.append(f"cost {money_text(total['cost'], total.get('currency', ''))}")
    if total.get("co2_g") is not None:
        parts.append(f"{co2_text(total['co2_g'])} CO2")
    return f"GPU-hours this month ({name}): {', '.join(parts)}"


def _quota(quota: Document | None) -> str:
    if quota is None:
        return "quota: none"
    held = quota["held_gpu_equivalents"]
    exceeded = ", exceeded" if quota["exceeded"] else ""
    return (
        f"quota: {'?' if held is None else f'{held:g}'} of {quota['gpu_equivalents']:g} GPU-equivalents held{exceeded}"
    )
