"""`gpucommons stack`, and `monitoring-manage` and `monitoring-status` for those whose hands know these names."""

import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from gpucommons.cli.options import ConfigFile, load_settings
from gpucommons.cli.run import CommandError, command_group, run
from gpucommons.config.stack import StackSettings
from gpucommons.stack.compose import ComposeEngine
from gpucommons.stack.engine import choose
from gpucommons.stack.errors import StackError
from gpucommons.stack.health import ServiceHealth, healthy
from gpucommons.stack.layout import Layout, default_root
from gpucommons.stack.local import LocalEngine
from gpucommons.stack.stack import Stack
from gpucommons.web.http.port_owner import port_owner

app = command_group("stack", "Prometheus, Alertmanager and Grafana beside the agent: start, watch and change them.")

EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine", metavar="compose|local", help="Default: compose where Docker answers.", show_default=False
    ),
]
DataDirectory = Annotated[
    str | None, typer.Option("--data-dir", metavar="DIR", help="Where the stack lives.", show_default=False)
]


def _engine(config: Path | None, engine: str | None, data_dir: str | None) -> LocalEngine | ComposeEngine:
    flags: dict[str, tuple[str, object]] = {
        "stack.engine": ("--engine", engine),
        "stack.data_dir": ("--data-dir", data_dir),
    }
    settings = load_settings(config, flags).settings.stack
    stack = Stack(settings, Layout(_root(settings)), settings.node or socket.gethostname(), typer.echo, port_owner)
    return ComposeEngine(stack) if choose(settings.engine) == "compose" else LocalEngine(stack)


def _root(settings: StackSettings) -> Path:
    if settings.data_dir:
        return Path(settings.data_dir).absolute()
    return default_root(Path.home(), os.environ.get("XDG_STATE_HOME"), os.geteuid() == 0)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """What went wrong may have several lines, one per problem: none is swallowed."""
    try:
        yield
    except StackError as error:
        *all_but_last, last = str(error).splitlines()
        for line in all_but_last:
            typer.echo(f"gpucommons: {line}", err=True)
        raise CommandError(last) from error
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise CommandError(f"{what}; run as its owner, or choose another place with --data-dir") from error


@app.command()
def start(
    config: ConfigFile = None,
    engine: EngineName = None,
    data_dir: DataDirectory = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay until stopped, as a service manager wants it (local engine).")
    ] = False,
) -> None:
    """Start all services, after a check. Starting twice is one stack."""
    with _told():
        chosen = _engine(config, engine, data_dir)
        if not foreground:
            chosen.start()
        elif isinstance(chosen, LocalEngine):
            chosen.start(foreground=True)
        else:
            raise CommandError("--foreground is for the local engine: Docker runs the other; add --engine local")


@app.command()
def stop(config: ConfigFile = None, engine: EngineName = None, data_dir: DataDirectory = None) -> None:
    """Stop all services. No process stays; the data does."""
    with _told():
        _engine(config, engine, data_dir).stop()


@app.command()
def restart(config: ConfigFile = None, engine: EngineName = None, data_dir: DataDirectory = None) -> None:
    """Stop and start, unless the configuration is broken: then nothing is touched."""
    with _told():
        chosen = _engine(config, engine, data_dir)
        _refuse_if_broken(chosen)
        chosen.stop()
        chosen.start()


@app.command()
def reload(config: ConfigFile = None, engine: EngineName = None, data_dir: DataDirectory = None) -> None:
    """Bring changed rules and routes into force without a restart, unless they are broken."""
    with _told():
        _engine(config, engine, data_dir).reload()


@app.command()
def check(config: ConfigFile = None, engine: EngineName = None, data_dir: DataDirectory = None) -> None:
    """Check configuration and rules; name file and line of what is broken. Changes nothing."""
    with _told():
        chosen = _engine(config, engine, data_dir)
        _refuse_if_broken(chosen)
        typer.echo(f"the configuration is good ({chosen.name} engine)")


@app.command()
def status(config: ConfigFile = None, engine: EngineName = None, data_dir: DataDirectory = None) -> None:
    """Show each service. Exit status 0 only if every one truly works."""
    with _told():
        chosen = _engine(config, engine, data_dir)
        healths = chosen.status()
    typer.echo(f"engine: {chosen.name}")
    _show(healths)
    raise typer.Exit(0 if healthy(healths) else 1)


@app.command()
def logs(
    service: Annotated[str | None, typer.Argument(metavar="[SERVICE]", help="One service only.")] = None,
    config: ConfigFile = None,
    engine: EngineName = None,
    data_dir: DataDirectory = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many old lines to show first.")] = 50,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Go on with new lines until Ctrl-C.")] = True,
) -> None:
    """Show and follow the logs of all services, or of one."""
    with _told():
        chosen = _engine(config, engine, data_dir)
        if service is not None and service not in chosen.services:
            raise CommandError(f"there is no service '{service}'; there are {', '.join(chosen.services)}")
        with contextlib.suppress(KeyboardInterrupt):
            chosen.logs(service, lines, follow)


@app.command()
def update(config: ConfigFile = None, engine: EngineName = None, data_dir: DataDirectory = None) -> None:
    """Compose: pull the images and restart. Local: restart what the distribution has replaced."""
    with _told():
        chosen = _engine(config, engine, data_dir)
        _refuse_if_broken(chosen)
        chosen.update()


@app.command()
def build(config: ConfigFile = None, engine: EngineName = None, data_dir: DataDirectory = None) -> None:
    """Build the agent's image (compose engine)."""
    with _told():
        _engine(config, engine, data_dir).build()


def _refuse_if_broken(engine: LocalEngine | ComposeEngine) -> None:
    problems = engine.check()
    if problems:
        raise StackError("\n".join(str(problem) for problem in problems))


def _show(healths: Sequence[ServiceHealth]) -> None:
    width = max(len(health.service) for health in healths)
    for health in healths:
        typer.echo(f"{health.service:<{width}}  {'UP' if health.ok else 'DOWN':<4}  {health.detail}")


_quick = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@_quick.command()
def monitoring_status(
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing; the exit status tells.")] = False,
    config: ConfigFile = None,
    engine: EngineName = None,
    data_dir: DataDirectory = None,
) -> None:
    """Exit status 0 only if every service of the monitoring stack truly works."""
    with _told():
        healths = _engine(config, engine, data_dir).status()
    if not quiet:
        _show(healths)
    raise typer.Exit(0 if healthy(healths) else 1)


def manage_main() -> None:
    """The console script `monitoring-manage`."""
    run(app, "monitoring-manage", sys.argv[1:] or ["--help"])


def status_main() -> None:
    """The console script `monitoring-status`."""
    run(_quick, "monitoring-status", sys.argv[1:])
