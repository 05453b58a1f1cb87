"""`gpucommons scheduler ...`: the status of turns, and orders to the running agent.

Orders use the scheduler's control socket. `status` and `explain` read the agent's API; they use the control socket
where it is named, where no agent answers, and where the user runs an agent.
"""

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from gpucommons.base.text import parse_core, parse_gpu_memory, printable_lines
from gpucommons.cli.command_line import AgentUnreachable, CommandError, NotFound, command_group
from gpucommons.cli.options import AsJson, ConfigFile, load_settings
from gpucommons.cli.output import clear_screen, show, show_line, terminal_width
from gpucommons.cli.reader import Reader, reading
from gpucommons.cli.scheduler_view import explanations, status_lines, turns_of_target
from gpucommons.cli.suggestions import clients
from gpucommons.cli.text_table import wrap_lines
from gpucommons.config.runtime_directory import control_path, control_sockets, own_control_socket
from gpucommons.faces.documents.values import indent, one_line
from gpucommons.model.words import SharingClass

app = command_group(
    "scheduler",
    "Turns on shared GPUs: running and waiting clients, and why they wait; switch it, limit clients.",
)

_TIMEOUT_S = 5.0
_AUTO = "auto"

Target = Annotated[
    str, typer.Argument(metavar="CLIENT|POD", help="A client's id, a pod, or NAMESPACE/POD.", autocompletion=clients)
]
SocketPath = Annotated[
    str | None,
    typer.Option(
        "--socket", metavar="PATH", help="The scheduler's socket. Default: from the settings.", show_default=False
    ),
]
Explained = Annotated[
    str,
    typer.Argument(
        metavar="CLIENT|POD|NAME", help="A client's id, a pod, a name from status, or pid:4711.", autocompletion=clients
    ),
]
Document = Mapping[str, Any]
_NOT_RUNNING = "the scheduler does not run here"
_START = "start it with: gpucommons up --share"


def send(config: Path | None, socket_path: str | None, request: dict[str, object]) -> Any:
    path = Path(control_path(socket_path or load_settings(config, {}).settings.scheduler.socket))
    # Not Path.exists, which raises an error for a directory that is closed to this user.
    sockets = [socket for socket in ((path,) if socket_path else control_sockets(path)) if os.path.exists(socket)]
    if not sockets:
        raise AgentUnreachable(f"{_NOT_RUNNING}: {path} does not exist; {_START}")
    return _ask(sockets, request)


def _ask(paths: Sequence[Path], request: Mapping[str, object]) -> Any:
    """The answer of the first scheduler that serves one of these sockets."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_TIMEOUT_S)
        path = _connect(connection, paths)
        try:
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as answers:
                reply = json.loads(answers.readline())
        except (OSError, ValueError, RecursionError) as error:
            raise _no_answer(path, error) from error
    if not reply.get("ok"):
        raise CommandError(str(reply.get("error")))
    return reply["answer"]


def _connect(connection: socket.socket, paths: Sequence[Path]) -> Path:
    """An agent that was killed leaves its socket file: then the next one is tried."""
    *others, last = paths
    for path in others:
        with suppress(OSError):
            connection.connect(str(path))
            return path
    try:
        connection.connect(str(last))
    except OSError as error:
        raise _no_answer(last, error) from error
    return last


def _no_answer(path: Path, error: Exception) -> AgentUnreachable:
    return AgentUnreachable(f"the scheduler at {path} does not answer: {error}")


def _show_answer(answer: str, as_json: bool, **ordered: str | float | None) -> None:
    """`ordered` is what was ordered, with the names of the document of turns; null: left as it was, or removed."""
    show(indent({**ordered, "answer": answer}) if as_json else printable_lines([answer]))


def read_turns(reader: Reader, socket_path: str | None) -> Document:
    """The document of /api/v1/turns, whose `turns` are not null. An ordinary user's own agent comes first."""
    own = own_control_socket()
    if not socket_path and reader.connect is None and os.getuid() != 0 and os.path.exists(own):
        with suppress(AgentUnreachable):
            return {"hidden": None, "turns": _ask([own], {"command": "status"})}
    document = None if socket_path else reader.ask("turns")
    if document is None:
        return {"hidden": None, "turns": send(reader.config, socket_path, {"command": "status"})}
    if document["turns"] is None:
        raise CommandError(f"{_NOT_RUNNING}: the agent runs without it; {_START}")
    return document


@app.command()
@reading()
def status(
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Print again each second until Ctrl-C.")] = False,
    *,
    reader: Reader,
    socket_path: SocketPath = None,
) -> None:
    """Print running and waiting clients of each GPU, why they wait, memory, and the time left of the turn."""
    while True:
        document = read_turns(reader, socket_path)
        if watch and as_json:
            # One document in each line, as `events --follow` prints events.
            show_line(one_line(document))
        elif as_json:
            show(indent(document))
        else:
            if watch:
                clear_screen()
            show(printable_lines(wrap_lines(status_lines(document["turns"]), terminal_width())))
        if not watch:
            return
        time.sleep(1)


@app.command()
def on(as_json: AsJson = False, config: ConfigFile = None, socket_path: SocketPath = None) -> None:
    """Let clients take turns."""
    _show_answer(send(config, socket_path, {"command": "on"}), as_json, on=True)


@app.command()
def off(as_json: AsJson = False, config: ConfigFile = None, socket_path: SocketPath = None) -> None:
    """Let every client run, unscheduled."""
    _show_answer(send(config, socket_path, {"command": "off"}), as_json, on=False)


@app.command("set-quantum")
def set_quantum(
    seconds: Annotated[
        str, typer.Argument(metavar="SECONDS|auto", help="Length of a turn while others wait; auto: as configured.")
    ],
    as_json: AsJson = False,
    config: ConfigFile = None,
    socket_path: SocketPath = None,
) -> None:
    """Fix the length of a turn, or let the scheduler choose it again (auto)."""
    try:
        length = None if seconds == _AUTO else float(seconds)
    except ValueError:
        raise CommandError(f"invalid quantum {seconds!r}: use a number of seconds, or {_AUTO}") from None
    request: dict[str, object] = {"command": "set-quantum", "seconds": _AUTO if length is None else length}
    _show_answer(send(config, socket_path, request), as_json, fixed_quantum_s=length)


@app.command("set-limit")
def set_limit(
    target: Target,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Such as 8Gi.", show_default=False)] = None,
    core: Annotated[str | None, typer.Option(metavar="PERCENT", help="1 to 100.", show_default=False)] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove what was set for this name.")] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
    socket_path: SocketPath = None,
) -> None:
    """Limit a client, or all clients of a pod, for as long as the agent runs."""
    if clear and (memory is not None or core is not None):
        raise CommandError("--clear removes both limits: use it without --memory and --core")
    try:
        memory_bytes = None if memory is None else parse_gpu_memory(memory)
    except ValueError as error:
        raise CommandError(f"--memory: {error}") from None
    limit: dict[str, object] = {"clear": True} if clear else {"memory": memory, "core": core}
    request: dict[str, object] = {"command": "set-limit", "target": target, **limit}
    answer = send(config, socket_path, request)
    _show_answer(
        answer,
        as_json,
        target=target,
        memory_quota_bytes=memory_bytes,
        core_quota_percent=None if core is None else parse_core(core),
    )


@app.command("set-class")
def set_class(
    target: Target,
    sharing_class: Annotated[
        SharingClass, typer.Argument(metavar="batch|latency|background", help="What it may wait for.")
    ],
    as_json: AsJson = False,
    config: ConfigFile = None,
    socket_path: SocketPath = None,
) -> None:
    """Give programs a class, for as long as the agent runs: latency is never paused, background comes last."""
    request: dict[str, object] = {"command": "set-class", "target": target, "class": sharing_class.value}
    _show_answer(send(config, socket_path, request), as_json, target=target, sharing_class=sharing_class.value)


@app.command()
@reading()
def explain(
    target: Explained,
    as_json: AsJson = False,
    *,
    reader: Reader,
    socket_path: SocketPath = None,
) -> None:
    """Say why a client waits, and about how long."""
    document = read_turns(reader, socket_path)
    turns = document["turns"]
    lines = explanations(turns, target)
    if not lines:
        raise NotFound(f"no client or pod {target!r}: see 'gpucommons scheduler status'")
    if as_json:
        show(indent({**document, "turns": turns_of_target(turns, target)}))
    else:
        show(printable_lines(wrap_lines(lines, terminal_width())))
