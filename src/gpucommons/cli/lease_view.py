"""What `gpucommons run` and `queue` print about leases: the live line, the tables. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gpucommons.base.periods import spoken_age, spoken_duration
from gpucommons.cli.output import Line, plain_line
from gpucommons.cli.text_table import TextTable, wrap_lines

# More requests than this are not named in one line.
_NAMED = 3
_LEAVE = "Ctrl-C leaves"
# A user who waited for so long may look elsewhere: the terminal rings when the command starts, and `me` has a message.
LONG_WAIT_S = 10.0
_LEAST_REASON = 12


def waiting_line(line: Mapping[str, Any], waited_s: float, width: int | None) -> str:
    """`waiting 40 s, place 2 of 5, start in about 14 min: GPU 3 is held by emeka, idle for 2 min (Ctrl-C leaves)`.

    Where that is wider than the terminal, words are left out: `waiting 40 s, 2 of 5, about 14 min: GPU 3: emeka, idle
    2 min (Ctrl-C leaves)`. A longer reason is cut: the place and how to leave stay.
    """
    expected = line.get("expected_s")
    when = "" if not isinstance(expected, int | float) else f"about {spoken_age(expected)}"
    waited = f" {spoken_age(waited_s)}" if waited_s >= 1 else ""
    place = f"{line['position']} of {line['of']}"
    begin = f"waiting{waited}, place {place}" + (f", start in {when}" if when else "")
    sentence = str(line["sentence"])
    if width is None:
        return f"{begin}: {sentence}"
    first = sentence.partition(";")[0]
    brief = f"waiting{waited}, {place}" + (f", {when}" if when else "")
    briefest = first.replace(" is held by ", ": ").replace(", idle for ", ", idle ")
    for text in (f"{begin}: {sentence}", f"{begin}: {first}", f"{brief}: {first}", f"{brief}: {briefest}"):
        if len(text) + len(f" ({_LEAVE})") <= width:
            return f"{text} ({_LEAVE})"
    room = width - len(f"{brief}: … ({_LEAVE})")
    return f"{brief}: {briefest[:room]}… ({_LEAVE})" if room >= _LEAST_REASON else f"{brief} ({_LEAVE})"


def requests_of(queue: Mapping[str, Any], user: str) -> list[str]:
    """The ids of a user's requests that wait."""
    return [id for id, row in queue["waiting"].items() if row["user"] == user]


def requests_before(queue: Mapping[str, Any], id: str) -> list[str]:
    """The requests that are served before this one, in their order."""
    place = queue["waiting"][id]["position"]
    return [other for other, row in queue["waiting"].items() if row["position"] < place]


def request_line(queue: Mapping[str, Any], id: str, now_s: float) -> str:
    """Why a request waits, for how long, and behind which requests."""
    row = queue["waiting"][id]
    name = f" ({row['name']})" if row["name"] else ""
    waited = spoken_duration(max(0.0, now_s - row["since_unix_s"]))
    start_s = row["expected_start_unix_s"]
    when = (
        "its start is not known" if start_s is None else f"start in about {spoken_duration(max(0.0, start_s - now_s))}"
    )
    before = [f"request {other} of {queue['waiting'][other]['user']}" for other in requests_before(queue, id)]
    more = f" and {len(before) - _NAMED} more" if len(before) > _NAMED else ""
    behind = f"behind {', '.join(before[:_NAMED])}{more}; " if before else ""
    place = f"place {row['position']} of {len(queue['waiting'])}"
    others = "".join(f"; {blocker['sentence']}" for blocker in row["blockers"][1:_NAMED])
    reason = row["blockers"][0]["sentence"] + others if row["cause"] == "busy" and row["blockers"] else row["sentence"]
    hidden = len(row["blockers"]) - _NAMED
    reason += f"; {hidden} more that fit are in use" if row["cause"] == "busy" and hidden > 0 else ""
    return f"request {id}{name} has been waiting for {waited}: {reason}; {place}; {behind}{when}."


def start_line(lease: Mapping[str, Any]) -> str:
    """That the wait of a command is over: since when it runs, where, and how long it waited."""
    when = datetime.fromtimestamp(lease["since_unix_s"]).strftime("%d %b %H:%M")
    name = f" ({lease['name']})" if lease["name"] else ""
    slots = f"GPU{'s' if len(lease['slots']) > 1 else ''} {', '.join(lease['slots'])}"
    waited = spoken_duration(lease["waited_s"])
    return f"message ({when}): your command{name} runs on {slots} since then, after {waited} in line"


def queue_lines(queue: Mapping[str, Any], now_s: float, width: int | None) -> list[Line]:
    """Two tables: leases, and requests in the order in which they are served."""
    off = [f"leases are off: {queue['off']}"] if queue["off"] else []
    leases = [
        (
            id,
            lease["user"],
            lease["name"],
            ",".join(lease["slots"]),
            _kind(lease),
            spoken_duration(max(0.0, now_s - lease["since_unix_s"])),
            _expected_start(lease["ends_unix_s"], now_s) if lease["ends_unix_s"] is not None else "",
            _trespassers(lease["trespassers"]),
        )
        for id, lease in queue["leases"].items()
    ]
    waiting = [
        (
            str(request["position"]),
            id,
            request["user"],
            request["name"],
            str(request["gpus"]),
            spoken_duration(max(0.0, now_s - request["since_unix_s"])),
            _expected_start(request["expected_start_unix_s"], now_s),
            request["sentence"],
        )
        for id, request in queue["waiting"].items()
    ]
    held = TextTable(
        ("id", "user", "name", "slots", "mode", "for", "ends", "note"),
        leases,
        shortest={"user": 8, "name": 8, "slots": 8},
        left_out=("mode",),
        sentence="note",
    )
    queued = TextTable(
        ("place", "id", "user", "name", "gpus", "waits", "expected", "why"),
        waiting,
        shortest={"user": 8, "name": 8},
        left_out=("name", "gpus"),
        sentence="why",
    )
    return [
        *map(plain_line, wrap_lines(off, width)),
        *(held.fit(width) if leases else [plain_line("no leases")]),
        [],
        *(queued.fit(width) if waiting else [plain_line("no request waits")]),
    ]


def reservation_lines(queue: Mapping[str, Any], width: int | None) -> list[Line]:
    rows = [
        (
            id,
            reservation["user"],
            str(reservation["gpus"]),
            ",".join(reservation["slots"]),
            local_time(reservation["from_unix_s"]),
            local_time(reservation["until_unix_s"]),
            ("held by others" if reservation["held"] else "active") if reservation["active"] else "to come",
        )
        for id, reservation in sorted(queue["reservations"].items(), key=lambda pair: pair[1]["from_unix_s"])
    ]
    header = ("id", "user", "gpus", "slots", "from", "until", "state")
    table = TextTable(header, rows, shortest={"user": 8, "slots": 8}, left_out=("gpus",), states=("state",))
    return table.fit(width) if rows else [plain_line("no reservations")]


def local_time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s).strftime("%a %Y-%m-%d %H:%M")


def _kind(lease: Mapping[str, Any]) -> str:
    if lease["mps"]:
        return "shared, MPS" if lease["sm_percent"] is None else f"shared, MPS {lease['sm_percent']} %"
    return "shared" if lease["shared"] else "exclusive"


def _trespassers(trespassers: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(
        f"used by {trespasser['user'] or 'unknown'} (pid {trespasser['pid']}) without a lease{_measure(trespasser)}"
        for trespasser in trespassers
    )


def _measure(trespasser: Mapping[str, Any]) -> str:
    """Empty where trespassers are only reported."""
    if trespasser["paused"]:
        return ", paused"
    return f", not paused: {trespasser['not_paused_because']}" if trespasser["not_paused_because"] else ""


def _expected_start(start_s: float | None, now_s: float) -> str:
    return "unknown" if start_s is None else f"in {spoken_duration(max(0.0, start_s - now_s))}"
