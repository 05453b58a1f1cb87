"""The agent's side of the pauser: starts it or connects to it, keeps it running, and asks it to pause and resume.

All calls are coroutines of one event loop. They return a Reply and raise nothing: a pauser that is not there, does not
answer in time or refuses is a failure with its code. What a pauser that died had paused is resumed by the next one,
before it says hello.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, MutableSet
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpucommons.model.process_identity import ProcessKey
from gpucommons.model.sharing import PauserReading
from gpucommons.pauser.arrivals import DEVICE_FILES, ArrivalTerms
from gpucommons.pauser.backend import Code, Failure, failure
from gpucommons.pauser.counters import Counters, Refusals
from gpucommons.pauser.places import default_record
from gpucommons.pauser.protocol import (
    LATE_S,
    MAX_REPLY_BYTES,
    NO_PROCESS,
    Hello,
    Message,
    Notice,
    NoticeKind,
    Operation,
    Paused,
    PauserProtocolError,
    PauserRequest,
    Reply,
    decode_message,
    encode_request,
)

log = logging.getLogger(__name__)

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]

LOCK_TIMEOUT_MS: Final = 200
# A program with much submitted work gets longer with each attempt, for so many attempts; then it is left alone.
LOCK_TIMEOUT_GROWTH: Final = 4
MAX_LOCK_TIMEOUT_GROWTHS: Final = 2
# An unlock that found the pauser busy with the program is tried again after these pauses.
_UNLOCK_AGAIN_S: Final = (0.01, 0.05, 0.25, 1.0)
_UNLOCK_AGAIN: Final = frozenset({Code.BUSY, Code.DEADLINE})
# The pauser did not answer: it is not known what has become of the program. And what says that it is not paused.
_NO_ANSWER: Final = frozenset({Code.DEADLINE, Code.UNAVAILABLE})
_NOT_PAUSED: Final = frozenset({Code.GONE, Code.NOT_PAUSED})
# Beyond what the call itself may take: the pauser's own work and the way there and back, on a busy machine.
_GRACE_S: Final = 2 * LATE_S
_MOVE_S: Final = 600.0
_HELLO_S: Final = 15.0
_PING_S: Final = 2.0
# How long a pauser may take to end: it resumes everything first, and a checkpoint or restore cannot be cancelled.
_END_S: Final = 4.0
_LONG_END_S: Final = 65.0
_FIRST_BACKOFF_S: Final = 0.05
_LAST_BACKOFF_S: Final = 10.0
_REPLACE_WITHIN_S: Final = 0.5
# A pauser that lived this long did not fail at its start: the next one is started at once.
_SETTLED_S: Final = 5.0
# Without a driver, or with a record that cannot be written, a child makes no sense soon. To ask a service again is
# cheap, and it may only have been busy with the agent's predecessor.
_CHILD_BACKOFF_S: Final = 30.0
_SERVICE_BACKOFF_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class PauserSettings:
    """How the agent reaches its pauser.

    `socket_path`: the socket of a pauser that runs as a service; None: start one as a child. The rest is for a child:
    `record` is where it writes what is paused (None: the user's default place), `backend` is `cuda` or `freeze`,
    `max_pause_s` is the longest pause, `environment` is added to the agent's own, `device_files` is where the GPUs'
    device files are. `stand_in` connects to a pauser of simulated programs instead: their pids are not those of this
    machine.
    """

    socket_path: Path | None = None
    record: Path | None = None
    backend: str = "cuda"
    max_pause_s: float = 10.0
    environment: Mapping[str, str] | None = None
    device_files: Path = DEVICE_FILES
    stand_in: Connect | None = None


class _Unusable(Exception):
    """The pauser cannot be used: one line, and how long to wait at least before the next attempt."""

    def __init__(self, reason: str, backoff_s: float = 0.0) -> None:
        super().__init__(reason)
        self.backoff_s = backoff_s


class Pauser:
    """Call `start`, then ask; `stop` resumes everything.

    `on_notice` hears of programs that the pauser resumed on its own, and of watched ones that their user stops or
    continues; `on_change` of each change of `available`. Both are called in the event loop.
    """

    def __init__(
        self,
        settings: PauserSettings,
        *,
        on_notice: Callable[[Notice], None] | None = None,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self.counters = Counters()
        self.refusals = Refusals()
        self._settings = settings
        self._on_notice = on_notice
        self._on_change = on_change
        self._hello: Hello | None = None
        self._reason = "the pauser has not started yet"
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._pending: dict[int, asyncio.Future[Reply]] = {}
        self._number = 0
        self._moving = 0
        self._running: asyncio.Task[None] | None = None
        self._pings: set[asyncio.Task[None]] = set()
        self._ready = asyncio.Event()

    # -- life

    async def start(self) -> None:
        """Begin to keep a pauser running. Returns at once; `wait_available` waits for it."""
        if self._running is None:
            self._running = asyncio.create_task(self._keep_running(), name="pauser")

    async def wait_available(self, within_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ready.wait(), within_s)
        return self.available

    async def stop(self) -> None:
        """Resume everything and end. The pauser also does so by itself when the connection ends."""
        if self.available:
            await self.resume_all()
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

    @property
    def available(self) -> bool:
        return self._hello is not None

    @property
    def reason(self) -> str:
        """Why nothing can be paused; empty where it can."""
        return "" if self.available else self._reason

    @property
    def pid(self) -> int | None:
        """The pid of the pauser that serves now."""
        return None if self._hello is None else self._hello.pid

    @property
    def paused(self) -> int:
        """How many programs are paused for turns, or may be, since their lock was not answered; while it is not
        available: how many were."""
        return self.counters.paused_now

    def reading(self) -> PauserReading:
        return self.counters.reading(self.available, time.monotonic())

    @property
    def has_record(self) -> bool:
        """What is parked outlives the agent: it is in the record, and on a real GPU."""
        return self._settings.stand_in is None

    @property
    def own_pids(self) -> frozenset[int]:
        """The agent and its pauser, which are never paused themselves."""
        return frozenset({os.getpid(), self.pid or 0}) if self._settings.stand_in is None else frozenset()

    @property
    def max_pause_s(self) -> float:
        """The longest pause that the pauser in force allows."""
        return self._settings.max_pause_s if self._hello is None else self._hello.max_pause_s

    # -- requests

    async def lock(self, process: ProcessKey, *, timeout_ms: int = LOCK_TIMEOUT_MS, gpu: str = "") -> Reply:
        """Pause a program once its submitted work has finished, or fail with 600 after `timeout_ms`.

        A program that its user has stopped is not paused (STOPPED). A call that takes too long is given up: HANGS.
        A program that failed three times in a row is left alone for a minute: LEFT_ALONE, without asking.
        """
        now_s = time.monotonic()
        if (left_s := self.refusals.remaining_s(process, now_s)) > 0:
            return Reply(0, failure(Code.LEFT_ALONE, f"{left_s:.0f} s to go"))
        if self.available:
            self.counters.record_request(process, now_s)
        reply = await self._ask(Operation.LOCK, timeout_ms / 1000 + _GRACE_S, process, timeout_ms=timeout_ms, gpu=gpu)
        if reply.failure is None:
            self.counters.locks += 1
            self.counters.lock_seconds.observe(reply.duration_s)
            self.counters.record_pause(process, time.monotonic())
            self.refusals.forget_failures(process)
        else:
            self.counters.record_no_lock(process, may_be_paused=reply.failure.code in _NO_ANSWER)
            self.counters.timeouts += reply.failure.code == Code.TIMEOUT
            self.refusals.record_failure(process, reply.failure, time.monotonic())
            if reply.failure.code == Code.DEADLINE:
                # The reply may only be late, and the program paused: the caller does not know that it has to resume it.
                await self.resume({process}, process)
        return reply

    async def unlock(self, process: ProcessKey) -> Reply:
        reply = await self._ask(Operation.UNLOCK, _GRACE_S, process)
        if reply.failure is None:
            self.counters.unlocks += 1
            self.counters.unlock_seconds.observe(reply.duration_s)
            self.counters.record_resume(process, time.monotonic())
        elif reply.failure.code == Code.STOPPED:
            # It is resumed when its user continues it.
            self.counters.not_for_a_turn(process)
        elif reply.failure.code in _NOT_PAUSED:
            self.counters.record_resume(process, time.monotonic())
        return reply

    async def resume(self, paused: MutableSet[ProcessKey], process: ProcessKey) -> None:
        """Unlock a program of `paused` and remove it there; the pauser's notice may, too.

        Several times where that is needed. If all fail, the pauser resumes it after the longest pause; one that its
        user has stopped, when it is continued.
        """
        for pause_s in _UNLOCK_AGAIN_S:
            if process not in paused:
                return
            reply = await self.unlock(process)
            if reply.failure is None or reply.failure.code not in _UNLOCK_AGAIN:
                break
            await asyncio.sleep(pause_s)
        paused.discard(process)

    async def keep(self, process: ProcessKey) -> Reply:
        """Let the pause of a locked program last `max_pause_s` from now on."""
        self.counters.not_for_a_turn(process)
        return await self._ask(Operation.KEEP, _GRACE_S, process)

    async def state(self, process: ProcessKey) -> Reply:
        return await self._ask(Operation.STATE, _GRACE_S, process)

    async def watch(self, process: ProcessKey) -> Reply:
        """From now on `on_notice` hears when its user stops it, and when it goes on."""
        return await self._ask(Operation.WATCH, _GRACE_S, process)

    async def unwatch(self, process: ProcessKey) -> Reply:
        return await self._ask(Operation.UNWATCH, _GRACE_S, process)

    async def watch_arrivals(self, terms: ArrivalTerms | None) -> Reply:
        """From now on programs that begin to use these GPUs are held, and `on_notice` hears of them; None: none."""
        return await self._request(
            _GRACE_S, PauserRequest(self._next_number(), Operation.WATCH_ARRIVALS, arrivals=terms)
        )

    async def guard(self, process: ProcessKey, group: str, share_percent: int) -> Reply:
        """While it works, the programs that yield in this group are held back, for at most this share of the time."""
        return await self._ask(Operation.GUARD, _GRACE_S, process, gpu=group, share_percent=share_percent)

    async def yield_to(self, process: ProcessKey, group: str) -> Reply:
        """It is held back while a guard of this group works."""
        return await self._ask(Operation.YIELD_TO, _GRACE_S, process, gpu=group)

    async def leave_groups(self, process: ProcessKey) -> Reply:
        return await self._ask(Operation.LEAVE_GROUPS, _GRACE_S, process)

    async def let_run(self, process: ProcessKey) -> Reply:
        """Continue a process of a suspended job, and keep it running until `stop` or `leave`."""
        return await self._ask(Operation.LET_RUN, 2 * _GRACE_S, process)

    async def stop_again(self, process: ProcessKey) -> Reply:
        """Stop it as it was. It is continued unless `leave` follows within seconds."""
        return await self._ask(Operation.STOP, _GRACE_S, process)

    async def leave(self, process: ProcessKey) -> Reply:
        """It stays as it is now: stopped or running."""
        return await self._ask(Operation.LEAVE, _GRACE_S, process)

    async def checkpoint(self, process: ProcessKey, *, memory_bytes: int = 0) -> Reply:
        """Move the GPU memory of a locked program to host memory.

        `memory_bytes`, what it holds on the GPU by NVML, goes into the record, where `gpucommons resume` finds what
        room it needs.
        """
        self.counters.not_for_a_turn(process)
        return await self._move(Operation.CHECKPOINT, process, memory_bytes)

    async def restore(self, process: ProcessKey) -> Reply:
        """Bring the GPU memory of a parked program back; it is locked afterwards.

        The caller has made sure of the room: a restore that runs out of memory strands the program for good.
        """
        return await self._move(Operation.RESTORE, process)

    async def resume_all(self) -> Reply:
        """Resume every program that is paused and not parked."""
        return await self._ask(Operation.RESUME_ALL, 2 * _GRACE_S)

    async def list(self) -> tuple[Paused, ...] | Failure:
        """The programs that the pauser holds, parked ones too."""
        reply = await self._ask(Operation.LIST, _GRACE_S)
        return reply.paused if reply.failure is None else reply.failure

    async def _move(self, operation: Operation, process: ProcessKey, memory_bytes: int = 0) -> Reply:
        self._moving += 1
        try:
            return await self._ask(operation, _MOVE_S, process, memory_bytes=memory_bytes)
        finally:
            self._moving -= 1

    async def _ask(
        self,
        operation: Operation,
        within_s: float,
        process: ProcessKey = NO_PROCESS,
        *,
        timeout_ms: int = 0,
        gpu: str = "",
        memory_bytes: int = 0,
        share_percent: int = 0,
    ) -> Reply:
        reply = await self._request(
            within_s,
            PauserRequest(self._next_number(), operation, process, timeout_ms, gpu, memory_bytes, share_percent),
        )
        if reply.failure is not None:
            self.counters.failures[operation.value, reply.failure.code] += 1
            if reply.failure.code == Code.DEADLINE and not self._pings:
                self._check_alive()
        return reply

    async def _request(self, within_s: float, request: PauserRequest) -> Reply:
        writer = self._writer
        if writer is None or not self.available:
            return Reply(request.number, failure(Code.UNAVAILABLE, self._reason))
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._pending[request.number] = answer
        try:
            writer.write(encode_request(request))
            async with asyncio.timeout(within_s):
                return await answer
        except TimeoutError:
            return Reply(request.number, failure(Code.DEADLINE, f"{within_s:g} s"))
        finally:
            self._pending.pop(request.number, None)

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _check_alive(self) -> None:
        """A call that hangs is the driver's fault; a pauser that does not answer at all is replaced."""
        ping = asyncio.create_task(self._ping())
        self._pings.add(ping)
        ping.add_done_callback(self._pings.discard)

    async def _ping(self) -> None:
        writer = self._writer
        reply = await self._request(_PING_S, PauserRequest(self._next_number(), Operation.LIST))
        hangs = reply.failure is not None and reply.failure.code == Code.DEADLINE
        if hangs and writer is not None and writer is self._writer:
            log.warning("pauser: does not answer, replacing it")
            self._kill()
            writer.transport.abort()

    # -- keeping it running

    async def _keep_running(self) -> None:
        backoff_s = 0.0
        first = True
        while True:
            begun_s = time.monotonic()
            self.counters.restarts += not first
            first = False
            try:
                reason, least_s = await self._serve_until_lost()
                served = self.available
                # Before anything is awaited: programs that are seen meanwhile must not find it neither here nor lost.
                self._set_unavailable(reason)
            finally:
                await self._clean_up()
            lived_long = time.monotonic() - begun_s >= _SETTLED_S
            # Programs may wait for the next one to resume them: one that did serve is replaced soon.
            longest_s = _REPLACE_WITHIN_S if served else _LAST_BACKOFF_S
            backoff_s = _FIRST_BACKOFF_S if lived_long else min(max(2 * backoff_s, _FIRST_BACKOFF_S), longest_s)
            await asyncio.sleep(max(backoff_s, least_s))

    async def _serve_until_lost(self) -> tuple[str, float]:
        """Why it was lost, and how long to wait at least before the next is started."""
        try:
            await self._serve_one()
        except _Unusable as error:
            return str(error), error.backoff_s
        except (OSError, PauserProtocolError, subprocess.SubprocessError) as error:
            return f"the pauser cannot be used: {error}", 0.0
        return "the pauser has ended", 0.0

    async def _serve_one(self) -> None:
        """One pauser, from its start to its end."""
        reader, self._writer = await self._open()
        try:
            async with asyncio.timeout(_HELLO_S):
                hello = await _next_message(reader)
        except TimeoutError:
            self._kill()
            raise _Unusable(f"the pauser did not start within {_HELLO_S:g} s") from None
        if not isinstance(hello, Hello):
            raise _Unusable("the pauser ended at its start; its last lines are on stderr")
        if hello.unavailable:
            is_child = self._settings.socket_path is None
            raise _Unusable(hello.unavailable, _CHILD_BACKOFF_S if is_child else _SERVICE_BACKOFF_S)
        # Before its hello it resumed what its predecessor had paused.
        self.counters.record_all_resumed(time.monotonic())
        self._hello = hello
        self._ready.set()
        log.info("pauser: ready, pid %d, %s", hello.pid, hello.backend)
        self._notify_change()
        while (message := await _next_message(reader)) is not None:
            self._take(message)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._settings.stand_in is not None:
            return await self._settings.stand_in()
        return await (self._spawn() if self._settings.socket_path is None else self._connect())

    def _take(self, message: Message) -> None:
        if isinstance(message, Reply):
            answer = self._pending.get(message.number)
            if answer is not None and not answer.done():
                answer.set_result(message)
        elif isinstance(message, Notice):
            if message.kind is NoticeKind.HELD_BACK:
                self.counters.hold_backs += 1
                self.counters.held_back_s += message.held_back_s
            elif message.kind is NoticeKind.HOLDS_BACK:
                pass
            elif message.kind is NoticeKind.STOPPED:
                # If it is paused, that ends when its user continues it.
                self.counters.not_for_a_turn(message.process)
            elif message.kind not in (NoticeKind.HANGS, NoticeKind.ARRIVED):
                self.counters.forced += message.kind is NoticeKind.RESUMED
                self.counters.record_resume(message.process, time.monotonic())
            if self._on_notice is not None:
                self._on_notice(message)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        path = self._settings.socket_path
        try:
            return await asyncio.open_unix_connection(path, limit=MAX_REPLY_BYTES)
        except OSError as error:
            raise _Unusable(
                f"cannot connect to the pauser at {path}: {error.strerror or error}; start gpucommons-pauser.service"
            ) from error

    async def _spawn(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = await asyncio.to_thread(self._popen, theirs.fileno())
            except BaseException:
                ours.close()
                raise
        return await asyncio.open_unix_connection(sock=ours, limit=MAX_REPLY_BYTES)

    def _popen(self, descriptor: int) -> "subprocess.Popen[bytes]":
        settings = self._settings
        record = settings.record or default_record(os.environ, os.geteuid())
        return subprocess.Popen(
            # -P: modules come from where they are installed, never from the directory that the agent was started in.
            [
                *(sys.executable, "-P", "-m", "gpucommons.pauser"),
                *("--fd", str(descriptor), "--parent", str(os.getpid()), "--record", str(record)),
                *("--backend", settings.backend, "--max-pause-s", str(settings.max_pause_s)),
                *("--device-files", str(settings.device_files)),
            ],
            pass_fds=(descriptor,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **(settings.environment or {})},
            # Ctrl-C on the agent's terminal is for the agent, which then asks the pauser to end.
            start_new_session=True,
        )

    async def _clean_up(self) -> None:
        """Afterwards the connection and the process are gone, and every pending request has a reply."""
        self._hello = None
        self._ready.clear()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        for number, answer in list(self._pending.items()):
            if not answer.done():
                answer.set_result(Reply(number, failure(Code.UNAVAILABLE, "the pauser has ended")))
        process = self._process
        if process is not None:
            await asyncio.to_thread(_end, process, _LONG_END_S if self._moving else _END_S)
            self._process = None

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _set_unavailable(self, reason: str) -> None:
        if reason != self._reason:
            log.warning("pauser: %s", reason)
        self._reason = reason
        self._hello = None
        self._ready.clear()
        self._notify_change()

    def _notify_change(self) -> None:
        if self._on_change is not None:
            self._on_change()


async def _next_message(reader: asyncio.StreamReader) -> Message | None:
    """None where the connection has ended."""
    try:
        line = await reader.readuntil(b"\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    except asyncio.LimitOverrunError:
        raise PauserProtocolError(f"the pauser sent a line of more than {MAX_REPLY_BYTES} bytes") from None
    return decode_message(line)


def _end(process: "subprocess.Popen[bytes]", within_s: float) -> None:
    """It ends by itself when the connection does, after it has resumed everything."""
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
