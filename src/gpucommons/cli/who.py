"""`gpucommons who`: the owner of each part of each GPU, or how the owner of one process is found."""

from typing import Annotated

import typer

from gpucommons.base.text import printable_lines
from gpucommons.cli.command_line import NotFound
from gpucommons.cli.gpus_view import missing
from gpucommons.cli.options import AsJson, CaFile, ConfigFile, Connect, PasswordFile, Procfs, Simulate, TableFormat
from gpucommons.cli.output import show, show_line, show_lines, terminal_width
from gpucommons.cli.reader import Reader, hidden_note
from gpucommons.cli.scheduler_view import parked_lines
from gpucommons.cli.suggestions import gpus, pids, users
from gpucommons.cli.text_table import Format
from gpucommons.cli.who_view import exact_who, explain, who_lines
from gpucommons.faces.documents.values import indented


def who(
    user: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Only this account, user, uid or owner.", show_default=False, autocompletion=users
        ),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="INDEX|UUID", help="Only this GPU.", show_default=False, autocompletion=gpus)
    ] = None,
    pid: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Explain step by step how the owner of this process is found.",
            show_default=False,
            autocompletion=pids,
        ),
    ] = None,
    format: TableFormat = Format.TABLE,
    as_json: AsJson = False,
    connect: Connect = None,
    password_file: PasswordFile = None,
    ca_file: CaFile = None,
    config: ConfigFile = None,
    simulate: Simulate = None,
    procfs: Procfs = None,
) -> None:
    """Show what each process uses of each GPU now: memory, SM time and power, its owner, and what has no owner."""
    reader = Reader(connect, password_file, ca_file, config, simulate, procfs)
    document = reader.get("who", {"gpu": gpu, "user": user, "pid": None if pid is None else str(pid)})
    found = document["who"]
    if pid is not None and (found is None or not found["processes"]):
        hidden = f" ({document['hidden']['sentence']})" if document["hidden"] else ""
        raise NotFound(f"pid {pid} is not on a GPU now{hidden}; `gpucommons who` lists the processes that are")
    if user is not None and (found is None or not found["processes"]):
        hidden = f" ({document['hidden']['sentence']})" if document["hidden"] else ""
        raise NotFound(f"no user {user!r} on a GPU{hidden}; `gpucommons who` lists the users that are")
    if as_json or format is Format.JSON:
        show(indented(document))
    elif found is None:
        show_line(missing(reader.get("snapshot")))
    elif format is not Format.TABLE:
        show(exact_who(found).rendered(format))
    elif pid is not None:
        show(explain(found, document["explanations"]))
    else:
        show_lines(who_lines(found, reader.get("gpus")["gpus"], terminal_width()))
        turns = reader.get("turns")["turns"]
        if turns is not None and user is None and gpu is None:
            show(printable_lines(parked_lines(turns)))
        show(hidden_note(document, "who"))
