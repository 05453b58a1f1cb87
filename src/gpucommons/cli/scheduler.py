"""`gpucommons scheduler ...`: the status of turns, and orders to the running agent."""

import json
import socket
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from gpucommons.base.printable import printable, printable_json, printable_lines
from gpucommons.cli.command_line import CommandError
from gpucommons.cli.options import ConfigFile, load_settings
from gpucommons.cli.output import clear_screen, show, show_line
from gpucommons.cli.scheduler_view import explanations, status_lines
from gpucommons.scheduler.service.control_socket import control_path

app = typer.Typer(
    help="Turns on shared GPUs: running and waiting clients, and why they wait; switch it, limit clients."
)

_TIMEOUT_S = 5.0

Target = Annotated[str, typer.Argument(metavar="CLIENT|POD", help="A client's id, a pod, or NAMESPACE/POD.")]
Explained = Annotated[
    str, typer.Argument(metavar="CLIENT|POD|NAME", help="A client's id, a pod, a name from status, or pid:4711.")
]
SocketPath = Annotated[
    str | None,
    typer.Option(
        "--socket", metavar="PATH", help="The scheduler's socket. Default: from the settings.", show_default=False
    ),
]


def send(config: Path | None, socket_path: str | None, request: dict[str, object]) -> Any:
    path = control_path(socket_path or load_settings(config, {}).settings.scheduler.socket)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_TIMEOUT_S)
            connection.connect(path)
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as answers:
                reply = json.loads(answers.readline())
    except FileNotFoundError:
        raise CommandError(
            f"the scheduler does not run here: {path} does not exist; start it with: gpucommons up --share"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise CommandError(f"the scheduler at {path} does not answer: {error}") from error
    if not reply.get("ok"):
        raise CommandError(str(reply.get("error")))
    return reply["answer"]


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON document of /api/v1/turns.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Print again each second until Ctrl-C.")] = False,
    config: ConfigFile = None,
    socket_path: SocketPath = None,
) -> None:
    """Print running and waiting clients of each GPU, why they wait, memory, and the time left of the turn."""
    while True:
        turns = send(config, socket_path, {"command": "status"})
        if watch:
            clear_screen()
        show(printable_json(json.dumps(turns, indent=2) + "\n") if as_json else printable_lines(status_lines(turns)))
        if not watch:
            return
        time.sleep(1)


@app.command()
def on(config: ConfigFile = None, socket_path: SocketPath = None) -> None:
    """Let clients take turns."""
    show_line(printable(send(config, socket_path, {"command": "on"})))


@app.command()
def off(config: ConfigFile = None, socket_path: SocketPath = None) -> None:
    """Let every client run, unscheduled."""
    show_line(printable(send(config, socket_path, {"command": "off"})))


@app.command("set-quantum")
def set_quantum(
    seconds: Annotated[float, typer.Argument(help="Length of a turn while others wait.")],
    config: ConfigFile = None,
    socket_path: SocketPath = None,
) -> None:
    """Fix the length of a turn."""
    show_line(printable(send(config, socket_path, {"command": "set-quantum", "seconds": seconds})))


@app.command("set-limit")
def set_limit(
    target: Target,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Such as 8Gi.", show_default=False)] = None,
    core: Annotated[str | None, typer.Option(metavar="PERCENT", help="1 to 100.", show_default=False)] = None,
    config: ConfigFile = None,
    socket_path: SocketPath = None,
) -> None:
    """Limit a client, or all clients of a pod, for as long as the agent runs."""
    request: dict[str, object] = {"command": "set-limit", "target": target, "memory": memory, "core": core}
    show_line(printable(send(config, socket_path, request)))


@app.command()
def explain(target: Explained, config: ConfigFile = None, socket_path: SocketPath = None) -> None:
    """Say why a client waits, and about how long."""
    lines = explanations(send(config, socket_path, {"command": "status"}), target)
    if not lines:
        raise CommandError(f"no client or pod {target!r}: see 'gpucommons scheduler status'")
    show(printable_lines(lines))
