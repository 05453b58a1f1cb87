"""`gpucommons who`: take one sample and say whose each part of each GPU is, or why one process is whose."""

import json
import sys
from typing import Annotated

import typer

from gpucommons.cli.one_sample import take_sample
from gpucommons.cli.options import ConfigFile, Procfs, Simulate
from gpucommons.cli.run import CommandError
from gpucommons.cli.who_view import RowFilter, as_rows, explain, render
from gpucommons.model.snapshot import Snapshot


def who(
    user: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only what this user, uid or owner has.", show_default=False),
    ] = None,
    gpu: Annotated[str | None, typer.Option(metavar="INDEX|UUID", help="Only this GPU.", show_default=False)] = None,
    pid: Annotated[
        int | None,
        typer.Option(metavar="N", help="Explain step by step whose this process is.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    config: ConfigFile = None,
    simulate: Simulate = None,
    procfs: Procfs = None,
) -> None:
    """Say who uses each GPU now: memory, SM time and power, and what nobody can be named for."""
    _, snapshot = take_sample(config, simulate, procfs)
    if pid is not None:
        sys.stdout.write(_explained(snapshot, pid))
        return
    wanted = RowFilter(user, gpu)
    _check_gpu(snapshot, wanted)
    if as_json:
        text = json.dumps(as_rows(snapshot, wanted), indent=2, ensure_ascii=False) + "\n"
    else:
        text = render(snapshot, wanted)
    sys.stdout.write(text)


def _explained(snapshot: Snapshot, pid: int) -> str:
    text = explain(snapshot, pid)
    if text is None:
        raise CommandError(f"pid {pid} is on no GPU now; `gpucommons who` lists those that are")
    return text


def _check_gpu(snapshot: Snapshot, wanted: RowFilter) -> None:
    attribution = snapshot.readings.attribution
    accounts = attribution.accounts if attribution else ()
    if wanted.gpu is not None and accounts and not any(wanted.has_gpu(a.gpu_uuid, a.gpu_index) for a in accounts):
        known = ", ".join(str(account.gpu_index) for account in accounts)
        raise CommandError(f"no GPU '{wanted.gpu}'; there are {known} (or name one by its UUID)")
