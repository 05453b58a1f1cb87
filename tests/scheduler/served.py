"""A scheduler on a real socket, in its own thread, and a scripted client that can send any frame."""

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import uvloop

from gpucommons.base.process_starts import recorded_starts
from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.model.sharing import ClientSharing, GpuSharing, SharingReading
from gpucommons.rules.privacy import Privacy
from gpucommons.scheduler.policy.quotas import QuotaRule
from gpucommons.scheduler.protocol.wire import CONTROL_ID, MessageType, ReplyDecoder, SchedulerReply, Version, encode
from gpucommons.scheduler.service.server import SchedulerServer
from waiting import until

PATIENCE_S = 10.0
# Of the control socket, as by default.
PRIVACY = Privacy(unix=True, agent_uid=os.getuid())
T = TypeVar("T")


class Served:
    """`call` and `run` execute on the scheduler's thread."""

    def __init__(self, settings: SchedulerSettings, rules: tuple[QuotaRule, ...] = ()) -> None:
        self.path = settings.socket
        self._settings = settings
        self._rules = rules
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.server = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(PATIENCE_S)
        return self

    def __exit__(self, *exception: object) -> None:
        asyncio.run_coroutine_threadsafe(self.server.stop(), self._loop).result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    async def _start(self) -> SchedulerServer:
        server = SchedulerServer(self._settings, self._rules, starts=recorded_starts())
        await server.start()
        return server

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_S)

    def call(self, function: Callable[[], T]) -> T:
        async def run() -> T:
            return function()

        return self.run(run())

    def reading(self) -> SharingReading:
        return self.call(lambda: self.server.read_now())

    def gpu(self) -> GpuSharing:
        (gpu,) = self.reading().gpus
        return gpu

    def row(self, client: "Scripted") -> ClientSharing:
        return next(row for row in self.reading().clients if row.client_id == client.id)

    def until(self, condition: Callable[[SharingReading], bool]) -> SharingReading:
        """Waits until the condition is true of the scheduler's state."""

        def found() -> SharingReading | None:
            reading = self.reading()
            return reading if condition(reading) else None

        return until(found)


class Scripted:
    """One connection. `id` is the client id from the answer to REGISTER."""

    def __init__(self, path: str, version: Version = 2) -> None:
        self.version: Version = version
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(path)
        self.id = ""
        self._decoder = ReplyDecoder(version)
        self._replies: list[SchedulerReply] = []

    def send(self, type: MessageType, **fields: object) -> None:
        self.socket.sendall(encode(self.version, type, **fields))  # type: ignore[arg-type]

    def register(self, pod: str = "pod", namespace: str = "default", gpu: str = "", **fields: object) -> Self:
        self.send(MessageType.REGISTER, pod=pod, namespace=namespace, gpu=gpu, **fields)
        self.id = self.expect(MessageType.SCHED_ON, MessageType.SCHED_OFF).data
        return self

    def ask(self) -> Self:
        self.send(MessageType.REQ_LOCK)
        return self

    def release(self) -> Self:
        self.send(MessageType.LOCK_RELEASED)
        return self

    def report(self, used_bytes: int) -> Self:
        self.send(MessageType.MEM_UPDATE, memory_usage_bytes=used_bytes)
        return self

    def receive(self) -> SchedulerReply | None:
        """The next frame; None when the scheduler closed the connection."""
        while not self._replies:
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._replies += self._decoder.feed(data)
        return self._replies.pop(0)

    def expect(self, *types: MessageType) -> SchedulerReply:
        """The next frame, which must be one of these."""
        reply = self.receive()
        assert reply is not None, f"closed instead of {types}"
        assert reply.type in types, f"{MessageType(reply.type).name} instead of {types}"
        return reply

    def granted(self) -> Self:
        self.expect(MessageType.LOCK_OK)
        return self

    def nothing(self) -> bool:
        """Whether there is nothing to read now."""
        if self._replies:
            return False
        self.socket.setblocking(False)
        try:
            self._replies += self._decoder.feed(self.socket.recv(65536))
        except BlockingIOError:
            return True
        finally:
            self.socket.settimeout(PATIENCE_S)
        return not self._replies

    def closed(self) -> bool:
        """Reads until the scheduler closes the connection; True when it has."""
        while self.receive() is not None:
            pass
        return True

    def close(self) -> None:
        self.socket.close()


def control(path: str, type: MessageType, data: bytes = b"", version: Version = 2) -> None:
    """What nvsharectl does: sends one frame and closes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as ctl:
        ctl.connect(path)
        ctl.sendall(encode(version, type, id=CONTROL_ID, data=data))


def scheduler_settings(socket: Path | str, **settings: object) -> SchedulerSettings:
    """One socket; no other unless `settings` have it."""
    return SchedulerSettings(**{"socket": str(socket), "xpushare_socket": "", **settings})  # type: ignore[arg-type]


@contextmanager
def serving(tmp_path: Path, rules: tuple[QuotaRule, ...] = (), **settings: object) -> Iterator[Served]:
    chosen = scheduler_settings(tmp_path / "nvshare" / "s.sock", **settings)
    with Served(chosen, rules) as served:
        yield served
