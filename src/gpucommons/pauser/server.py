"""The pauser process: takes requests of one agent at a time, over an inherited socket or a Unix socket of its own.

The main thread reads requests and never makes a driver call once it serves; threads of their own make them and answer.
When the agent's connection ends, everything is resumed; a child then exits, a service waits for the next agent. A
second process, the watchdog, resumes what is recorded if this one hangs or is killed.
"""

import os
import pwd
import selectors
import signal
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpucommons.base.text import parse_decimal
from gpucommons.base.unix_listener import listen, peer_credentials
from gpucommons.pauser import cuda, release
from gpucommons.pauser.arrivals import DEVICE_FILES, ArrivalWatch, cuda_users
from gpucommons.pauser.backend import Code, Failure, PauseBackend, failure
from gpucommons.pauser.calls import MAX_PAUSING, MAX_RESUMING, CallThreads
from gpucommons.pauser.freeze import Freeze
from gpucommons.pauser.heartbeat import Heartbeat
from gpucommons.pauser.log import Log
from gpucommons.pauser.pauses import AnswerEarly, Pauses, Result
from gpucommons.pauser.protocol import (
    LATE_S,
    MAX_REQUEST_BYTES,
    Hello,
    Message,
    MessageLines,
    Notice,
    NoticeKind,
    Operation,
    PauserProtocolError,
    PauserRequest,
    Reply,
    decode_request,
    encode_message,
)
from gpucommons.pauser.record import PauseRecord, RecordError

_READ_BYTES: Final = 65536
# How long a new pauser waits for one that is about to end, and how long it works on leftovers before it says hello.
_SOCKET_MODE: Final = 0o666
_CLAIM_S: Final = 2.0
_START_S: Final = 2.0
_LOST_S: Final = 1.0
# At the end: for locks, and for a checkpoint or restore under way, which cannot be cancelled.
_RELEASE_S: Final = 3.0
_LONG_RELEASE_S: Final = 60.0
# How often the main thread does something at least: the parent is looked at, and the heart beats.
_STEP_S: Final = 0.5


# These make no driver call.
_AT_ONCE: Final = frozenset(
    {
        Operation.KEEP,
        Operation.WATCH,
        Operation.UNWATCH,
        Operation.GUARD,
        Operation.YIELD_TO,
        Operation.LEAVE_GROUPS,
    }
)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """`parent` is the agent's pid where the pauser is its child, else 0.

    `users` are names or uids that may connect, besides root and the pauser's own user. `alive` is the file that is
    touched while the pauser goes on; None: there is none. `device_files` is where the GPUs' device files are.
    """

    record: Path
    backend: str = "cuda"
    max_pause_s: float = 10.0
    parent: int = 0
    users: Sequence[str] = ()
    alive: Path | None = None
    device_files: Path = DEVICE_FILES


class _Session:
    """One connected agent. Every thread sends through it; an agent that does not read its replies is disconnected."""

    def __init__(self, number: int, connection: socket.socket) -> None:
        self.number = number
        self.connection = connection
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        data = encode_message(message)
        with self._sending:
            try:
                whole = self.connection.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) == len(data)
            except OSError:
                whole = False
            if not whole:
                with suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._sending:
            self.connection.close()


class _Answer:
    """The answer to one request: the first one counts, since a call that hangs is answered before it returns."""

    def __init__(self, session: _Session, number: int) -> None:
        self._session = session
        self._number = number
        self._lock = threading.Lock()
        self._sent = False

    def send(self, result: Result) -> None:
        with self._lock:
            if self._sent:
                return
            self._sent = True
        self._session.send(Reply(self._number, result.failure, result.duration_s, result.state))


class Server:
    """Start it with `open`; then `serve` one connection, or `listen` for them."""

    def __init__(self, settings: ServerSettings, log: Log) -> None:
        self._settings = settings
        self._log = log
        self._pausing = CallThreads("pause", MAX_PAUSING)
        self._resuming = CallThreads("resume", MAX_RESUMING)
        self._heart = Heartbeat(settings.record, self._lively_s, log, settings.alive)
        self._lively_main_s = time.monotonic()
        self._freeze = Freeze()
        self._pauses: Pauses | None = None
        self._arrivals: ArrivalWatch | None = None
        self._resumed = 0
        self._unavailable = "not started"
        self._listener: socket.socket | None = None
        self._session: _Session | None = None
        self._sessions = 0
        self._stopped = False
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)

    def stop_on(self, *signals: int) -> None:
        """From the main thread: these signals end the serving; Ctrl-C on the agent's terminal is the agent's."""
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        for number in signals:
            signal.signal(number, self._on_signal)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)

    def _on_signal(self, number: int, _: object) -> None:
        self._stopped = True

    def open(self) -> None:
        """Take the record over and resume what it holds. Where that cannot be, the hello says why."""
        if self._pauses is not None:
            return
        try:
            record = PauseRecord.open(self._settings.record)
        except RecordError as error:
            self._unavailable = str(error)
            return
        backends: dict[str, PauseBackend] = {"freeze": self._freeze}
        driver = cuda.load()
        if not isinstance(driver, Failure):
            backends["cuda"] = driver
        if self._settings.backend not in backends and isinstance(driver, Failure):
            self._unavailable = driver.meaning
            record.close()
            return
        if not record.claim(_CLAIM_S):
            # It may hang in a driver call. What it has paused can be resumed all the same; the record is left to it.
            self._goes_on()
            release.resume(record, backends, owned=False, within_s=_START_S)
            self._unavailable = f"another pauser still uses {record.path}; what it had paused was resumed"
            record.close()
            return
        self._goes_on()
        if "cuda" in backends:
            lost = release.write_lost(record, backends["cuda"], cuda_users(self._settings.device_files), _LOST_S)
            if lost:
                self._log.line(
                    f"parked programs that {record.path} did not name: {', '.join(str(e.pid) for e in lost)}"
                )
        pauses = Pauses(record, backends, self._settings.backend, self._settings.max_pause_s, self._notify)
        self._resumed = pauses.start()
        if self._resumed:
            done = pauses.wait_released(_START_S, waits=self._goes_on)
            self._log.line(
                f"{self._resumed} paused programs were left in {record.path}: {'resumed' if done else 'still resuming'}"
            )
        self._pauses, self._unavailable = pauses, ""
        self._arrivals = ArrivalWatch(pauses.hold, self._settings.device_files)
        self._heart.guard()

    def _lively_s(self) -> float:
        """Since when every thread that programs depend on has gone on."""
        return self._lively_main_s if self._pauses is None else min(self._lively_main_s, self._pauses.lively_s)

    def _goes_on(self) -> None:
        self._lively_main_s = time.monotonic()

    def serve(self, connection: socket.socket) -> None:
        """One agent, until its connection ends or the pauser is asked to stop. Then everything is resumed."""
        self.open()
        self._heart.start()
        self._sessions += 1
        session = self._session = _Session(self._sessions, connection)
        session.send(
            Hello(os.getpid(), self._settings.backend, self._settings.max_pause_s, self._unavailable, self._resumed)
        )
        if self._pauses is not None:
            self._pauses.open_session(session.number)
            ended = self._read(session)
            if self._arrivals is not None:
                self._arrivals.watch(None)
            self._pauses.close_session(ended)
            if not self._pauses.wait_released(_RELEASE_S, long_within_s=_LONG_RELEASE_S, waits=self._goes_on):
                self._log.line(f"{ended}; some programs could not be resumed yet; run: gpucommons resume --all")
        self._session = None
        session.close()

    def listen(self, path: Path) -> None:
        """Serve agents one after another at this socket until asked to stop. OSError where it cannot be served."""
        self.open()
        # Every user may connect; the peer credentials decide whether the connection is served.
        listener = self._listener = listen(str(path), "scheduler.pauser_socket", _SOCKET_MODE)
        self._heart.start()
        try:
            while not self._stopped:
                if self._readable(listener):
                    connection, _ = listener.accept()
                    if refusal := self._refusal(connection):
                        self._turn_away(connection, refusal)
                    else:
                        self.serve(connection)
        finally:
            listener.close()

    @property
    def is_clean(self) -> bool:
        """Whether nothing is left paused, parked programs aside."""
        return self._pauses is None or self._pauses.wait_released(0.0)

    # -- reading

    def _read(self, session: _Session) -> str:
        """Why it ended."""
        lines = MessageLines(MAX_REQUEST_BYTES)
        with selectors.DefaultSelector() as selector:
            selector.register(session.connection, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            if (waiting := self._listener) is not None:
                selector.register(waiting, selectors.EVENT_READ)
            while not self._stopped:
                self._goes_on()
                ready = {key.fileobj for key, _ in selector.select(_STEP_S)}
                if self._settings.parent and os.getppid() != self._settings.parent:
                    return "the agent has ended"
                if session.connection in ready:
                    try:
                        data = session.connection.recv(_READ_BYTES)
                        if not data:
                            return "the agent has ended"
                        for line in lines.feed(data):
                            self._carry_out(session, decode_request(line))
                    except (OSError, PauserProtocolError) as error:
                        self._log.line(f"disconnecting the agent: {error}")
                        return "the agent's connection failed"
                # Last: an agent that was restarted may have connected again in the meantime.
                if waiting is not None and waiting in ready:
                    with suppress(OSError):
                        self._turn_away(waiting.accept()[0], "another agent is connected")
        return "the pauser was asked to stop"

    def _carry_out(self, session: _Session, request: PauserRequest) -> None:
        pauses = self._pauses
        assert pauses is not None
        if request.operation is Operation.LIST:
            session.send(Reply(request.number, paused=pauses.list_paused()))
            return
        if request.operation in _AT_ONCE:
            session.send(Reply(request.number, _perform_at_once(pauses, request).failure))
            return
        if request.operation is Operation.WATCH_ARRIVALS:
            assert self._arrivals is not None
            own = frozenset({os.getpid(), self._settings.parent})
            self._arrivals.watch(request.arrivals, own, lambda: session.send(Reply(request.number)))
            return
        if request.operation is Operation.RESUME_ALL:
            threading.Thread(target=self._resume_all, args=(session, request), daemon=True).start()
            return

        until_s = time.monotonic() + request.timeout_ms / 1000 + LATE_S
        answer = _Answer(session, request.number)

        def call() -> None:
            try:
                answer.send(
                    _perform(pauses, session.number, request, until_s, lambda failed: answer.send(Result(failed)))
                )
            except Exception as error:
                # The agent would wait for minutes for the end of a move.
                answer.send(Result(failure(Code.UNAVAILABLE, f"an unexpected error: {error!r}")))
                raise

        threads = self._resuming if request.operation is Operation.UNLOCK else self._pausing
        if not threads.submit(call):
            session.send(Reply(request.number, failure(Code.BUSY, "too many calls have not returned")))

    def _resume_all(self, session: _Session, request: PauserRequest) -> None:
        assert self._pauses is not None
        self._pauses.resume_all()
        done = self._pauses.wait_released(_RELEASE_S)
        session.send(Reply(request.number, None if done else failure(Code.BUSY, "some calls have not returned")))

    def _notify(self, notice: Notice) -> None:
        if notice.kind is NoticeKind.RESUMED:
            self._log.line(f"resumed pid {notice.process.pid}: {notice.reason}")
        session = self._session
        if session is not None:
            session.send(notice)

    # -- listening

    def _readable(self, listener: socket.socket) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            self._goes_on()
            return any(key.fileobj is listener for key, _ in selector.select(_STEP_S))

    def _refusal(self, connection: socket.socket) -> str:
        pid, uid, _ = peer_credentials(connection)
        if uid not in {0, os.geteuid(), *map(_uid_of, self._settings.users)}:
            return f"uid {uid} may not use this pauser"
        self._freeze.protected = {os.getpid(), os.getppid(), pid}
        return ""

    def _turn_away(self, connection: socket.socket, reason: str) -> None:
        self._log.line(f"turned a connection away: {reason}")
        session = _Session(0, connection)
        session.send(Hello(os.getpid(), self._settings.backend, self._settings.max_pause_s, reason))
        session.close()


def _perform_at_once(pauses: Pauses, request: PauserRequest) -> Result:
    match request.operation:
        case Operation.KEEP:
            return pauses.keep(request.process)
        case Operation.WATCH:
            return pauses.watch(request.process)
        case Operation.GUARD:
            return pauses.guard(request.process, request.gpu, request.share_percent)
        case Operation.YIELD_TO:
            return pauses.yield_to(request.process, request.gpu)
        case Operation.LEAVE_GROUPS:
            return pauses.leave_groups(request.process)
        case _:
            return pauses.unwatch(request.process)


def _perform(pauses: Pauses, session: int, request: PauserRequest, until_s: float, answer_early: AnswerEarly) -> Result:
    match request.operation:
        case Operation.LOCK:
            return pauses.lock(session, request.process, request.timeout_ms, request.gpu, until_s, answer_early)
        case Operation.UNLOCK:
            return pauses.unlock(request.process, answer_early)
        case Operation.CHECKPOINT:
            return pauses.checkpoint(request.process, request.memory_bytes)
        case Operation.RESTORE:
            return pauses.restore(request.process)
        case Operation.LET_RUN:
            return Result(pauses.suspensions.let_run(request.process))
        case Operation.STOP:
            return Result(pauses.suspensions.stop(request.process))
        case Operation.LEAVE:
            return Result(pauses.suspensions.leave(request.process))
        case _:
            return pauses.state(request.process, answer_early)


def _uid_of(user: str) -> int | None:
    """A user that systemd makes for a service exists only while the service runs: looked up at each connection."""
    if (uid := parse_decimal(user)) is not None:
        return uid
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None
