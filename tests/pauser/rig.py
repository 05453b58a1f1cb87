"""Pausers as real processes, and their clients, for the tests of this folder."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

import psutil

from fakes.cuda.control import FakeCuda
from gpucommons.pauser.backend import Failure
from gpucommons.pauser.client import Pauser, PauserSettings
from gpucommons.pauser.protocol import (
    MAX_REPLY_BYTES,
    Hello,
    Message,
    MessageLines,
    Notice,
    PauserRequest,
    Reply,
    decode_message,
    encode_request,
)
from waiting import until

T = TypeVar("T")
GPU = "gpu0"


def code_of(answer: Reply | Failure | None) -> int:
    """0 where it succeeded."""
    failed = answer.failure if isinstance(answer, Reply) else answer
    return 0 if failed is None else failed.code


def environment(fake: FakeCuda | None = None) -> dict[str, str]:
    ours = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return {**os.environ, **ours, **(fake.environment() if fake is not None else {})}


def settings(fake: FakeCuda, record: Path, max_pause_s: float = 10.0) -> PauserSettings:
    return PauserSettings(record=record, max_pause_s=max_pause_s, environment=environment(fake))


@asynccontextmanager
async def pausing(given: PauserSettings, on_notice: Callable[[Notice], None] | None = None) -> AsyncIterator[Pauser]:
    """A client with a pauser that is ready."""
    pauser = Pauser(given, on_notice=on_notice)
    await pauser.start()
    try:
        assert await pauser.wait_available(30), pauser.reason
        yield pauser
    finally:
        await pauser.stop()


def run_with(given: PauserSettings, body: Callable[[Pauser], Awaitable[T]]) -> T:
    async def whole() -> T:
        async with pausing(given) as pauser:
            return await body(pauser)

    return asyncio.run(whole())


class Connection:
    """One end of a pauser's socket, spoken to by hand."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.socket.settimeout(30)
        self._lines = MessageLines(MAX_REPLY_BYTES)
        self._messages: list[Message] = []

    def next(self) -> Message | None:
        """The next message; None once the pauser has closed."""
        while not self._messages:
            data = self.socket.recv(65536)
            if not data:
                return None
            self._messages += map(decode_message, self._lines.feed(data))
        return self._messages.pop(0)

    def hello(self) -> Hello:
        found = self.next()
        assert isinstance(found, Hello)
        return found

    def send(self, request: PauserRequest) -> None:
        self.socket.sendall(encode_request(request))

    def reply(self) -> Reply:
        """The next reply; notices are passed over."""
        while not isinstance(found := self.next(), Reply):
            assert found is not None, "the pauser has closed"
        return found

    def ask(self, request: PauserRequest) -> Reply:
        self.send(request)
        return self.reply()


def arguments(record: Path, *more: str, program: str = "") -> list[str]:
    run = ["-c", program] if program else ["-m", "gpucommons.pauser"]
    return [sys.executable, "-P", *run, "--record", str(record), *more]


@contextmanager
def child(
    fake: FakeCuda, record: Path, *more: str, program: str = ""
) -> Iterator[tuple["subprocess.Popen[str]", Connection]]:
    """A pauser over a socketpair, without a client."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            arguments(record, "--fd", str(theirs.fileno()), *more, program=program),
            pass_fds=(theirs.fileno(),),
            env=environment(fake),
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        with ours:
            yield process, Connection(ours)
        process.wait(15)
    finally:
        process.kill()
        process.communicate()


def watchdog_of(pauser: int) -> int | None:
    """The pid of the pauser's second process; None where it has none at the moment."""
    try:
        children = psutil.Process(pauser).children()
        return next((one.pid for one in children if "gpucommons.pauser.watchdog" in one.cmdline()), None)
    except psutil.Error:
        return None


def kill_with_watchdog(process: "subprocess.Popen[str]") -> None:
    """Nothing that it had paused is resumed."""
    watchdog = until(lambda: watchdog_of(process.pid), "the watchdog has started")
    process.send_signal(signal.SIGSTOP)
    os.kill(watchdog, signal.SIGKILL)
    process.kill()
    process.wait()


@contextmanager
def service(fake: FakeCuda, record: Path, path: Path, *more: str) -> Iterator["subprocess.Popen[str]"]:
    """A pauser that listens at `path`."""
    process = subprocess.Popen(
        arguments(record, "--listen", str(path), *more), env=environment(fake), stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
