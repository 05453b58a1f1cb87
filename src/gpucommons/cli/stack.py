"""`gpucommons stack`, and `monitoring-manage` and `monitoring-status`, the names of these commands in DS01."""

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from gpucommons.base.processes import port_owner
from gpucommons.base.text import printable
from gpucommons.cli.command_line import CommandError, command_group, run, say
from gpucommons.cli.options import AsJson, ConfigFile, load_settings
from gpucommons.cli.output import Span, clear_live, has_live_line, show, show_error, show_line, show_lines, show_live
from gpucommons.cli.text_table import state_colour
from gpucommons.config.stack import StackSettings
from gpucommons.faces.documents.values import Json, indent
from gpucommons.stack.check import ConfigProblem, StackError
from gpucommons.stack.compose import ComposeEngine, choose_engine
from gpucommons.stack.health import ServiceHealth, healthy
from gpucommons.stack.local import LocalEngine
from gpucommons.stack.prometheus import Layout, default_root
from gpucommons.stack.stack import Stack

app = command_group("stack", "Run Prometheus, Alertmanager and Grafana for this node.")

EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="compose|local",
        help="What runs the services. Default: compose if Docker answers.",
        show_default=False,
    ),
]
DataDirectory = Annotated[
    str | None, typer.Option("--data-dir", metavar="DIR", help="Directory of the stack's files.", show_default=False)
]


_READY_S = 90.0
_POLL_S = 0.5


def _show(line: str) -> None:
    show_line(printable(line))


def _show_as_progress(line: str) -> None:
    """With --json, stdout is for the document."""
    show_error(printable(line))


def stack_root(settings: StackSettings) -> Path:
    if settings.data_dir:
        return Path(settings.data_dir).absolute()
    return default_root(Path.home(), os.environ.get("XDG_STATE_HOME"), os.geteuid() == 0)


@contextlib.contextmanager
def _stack(
    config: Path | None, engine: str | None, data_dir: str | None, as_json: bool = False
) -> Iterator[LocalEngine | ComposeEngine]:
    """The engine of the stack. Prints every line of a StackError, which has one line per problem."""
    say = _show_as_progress if as_json else _show
    flags: dict[str, tuple[str, object]] = {
        "stack.engine": ("--engine", engine),
        "stack.data_dir": ("--data-dir", data_dir),
    }
    settings = load_settings(config, flags).settings.stack
    try:
        stack = Stack(settings, Layout(stack_root(settings)), settings.node or socket.gethostname(), say, port_owner)
        yield ComposeEngine(stack) if choose_engine(settings.engine) == "compose" else LocalEngine(stack)
    except StackError as error:
        *all_but_last, last = str(error).splitlines()
        for line in all_but_last:
            show_error(printable(f"gpucommons: {line}"))
        raise CommandError(last) from error
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise CommandError(f"{what}; run as the owner of the files, or choose another --data-dir") from error


@app.command()
def start(
    config: ConfigFile = None,
    engine: EngineName = None,
    data_dir: DataDirectory = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay in the foreground, for a service manager (local engine).")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check the configuration and start all services that do not run."""
    if foreground and as_json:
        raise CommandError("--json and --foreground exclude each other: in the foreground it reports nothing")
    with _stack(config, engine, data_dir, as_json) as chosen:
        if not foreground:
            chosen.start()
            _report_start(chosen, as_json)
        elif isinstance(chosen, LocalEngine):
            chosen.start(foreground=True)
        else:
            raise CommandError(
                "--foreground: the compose engine runs in Docker, not in the foreground; add --engine local"
            )


@app.command()
def stop(
    config: ConfigFile = None, engine: EngineName = None, data_dir: DataDirectory = None, as_json: AsJson = False
) -> None:
    """Stop all services and keep their data."""
    with _stack(config, engine, data_dir, as_json) as chosen:
        chosen.stop()
        _report(chosen, as_json)


@app.command()
def restart(
    config: ConfigFile = None, engine: EngineName = None, data_dir: DataDirectory = None, as_json: AsJson = False
) -> None:
    """Check the configuration, then stop and start all services."""
    with _stack(config, engine, data_dir, as_json) as chosen:
        _require_valid(chosen.check())
        chosen.stop()
        chosen.start()
        _report_start(chosen, as_json)


@app.command()
def reload(
    config: ConfigFile = None, engine: EngineName = None, data_dir: DataDirectory = None, as_json: AsJson = False
) -> None:
    """Check and apply changed rules and routes without a restart."""
    with _stack(config, engine, data_dir, as_json) as chosen:
        chosen.reload()
        _report(chosen, as_json)


@app.command()
def check(
    config: ConfigFile = None, engine: EngineName = None, data_dir: DataDirectory = None, as_json: AsJson = False
) -> None:
    """Check configuration and rules, and print file and line of errors."""
    with _stack(config, engine, data_dir, as_json) as chosen:
        problems = chosen.check()
        if as_json:
            rows: Json = [
                {"file": problem.file, "line": problem.line, "message": problem.message} for problem in problems
            ]
            show(indent({"engine": chosen.name, "valid": not problems, "problems": rows}))
        _require_valid(problems)
        if not as_json:
            _show(f"the configuration is valid ({chosen.name} engine)")


@app.command()
def status(
    config: ConfigFile = None,
    engine: EngineName = None,
    data_dir: DataDirectory = None,
    as_json: AsJson = False,
) -> None:
    """Print the state of each service; exit status 0 if all work."""
    with _stack(config, engine, data_dir) as chosen:
        healths = chosen.status()
    if as_json:
        show(indent(_document(chosen, healths)))
    else:
        _show(f"engine: {chosen.name}")
        _print_states(healths)
    raise typer.Exit(0 if healthy(healths) else 1)


@app.command()
def logs(
    service: Annotated[
        str | None, typer.Argument(metavar="[SERVICE]", help="Name of one service. Default: all.")
    ] = None,
    config: ConfigFile = None,
    engine: EngineName = None,
    data_dir: DataDirectory = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, metavar="N", help="Number of past lines to print first.")
    ] = 50,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Print new lines until Ctrl-C.")] = True,
) -> None:
    """Print and follow the logs of all services, or of one."""
    with _stack(config, engine, data_dir) as chosen:
        if service is not None and service not in chosen.services:
            raise CommandError(f"unknown service {service!r}; use one of {', '.join(chosen.services)}")
        with contextlib.suppress(KeyboardInterrupt):
            chosen.logs(service, lines, follow)


@app.command()
def update(
    config: ConfigFile = None, engine: EngineName = None, data_dir: DataDirectory = None, as_json: AsJson = False
) -> None:
    """Update the services.

    Compose: pull the images and restart. Local: restart the programs that were upgraded.
    """
    with _stack(config, engine, data_dir, as_json) as chosen:
        _require_valid(chosen.check())
        chosen.update()
        _report(chosen, as_json)


@app.command()
def build(config: ConfigFile = None, engine: EngineName = None, data_dir: DataDirectory = None) -> None:
    """Build the image of the agent (compose engine)."""
    with _stack(config, engine, data_dir) as chosen:
        chosen.build()


def _require_valid(problems: Sequence[ConfigProblem]) -> None:
    if problems:
        raise StackError("\n".join(str(problem) for problem in problems))


def _report(engine: LocalEngine | ComposeEngine, as_json: bool) -> None:
    """The document of `status` with --json; the engine itself prints the text."""
    if as_json:
        show(indent(_document(engine, engine.status())))


def _report_start(engine: LocalEngine | ComposeEngine, as_json: bool) -> None:
    """Waits for the services, then prints how many targets are up, or the document of `status`."""
    healths = _wait_until_ready(engine)
    if as_json:
        show(indent(_document(engine, healths)))
        return
    for health in healths:
        if health.service == "targets":
            _show(f"targets: {health.detail}")


def _document(engine: LocalEngine | ComposeEngine, healths: Sequence[ServiceHealth]) -> Json:
    """`url` is null for what is not a service of the stack."""
    urls = engine.urls
    services: Json = {
        health.service: {"state": _state(health), "detail": health.detail, "url": urls.get(health.service)}
        for health in healths
    }
    return {"engine": engine.name, "data_dir": str(engine.data_dir), "services": services}


def _wait_until_ready(engine: LocalEngine | ComposeEngine) -> list[ServiceHealth]:
    """Waits for the services, and, if an agent runs, for the first scrape. A terminal shows the progress."""
    deadline_s = time.monotonic() + _READY_S
    while pending := _pending(healths := engine.status()):
        if time.monotonic() > deadline_s:
            say(f"not ready after {_READY_S:.0f} s: {pending}; see: gpucommons stack logs")
            break
        if has_live_line():
            show_live(printable(f"waiting for {pending}"))
        time.sleep(_POLL_S)
    if has_live_line():
        clear_live()
    return healths


def _pending(healths: Sequence[ServiceHealth]) -> str:
    """What is not ready and may become so. Without an agent, its targets stay down: that is not waited for."""
    ready = {health.service for health in healths if health.ok}
    waiting = [
        health
        for health in healths
        if not health.ok and (health.service not in ("agent", "targets") or (health.starting and "agent" in ready))
    ]
    return "; ".join(f"{health.service}: {health.detail}" for health in waiting)


def _state(health: ServiceHealth) -> str:
    return "UP" if health.ok else "starting" if health.starting else "DOWN"


def _print_states(healths: Sequence[ServiceHealth]) -> None:
    width = max(len(health.service) for health in healths)
    show_lines(
        [
            Span(printable(f"{health.service:<{width}}  ")),
            Span(printable(f"{_state(health):<8}"), state_colour(_state(health))),
            Span(printable(f"  {health.detail}")),
        ]
        for health in healths
    )


_status_command = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@_status_command.command()
def monitoring_status(
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing; see the exit status.")] = False,
    config: ConfigFile = None,
    engine: EngineName = None,
    data_dir: DataDirectory = None,
) -> None:
    """Print the state of the monitoring stack; exit status 0 if all services work."""
    with _stack(config, engine, data_dir) as chosen:
        healths = chosen.status()
    if not quiet:
        _print_states(healths)
    raise typer.Exit(0 if healthy(healths) else 1)


def manage_main() -> None:
    """The console script `monitoring-manage`."""
    run(app, "monitoring-manage", sys.argv[1:] or ["--help"])


def status_main() -> None:
    """The console script `monitoring-status`."""
    run(_status_command, "monitoring-status", sys.argv[1:])
