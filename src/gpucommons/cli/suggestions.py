"""What a shell may complete: the pids, users and GPUs that the agent knows now.

The answer must come at once and without a word: no agent, or a slow one, means no suggestions.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import typer

from gpucommons.base.text import printable
from gpucommons.cli.agent_client import Document
from gpucommons.cli.gpus_view import short_model
from gpucommons.cli.reader import Reader

# A shell waits for this while the user types.
_WITHIN_S = 0.7

Suggestion = tuple[str, str]


def pids(context: typer.Context, incomplete: str) -> list[Suggestion]:
    rows = _rows(context, "who", "processes")
    return _matching(((str(row["pid"]), row["name"] or "") for row in rows), incomplete)


def users(context: typer.Context, incomplete: str) -> list[Suggestion]:
    rows = _rows(context, "who", "processes")
    return _matching(((row["account"], "") for row in rows if row["account"]), incomplete)


def gpus(context: typer.Context, incomplete: str) -> list[Suggestion]:
    rows = _rows(context, "gpus", "by_uuid")
    return _matching(((str(row["index"]), short_model(row["name"])) for row in rows), incomplete)


def clients(context: typer.Context, incomplete: str) -> list[Suggestion]:
    """The clients of the scheduler: by pid where a program is one, else by id."""
    section = _section(context, "turns")
    rows = section["clients"].items() if section else ()
    named = ((f"pid:{row['pid']}" if row["program"] and row["pid"] else id, row["name"]) for id, row in rows)
    return _matching(named, incomplete)


def _rows(context: typer.Context, name: str, rows: str) -> Iterator[Document]:
    section = _section(context, name)
    yield from section[rows].values() if section else ()


def _section(context: typer.Context, name: str) -> Any:
    """That part of the API's document; None without one."""
    connect = context.params.get("connect")
    try:
        document = Reader(connect if isinstance(connect, str) else None, within_s=_WITHIN_S).ask(name)
    except Exception:
        # Whatever it is, a message in the line that is being typed does not help.
        return None
    return document[name] if document else None


def _matching(suggestions: Iterable[Suggestion], incomplete: str) -> list[Suggestion]:
    """Each value once. Names are escaped: the shell shows them."""
    distinct = {printable(value): printable(help) for value, help in suggestions}
    return [(value, help) for value, help in distinct.items() if value.startswith(incomplete)]
