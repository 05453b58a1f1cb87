"""`gpucommons who`: take one sample and print the owner of each part of each GPU, or explain one process's owner."""

from typing import Annotated

import typer

from gpucommons.base.printable import Printable
from gpucommons.cli.one_sample import take_sample
from gpucommons.cli.options import ConfigFile, Procfs, Simulate
from gpucommons.cli.output import show
from gpucommons.cli.run import CommandError
from gpucommons.cli.who_view import explain, render
from gpucommons.faces.documents.parameters import BadParameter
from gpucommons.faces.documents.values import indented
from gpucommons.faces.documents.view import View
from gpucommons.faces.documents.who import WhoFilter
from gpucommons.faces.documents.who import who as who_document
from gpucommons.model.snapshot import Snapshot


def who(
    user: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only this account, user, uid or owner.", show_default=False),
    ] = None,
    gpu: Annotated[str | None, typer.Option(metavar="INDEX|UUID", help="Only this GPU.", show_default=False)] = None,
    pid: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Explain step by step how the owner of this process is found.", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    config: ConfigFile = None,
    simulate: Simulate = None,
    procfs: Procfs = None,
) -> None:
    """Show what each process uses of each GPU now: memory, SM time and power, its owner, and what has no owner."""
    _, snapshot = take_sample(config, simulate, procfs)
    if pid is not None:
        show(_explained(snapshot, pid))
        return
    chosen = WhoFilter(None if gpu is None else _gpu_uuid(snapshot, gpu), user=user)
    if as_json:
        show(indented({**View(snapshot).envelope(), **who_document(snapshot, chosen)}))
    else:
        show(render(snapshot, chosen))


def _explained(snapshot: Snapshot, pid: int) -> Printable:
    text = explain(snapshot, pid)
    if text is None:
        raise CommandError(f"pid {pid} is not on a GPU now; `gpucommons who` lists the processes that are")
    return text


def _gpu_uuid(snapshot: Snapshot, name: str) -> str:
    try:
        return View(snapshot).gpu_uuid(name)
    except BadParameter as error:
        raise CommandError(f"--gpu: {error}") from error
