"""`gpucommons run`: get GPUs from the agent, wait in line, run a command with them, report what it used.

The command is a child with the same user, terminal, signals and exit code. It imports nothing of the agent while one
answers: users run it for every job.
"""

import ctypes
import errno
import math
import os
import select
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

from gpucommons.base.backoff import RetrySchedule
from gpucommons.base.periods import parse_duration, spoken_duration
from gpucommons.base.text import parse_gpu_memory, printable
from gpucommons.cli.command_line import CommandError
from gpucommons.cli.job_view import figure_lines, slot_names
from gpucommons.cli.lease_view import LONG_WAIT_S, waiting_line
from gpucommons.cli.options import ConfigFile, load_settings
from gpucommons.cli.output import clear_live, has_live_line, ring_bell, show_error, show_live
from gpucommons.config.runtime_directory import lease_sockets
from gpucommons.leases.protocol import LeaseConnection, LeaseServiceGone
from gpucommons.model.names import short_command
from gpucommons.model.words import SharingClass

# Runs a command as a child: same user, terminal, signals and exit code.

NOT_FOUND: Final = 127
NOT_EXECUTABLE: Final = 126
TIMED_OUT: Final = 124
# After SIGTERM, until SIGKILL.
_GRACE_S: Final = 30.0
_POLL_S: Final = 1.0
_SET_PARENT_DEATH_SIGNAL: Final = 1
# The kernel sent it, as for Ctrl-C: it went to all processes of the terminal, and the child has it.
_FROM_KERNEL: Final = 0x80
# Of signalfd(2): the number of the signal, and its code; and sizes of its structures.
_SIGNAL_INFO: Final = struct.Struct("I4xi")
_SIGNAL_INFO_BYTES: Final = 128
_SIGNAL_SET_BYTES: Final = 128
_FORWARDED: Final = (
    *(signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH),
)


def missing_status(command: str) -> int | None:
    """The exit status of a command that cannot be run, as in a shell; None if it can."""
    if shutil.which(command) is not None:
        return None
    named = [command] if "/" in command else [os.path.join(d, command) for d in os.get_exec_path()]
    return NOT_EXECUTABLE if any(os.path.exists(path) for path in named) else NOT_FOUND


class Child:
    """A running command. `watch` is called every second, and returns why the command must end, or None."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Raises OSError."""
        libc = ctypes.CDLL(None, use_errno=True)
        own_pid = os.getpid()
        self._signals = {*_FORWARDED, signal.SIGCHLD}
        self._mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
        self._descriptor = _signal_descriptor(libc, self._signals)

        def prepare() -> None:
            # If this process is killed, the command gets SIGTERM: its lease is over.
            libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
            if os.getppid() != own_pid:
                os.kill(os.getpid(), signal.SIGTERM)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask_before)

        try:
            self._process = subprocess.Popen(command, env=dict(environment), preexec_fn=prepare)
        except OSError:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask_before)
            os.close(self._descriptor)
            raise

    def wait(self, watch: Callable[[], str | None], limit_s: float | None) -> tuple[int, str | None]:
        """The exit status, and why the command was ended, None if it ended by itself."""
        started_s = time.monotonic()
        reason: str | None = None
        asked_s: float | None = None
        while (status := self._process.poll()) is None:
            self._pass_on_signal(_POLL_S)
            now_s = time.monotonic()
            if reason is None:
                reason = watch()
                if reason is None and limit_s is not None and now_s - started_s >= limit_s:
                    reason = "the time limit (--for) is over"
                if reason is not None:
                    asked_s = now_s
                    self._process.terminate()
            elif asked_s is not None and now_s - asked_s >= _GRACE_S:
                self._process.kill()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask_before)
        os.close(self._descriptor)
        return (status if status >= 0 else 128 - status), reason

    def _pass_on_signal(self, timeout_s: float) -> None:
        """Not with `signal.sigtimedwait`: where it is interrupted by a stop, Python returns a signal of the past."""
        ready, _, _ = select.select([self._descriptor], [], [], timeout_s)
        if ready:
            number, code = _SIGNAL_INFO.unpack_from(os.read(self._descriptor, _SIGNAL_INFO_BYTES))
            if number != signal.SIGCHLD and code != _FROM_KERNEL:
                self._process.send_signal(number)


def _signal_descriptor(libc: ctypes.CDLL, signals: Iterable[signal.Signals]) -> int:
    """A descriptor from which these signals can be read: Python has no signalfd."""
    chosen = ctypes.create_string_buffer(_SIGNAL_SET_BYTES)
    libc.sigemptyset(chosen)
    for number in signals:
        libc.sigaddset(chosen, int(number))
    descriptor = int(libc.signalfd(-1, chosen, os.O_CLOEXEC | os.O_NONBLOCK))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor


def status_of_error(error: OSError) -> int:
    return NOT_FOUND if error.errno in (errno.ENOENT, errno.ENOTDIR) else NOT_EXECUTABLE


# What `run` sets for a command under MPS: where the daemon is, and the limits of the lease.

_MIB = 2**20


def mps_environment(terms: Mapping[str, Any] | None) -> dict[str, str]:
    """`terms` are the agent's; None: the command runs without MPS. The command has one GPU, its device 0."""
    if terms is None:
        return {}
    variables = {
        "CUDA_MPS_PIPE_DIRECTORY": str(terms["pipe_directory"]),
        "CUDA_MPS_LOG_DIRECTORY": str(terms["log_directory"]),
    }
    if terms["sm_percent"] is not None:
        variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(terms["sm_percent"])
    if terms["memory_bytes"] is not None:
        # In whole mebibytes, rounded up: a command gets what it requested.
        variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={-(-int(terms['memory_bytes']) // _MIB)}M"
    return variables


CONTEXT_SETTINGS: Final = {"allow_interspersed_args": False}
# No slot was free in time: the same command may succeed later.
NO_SLOT: Final = 75
# What the name of a script ends with.
_SCRIPTS: Final = frozenset({".py", ".sh", ".bash", ".ipynb", ".jl", ".js", ".lua", ".m", ".pl", ".r", ".rb"})
_REPORT_S: Final = 4.0
_AGENT_START_S: Final = 5.0


def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="The command and its arguments.")],
    gpus: Annotated[int, typer.Option(min=1, metavar="N", help="Number of GPUs.")] = 1,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Least free memory of each GPU or MIG device, such as 20G.", show_default=False
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(metavar="NAME", help="Only GPUs with this in their product name: h100.", show_default=False),
    ] = "",
    gpu: Annotated[
        str,
        typer.Option(metavar="ID", help="Only this GPU or MIG device: 3, 6.0 or its UUID.", show_default=False),
    ] = "",
    whole: Annotated[bool, typer.Option("--whole", help="A whole GPU, no MIG device.")] = False,
    share: Annotated[
        bool, typer.Option("--share/--exclusive", help="Accept a GPU that others use, too. Default: --exclusive.")
    ] = False,
    sm: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=100,
            metavar="PERCENT",
            help="Part of the GPU's compute units that the command may use. Needs --share and MPS (leases.mps).",
            show_default=False,
        ),
    ] = None,
    sharing_class: Annotated[
        SharingClass | None,
        typer.Option(
            "--class",
            help="On a shared GPU: latency is never paused and holds others back while it works, within your share; "
            "background runs while no other program uses the GPU.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Name in the queue and the metrics. Default: the program and its script, without arguments.",
            show_default=False,
        ),
    ] = "",
    limit: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="TIME",
            help="End the command after this time, such as 2h; it may then use GPUs that are reserved later.",
            show_default=False,
        ),
    ] = None,
    max_wait: Annotated[
        str | None, typer.Option(metavar="TIME", help="Give up after this time, such as 2h.", show_default=False)
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Give up at once if no GPU is free.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no report at the end.")] = False,
    config: ConfigFile = None,
) -> None:
    """Run a command with GPUs of its own: wait for them, set CUDA_VISIBLE_DEVICES, report what it used.

    "gpucommons run bash" opens a shell that has a GPU until it ends. The exit status is that of the command; 75 if no
    GPU was free in time, 124 after --for.
    """
    if not command[0]:
        raise CommandError("the command is empty: name a program, such as gpucommons run python train.py")
    job = _Job(
        command,
        {
            "request": "run",
            "gpus": gpus,
            "memory_bytes": None if memory is None else _parse_option("--memory", parse_gpu_memory, memory),
            "share": share,
            "limit_s": None if limit is None else _parse_option("--for", parse_duration, limit),
            "name": printable(name or default_name(command))[:64],
            "program": printable(short_command(command, command[0]))[:64],
            "wait": not no_wait,
            "updates": has_live_line(),
            "sm_percent": sm,
            "class": "" if sharing_class is None else sharing_class.value,
            "model": model[:64],
            "slot": gpu[:64],
            "whole": whole,
        },
        None if max_wait is None else _parse_option("--max-wait", parse_duration, max_wait),
        quiet,
    )
    missing = missing_status(command[0])
    if missing is not None:
        why = "command not found" if missing == 127 else "not executable"
        _note(f"{printable(command[0])}: {why}")
        raise typer.Exit(missing)
    paths = lease_sockets(load_settings(config, {}).settings.leases.socket)
    try:
        connection = _connect(paths)
    except LeaseServiceGone as gone:
        raise typer.Exit(_without_agent(job, config, str(gone))) from None
    raise typer.Exit(_Run(job, paths, connection).run())


def _connect(paths: list[Path]) -> LeaseConnection:
    """Where an agent has been, it may be about to start again. Raises LeaseServiceGone."""
    patience_s = _AGENT_START_S if any(path.parent.is_dir() for path in paths) else 0.0
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            return LeaseConnection(paths)
        except LeaseServiceGone:
            if time.monotonic() >= deadline_s:
                raise
        time.sleep(0.2)


def default_name(command: Sequence[str]) -> str:
    """The program, and the script or module that it runs. Arguments may be secrets, and a name is published."""
    program, *arguments = command
    names = [Path(program).name]
    for number, argument in enumerate(arguments):
        if argument == "-m" and names[0].startswith("python"):
            names += ["-m", *arguments[number + 1 : number + 2]]
            break
        if Path(argument).suffix.lower() in _SCRIPTS and not argument.startswith("-"):
            names.append(Path(argument).name)
            break
        if argument == "-c":
            break
    return " ".join(names)


class _Job:
    def __init__(
        self, command: Sequence[str], request: Mapping[str, Any], max_wait_s: float | None, quiet: bool
    ) -> None:
        self.command = command
        self.request = request
        self.max_wait_s = max_wait_s
        self.quiet = quiet

    @property
    def limit_s(self) -> float | None:
        limit_s: float | None = self.request["limit_s"]
        return limit_s


class _Run:
    """One command with its connection. The agent may restart at any time: then the connection is made again."""

    def __init__(self, job: _Job, paths: list[Path], connection: LeaseConnection) -> None:
        self._job = job
        self._paths = paths
        self._connection: LeaseConnection | None = connection
        self._retry = RetrySchedule(0.2, 2.0)
        self._id = ""
        self._token = ""
        self._line = _LiveLine()
        self._lease_known = True
        self._granted: dict[str, Any] | None = None

    def run(self) -> int:
        begun_s = time.monotonic()
        deadline_s = math.inf if self._job.max_wait_s is None else begun_s + self._job.max_wait_s
        try:
            self._send(self._job.request)
            slots = self._wait(deadline_s)
        except KeyboardInterrupt:
            self._leave()
            self._line.clear()
            _note("left the queue")
            return 130
        waited_s = time.monotonic() - begun_s
        if slots is None:
            self._leave()
            self._line.clear()
            _note(f"no GPU was free within {spoken_duration(waited_s)} (--max-wait): the command was not run")
            return NO_SLOT
        self._line.clear()
        if has_live_line() and waited_s >= 1:
            if waited_s >= LONG_WAIT_S:
                ring_bell()
            _note(f"waited {spoken_duration(waited_s)}, runs on {_names(slots)}")
        return self._run_child(slots, waited_s)

    def _wait(self, deadline_s: float) -> list[dict[str, Any]] | None:
        """The slots; None if the deadline has passed."""
        while (left_s := deadline_s - time.monotonic()) > 0:
            line = self._receive(min(left_s, 1.0))
            if line is None:
                self._line.count_up()
                continue
            event = line.get("event")
            if event == "queued":
                self._id, self._token = str(line["id"]), str(line["token"])
            elif event == "waiting" and self._job.request["wait"]:
                self._line.show(line)
            elif event == "granted":
                self._granted = line
                if line.get("simulated"):
                    _note(f"SIMULATED: the GPUs are those of scenario {line['simulated']}")
                return [dict(slot) for slot in line["slots"]]
            elif event == "cancelled":
                self._line.clear()
                _fail(f"the request was {line['sentence']}; the command was not run", NO_SLOT)
            elif event == "error":
                self._handle_refusal(line)
        return None

    def _handle_refusal(self, line: Mapping[str, Any]) -> None:
        self._line.clear()
        if line.get("unknown"):
            # The agent was away for longer than it keeps a place in the queue.
            self._id = ""
            _note("the place in the queue is lost: the agent restarted; queued again")
            self._reconnect()
            return
        if line.get("busy"):
            _fail(str(line.get("error")), NO_SLOT)
        raise CommandError(str(line.get("error")))

    def _receive(self, timeout_s: float) -> dict[str, Any] | None:
        """The next line. Without a connection, waits and tries to connect."""
        if self._connection is None:
            self._reconnect()
            if self._connection is None:
                time.sleep(min(timeout_s, 0.1))
                return None
        try:
            return self._connection.receive(timeout_s)
        except LeaseServiceGone:
            self._drop()
            return None

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _reconnect(self) -> None:
        """One attempt, when it is due."""
        self._drop()
        now_s = time.monotonic()
        if not self._retry.is_due(now_s):
            return
        try:
            self._connection = LeaseConnection(self._paths)
        except LeaseServiceGone:
            self._retry.postpone(now_s)
            return
        self._retry.reset()
        resume = {"request": "resume", "id": self._id, "token": self._token, "updates": has_live_line()}
        self._send(resume if self._id else self._job.request)

    def _send(self, line: Mapping[str, Any]) -> None:
        try:
            if self._connection is not None:
                self._connection.send(line)
        except LeaseServiceGone:
            self._drop()

    def _leave(self) -> None:
        self._send({"request": "done"})
        self._drop()

    def _run_child(self, slots: list[dict[str, Any]], waited_s: float) -> int:
        job = self._job
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(str(slot["uuid"]) for slot in slots)}
        environment = {**os.environ, **visible, **mps_environment((self._granted or {}).get("mps"))}
        begun_s = time.monotonic()
        try:
            child = Child(job.command, environment)
        except OSError as error:
            self._leave()
            _note(f"{printable(job.command[0])}: {error.strerror}")
            return status_of_error(error)
        status, reason = child.wait(self._watch, job.limit_s)
        ran_s = time.monotonic() - begun_s
        if reason is not None:
            _note(f"the command was ended: {reason}")
            status = TIMED_OUT if job.limit_s is not None and ran_s >= job.limit_s else status
        self._finish(slots, waited_s, ran_s)
        return status

    def _watch(self) -> str | None:
        """Each second while the command runs: why it must end. A lost connection is made again."""
        if not self._lease_known:
            return None
        if self._connection is None:
            self._reconnect()
            return None
        line = self._receive(0.0)
        if line is not None and line.get("event") == "cancelled":
            return f"the lease was {line.get('sentence')}"
        if line is not None and line.get("event") == "error":
            _note(f"the command goes on without a lease: {line.get('error')}")
            self._lease_known = False
        return None

    def _finish(self, slots: list[dict[str, Any]], waited_s: float, ran_s: float) -> None:
        self._send({"request": "done", "report": not self._job.quiet})
        if self._job.quiet:
            self._drop()
            return
        report = self._report()
        self._drop()
        _note(f"waited {spoken_duration(waited_s)}, ran {spoken_duration(ran_s)} on {_names(slots)}")
        if report is None:
            return
        if report.get("error"):
            _note(f"its figures are not known: {report['error']}")
        elif report.get("job") is None:
            _note("nothing was billed: it ended before the next sample")
        else:
            for text in figure_lines(report["job"]):
                _note(text)

    def _report(self) -> dict[str, Any] | None:
        """What was billed; None where the agent does not answer."""
        deadline_s = time.monotonic() + _REPORT_S
        while self._connection is not None and (left_s := deadline_s - time.monotonic()) > 0:
            line = self._receive_last(left_s)
            if line is None or line.get("event") == "report":
                return line
        return None

    def _receive_last(self, timeout_s: float) -> dict[str, Any] | None:
        try:
            return None if self._connection is None else self._connection.receive(timeout_s)
        except LeaseServiceGone:
            self._drop()
            return None


class _LiveLine:
    """Why the command waits and for how long: written again each second on a terminal, once elsewhere."""

    def __init__(self) -> None:
        self._is_terminal = has_live_line()
        self._began_s = time.monotonic()
        self._received_s = self._began_s
        self._line: Mapping[str, Any] | None = None

    def show(self, line: Mapping[str, Any]) -> None:
        if not self._is_terminal and self._line is None:
            _note(waiting_line(line, 0.0, None))
        self._line, self._received_s = line, time.monotonic()
        self.count_up()

    def count_up(self) -> None:
        if self._is_terminal and self._line is not None:
            now_s = time.monotonic()
            line = dict(self._line)
            if isinstance(line.get("expected_s"), int | float):
                line["expected_s"] = max(0.0, line["expected_s"] - (now_s - self._received_s))
            width = max(20, shutil.get_terminal_size().columns - 1)
            show_live(printable(waiting_line(line, now_s - self._began_s, width), width))

    def clear(self) -> None:
        if self._is_terminal and self._line is not None:
            clear_live()
        self._line = None


def _without_agent(job: _Job, config: Path | None, why: str) -> int:
    """Takes the emptiest GPUs as they are now. Another program may take the same ones."""
    from gpucommons.cli.one_sample import emptiest_slots
    from gpucommons.model.leases import LeaseRequest

    if job.request["sm_percent"] is not None:
        raise CommandError(f"--sm {job.request['sm_percent']} needs an agent with MPS (leases.mps); no agent runs here")
    _note(f"no agent runs here ({why}): takes the emptiest GPU, which is not kept for this command")
    asked = {name: job.request[name] for name in ("gpus", "memory_bytes", "model", "slot", "whole")}
    slots = emptiest_slots(config, LeaseRequest(os.getuid(), "", 0.0, **asked))
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(slot["uuid"] for slot in slots)}
    begun_s = time.monotonic()
    try:
        child = Child(job.command, environment)
    except OSError as error:
        _note(f"{printable(job.command[0])}: {error.strerror}")
        return status_of_error(error)
    status, reason = child.wait(lambda: None, job.limit_s)
    if reason is not None:
        _note(f"the command was ended: {reason}")
        return TIMED_OUT
    if not job.quiet:
        _note(f"ran {spoken_duration(time.monotonic() - begun_s)} on {_names(slots)}")
    return status


def _names(slots: Sequence[Mapping[str, Any]]) -> str:
    return slot_names([str(slot.get("name") or slot.get("uuid")) for slot in slots])


def _parse_option(option: str, parse: Any, text: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise CommandError(f"{option}: {error}") from None


def _note(text: str) -> None:
    show_error(printable(f"gpucommons: {text}"))


def _fail(text: str, status: int) -> NoReturn:
    _note(text)
    raise typer.Exit(status)
