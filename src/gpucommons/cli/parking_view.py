"""The text of `gpucommons park`, `wake` and `parked`: the table, the line of progress, the outcome. Pure.

Names come from users: the lines are escaped when they are printed.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gpucommons.base.periods import spoken_duration
from gpucommons.cli.output import Line, plain_line
from gpucommons.cli.text_table import TextTable, wrapped
from gpucommons.rules.wait_reasons import gibibytes

Document = Mapping[str, Any]

# The fields of an event that `park --json` and `wake --json` have; null while it is not known.
_OUTCOME = ("kind", "unix_s", "bytes", "duration_s", "sentence", "why")


def table_lines(parking: Document, now_s: float, width: int | None) -> Iterator[Line]:
    if parking["unavailable"]:
        yield from map(plain_line, wrapped([f"nothing can be parked: {parking['unavailable']}"], width))
    rows = [
        (
            one["name"],
            one["stage"],
            spoken_duration(max(0.0, now_s - one["since_unix_s"])),
            gibibytes(one["host_bytes"]),
            one["cause"],
            progress(one) or one["waits"],
        )
        for one in parking["programs"].values()
    ]
    if rows:
        yield from TextTable(
            ("program", "state", "for", "host ram", "why", "note"),
            rows,
            shortest={"program": 12, "why": 8, "note": 12},
            left_out=("why",),
            states=("state",),
        ).fitted(width)
    else:
        yield plain_line("no program is parked")


def progress(program: Document) -> str:
    """`4.2 of 10.0 GiB, 2.0 GiB/s, about 3 s left`; empty while it does not move."""
    if program["stage"] not in ("parking", "waking"):
        return ""
    total, in_host = program["gpu_bytes"], program["host_bytes"]
    done = in_host if program["stage"] == "parking" else total - in_host
    rate, left_s = program["rate_bytes_s"], program["remaining_s"]
    speed = "" if not rate else f", {gibibytes(rate)}/s"
    left = "" if left_s is None else f", about {left_s:.0f} s left"
    return f"{gibibytes(done)} of {gibibytes(total)}{speed}{left}"


def live_line(programs: Mapping[str, Document]) -> str:
    """What moves or waits now."""
    parts = [f"{one['name']}: {one['stage']} {progress(one) or one['waits']}".rstrip() for one in programs.values()]
    return "; ".join(parts)


def is_done(order: str, program: Document | None) -> bool:
    """Whether the program has reached what was ordered, or cannot."""
    if program is None:
        return True
    return program["stage"] == "stranded" or (order == "park" and program["stage"] == "parked" and not program["waits"])


def outcome(parking: Document, key: str, after_unix_s: float) -> Document | None:
    """The last event of this program since the order."""
    events = [one for one in parking["events"] if one["program"] == key and one["unix_s"] >= after_unix_s]
    return events[-1] if events else None


def outcome_line(event: Document) -> str:
    taken = f" in {event['duration_s']:.1f} s" if event["kind"] == "parked" else ""
    return f"{event['name']}: {event['kind']}{taken}: {event['sentence']}"


def order_document(answer: Document, events: Mapping[str, Document]) -> Document:
    """The outcome of each program that an order reached, by key, as far as it is known, and the refusals in words."""
    return {
        "programs": {
            key: {"name": name, **{field: events.get(key, {}).get(field) for field in _OUTCOME}}
            for key, name in zip(answer["keys"], answer["names"], strict=True)
        },
        "refused": answer["refused"],
    }
