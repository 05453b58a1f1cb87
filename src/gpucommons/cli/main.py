"""The `gpucommons` command. Only the requested subcommand is imported: importing all of them takes most of a second."""

import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from gpucommons.cli.command_line import command_group, run
from gpucommons.cli.completion import COMPLETE_VARIABLE, PROGRAM, completed_command
from gpucommons.cli.version import version

# In the order of --help, with the first sentence of its help. Each is a module of this package that holds a function of
# the same name, or an `app`. Without the sentences `--help` would import all of them.
_COMMANDS: Final = {
    "up": "Run the agent in the foreground until Ctrl-C or SIGTERM.",
    "run": "Run a command with GPUs of its own: wait for them, set CUDA_VISIBLE_DEVICES, report what it used.",
    "queue": "Print the leases of this node, and the requests that wait, in the order in which they are served.",
    "cancel": (
        "End a lease, whose command then gets SIGTERM, or take a request out of the queue: your own, as root any."
    ),
    "reserve": "Reserve GPUs for a time to come.",
    "reservations": "Print the reservations of this node, earliest first.",
    "unreserve": "Remove a reservation: your own, as root any.",
    "gpus": "List the GPUs: use, memory, heat, power, owner and state.",
    "free": "List the free GPUs and MIG devices.",
    "me": "Show my jobs and what they use, my messages, my wait, my hours of this month, my quota.",
    "why": "Say why a program waits for a GPU or its turn, and what limits one that runs.",
    "who": "Show what each process uses of each GPU now: memory, SM time and power, its owner, and what has no owner.",
    "top": "Watch GPUs, processes and turns live in the terminal.",
    "allocations": "List the holders of each GPU now: held (stopped), running or active, and whether it was allocated.",
    "report": "Report GPU-hours held, active and idle, memory, energy, efficiency and cost, from the ledger.",
    "events": "Show events: GPUs lost and back, XIDs, allocations seen and gone, quotas, revoked turns.",
    "sample": "Print one sample of this node, within 3 seconds.",
    "check_config": "Check a configuration file: every mistake, or what differs from the defaults.",
    "stress": "Keep a GPU busy at a chosen utilisation, to test alerts.",
    "park": "Move the GPU memory of programs to host memory, without ending them: your own, or as an admin all users'.",
    "wake": "Bring parked programs back to their GPU, as soon as it has the room: your own, or as an admin all users'.",
    "parked": "Print the parked programs: since when, how much host memory they take, and why one is not back yet.",
    "resume": "Resume paused programs.",
    "completion": "Print the completion script of a shell.",
    "version": "Print the versions of gpucommons and of Python.",
}
_GROUPS: Final = {
    "scheduler": "Turns on shared GPUs: running and waiting clients, and why they wait; switch it, limit clients.",
    "slurm": "Slurm: hooks for its daemons, health of the node, summaries of jobs, configuration.",
    "stack": "Run Prometheus, Alertmanager and Grafana for this node.",
}
# How `gpucommons --help` groups the commands: by the person who types them.
_PERSONS: Final = {
    "To use GPUs": (
        *("run", "free", "queue", "why", "me", "gpus", "who", "top", "cancel"),
        *("reserve", "reservations", "unreserve"),
    ),
    "To look after a server": (
        *("up", "allocations", "report", "events", "park", "wake", "parked", "resume"),
        *("scheduler", "check_config", "stack"),
    ),
    "To build on it": ("sample", "slurm", "stress", "completion", "version"),
}
# Commands whose module has another name.
_MODULES: Final = {
    **dict.fromkeys(("queue", "cancel", "reserve", "reservations", "unreserve"), "leases"),
    **dict.fromkeys(("park", "wake", "parked"), "parking"),
}
COMMANDS: Final = (*_COMMANDS, *_GROUPS)


def _print_version(requested: bool) -> None:
    if requested:
        version()
        raise typer.Exit()


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """The options of `gpucommons` itself. Typer needs a callback to keep subcommands when only one is added."""


def command_line(names: Iterable[str]) -> typer.Typer:
    """The `gpucommons` command with the named subcommands."""
    app = _program()
    for name in names:
        module = import_module(f"gpucommons.cli.{_MODULES.get(name, name)}")
        if name in _GROUPS:
            app.add_typer(module.app, name=name)
        else:
            app.command(context_settings=getattr(module, "CONTEXT_SETTINGS", None))(getattr(module, name))
    return app


class _CommandsByPerson(TyperGroup):
    """The help of the program: the commands in groups, each with its sentence in full."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for person, names in _PERSONS.items():
            shown = [name.replace("_", "-") for name in names]
            rows = [(name, self.commands[name].help or "") for name in shown if name in self.commands]
            with formatter.section(person):
                formatter.write_dl(rows)


def overview() -> typer.Typer:
    """The `gpucommons` command with the names and first sentences of its subcommands, which are not loaded.

    It serves where none of them runs: --help, --version, the completion of their names, a name that does not exist.
    """
    app = _program(_CommandsByPerson)
    for name, sentence in {**_COMMANDS, **_GROUPS}.items():
        app.command(name.replace("_", "-"), help=sentence)(_nothing)
    return app


def _program(group: type[TyperGroup] = TyperGroup) -> typer.Typer:
    app = command_group(
        PROGRAM, "Show who uses each GPU, share GPUs fairly and keep accounts of their use: one agent per node."
    )
    app.callback(cls=group)(_options)
    return app


def _nothing() -> None:
    """Stands for a subcommand that is not loaded."""


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if len(given) == 1 and given[0] in _GROUPS:
        given.append("--help")
    first = given[0]
    if COMPLETE_VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
        first = completed_command(os.environ)
    requested = [name for name in COMMANDS if name.replace("_", "-") == first.removeprefix("--")]
    run(command_line(requested) if requested else overview(), PROGRAM, given)
