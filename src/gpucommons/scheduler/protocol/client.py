"""A client of the scheduler for Python programs, instead of libnvshare.so or libxpushare.so.

    with NvshareClient(path, pod="train", synchronize=torch.cuda.synchronize) as client:
        for batch in batches:
            with client.turn():
                step(batch)

It behaves as the library does: `turn` waits for the lock if it is not held. The lock is kept from one turn to the
next, and released between turns when the scheduler sends DROP_LOCK, or after a while without a turn. Submit work to the
GPU inside `turn` only; `synchronize` waits until that work is done.
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Self

from gpucommons.config.settings import SchedulerSettings
from gpucommons.scheduler.protocol.wire import MessageType, ReplyDecoder, SchedulerReply, Version, encode

_POLL_S = 0.25
NVSHARE_SOCKET, XPUSHARE_SOCKET = SchedulerSettings().socket, SchedulerSettings().xpushare_socket


class SchedulerGone(ConnectionError):
    """The scheduler closed the connection, or could not be reached."""


def default_socket() -> str:
    """nvshare's socket, or XPUShare's on a machine or in a container that has only that one."""
    return XPUSHARE_SOCKET if os.path.exists(XPUSHARE_SOCKET) and not os.path.exists(NVSHARE_SOCKET) else NVSHARE_SOCKET


class NvshareClient:
    """One registered client. Without a `path` it connects to `default_socket()`."""

    def __init__(
        self,
        path: str | None = None,
        *,
        pod: str = "none",
        namespace: str = "none",
        gpu: str = "",
        version: Version = 2,
        synchronize: Callable[[], object] | None = None,
        idle_release_s: float = 5.0,
    ) -> None:
        path = default_socket() if path is None else path
        self._version: Version = version
        self._synchronize = synchronize
        self._idle_release_s = idle_release_s
        self._changed = threading.Condition()
        self._decoder = ReplyDecoder(version)
        self._on = False
        self._holds = False
        self._asked = False
        self._must_drop = False
        self._inside = 0
        self._used_s = monotonic()
        self._gone = False
        self.client_id = ""
        self.memory_limit_bytes = 0
        self.core_limit_percent = 100
        self.waits_for_memory = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
            self._send(MessageType.REGISTER, pod=pod, namespace=namespace, gpu=gpu)
            self._handshake()
        except OSError as error:
            self._socket.close()
            raise SchedulerGone(f"no scheduler answers at {path}: {error.strerror or error}") from None
        self._socket.settimeout(_POLL_S)
        self._thread = threading.Thread(target=self._listen, name="nvshare-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @contextmanager
    def turn(self, timeout_s: float | None = None) -> Iterator[None]:
        """Holds the lock while the block runs; raises TimeoutError if it was not granted in time."""
        with self._changed:
            self._acquire(None if timeout_s is None else monotonic() + timeout_s)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._used_s = monotonic()
                if self._must_drop and not self._inside:
                    self._release()

    def report_memory(self, used_bytes: int) -> None:
        """Reports how much is allocated in total; the scheduler uses it for admission. v1 has no such message."""
        with self._changed:
            if self._version == 2:
                self._send(MessageType.MEM_UPDATE, memory_usage_bytes=used_bytes)

    @property
    def holds(self) -> bool:
        return self._holds

    def close(self) -> None:
        with self._changed:
            if self._holds:
                with suppress(OSError):
                    self._release()
            self._gone = True
            self._changed.notify_all()
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _acquire(self, deadline_s: float | None) -> None:
        """Waits for the lock. While the scheduler is off, every client has it."""
        while self._on and (not self._holds or self._must_drop):
            if self._gone:
                raise SchedulerGone("the scheduler closed the connection")
            if not self._asked and not self._holds:
                self._asked = True
                self._send(MessageType.REQ_LOCK)
            left = None if deadline_s is None else deadline_s - monotonic()
            if left is not None and left <= 0:
                raise TimeoutError("the lock was not granted in time")
            self._changed.wait(left)

    def _release(self) -> None:
        """Between turns only. Submitted work ends first: the next client may start at once."""
        if self._synchronize is not None:
            self._synchronize()
        self._holds = self._must_drop = False
        self._send(MessageType.LOCK_RELEASED)
        self._changed.notify_all()

    def _handshake(self) -> None:
        """Waits for the answer to REGISTER; messages that arrive with it are handled, too."""
        while not self.client_id:
            data = self._socket.recv(4096)
            if not data:
                raise ConnectionResetError("the scheduler closed the connection")
            with self._changed:
                for reply in self._decoder.feed(data):
                    self._handle(reply)

    def _listen(self) -> None:
        while not self._gone:
            try:
                data = self._socket.recv(4096)
            except TimeoutError:
                self._release_if_idle()
                continue
            except OSError:
                data = b""
            with self._changed:
                if not data:
                    self._gone = True
                    self._changed.notify_all()
                for reply in self._decoder.feed(data):
                    self._handle(reply)

    def _release_if_idle(self) -> None:
        with self._changed:
            idle = self._holds and not self._inside and monotonic() - self._used_s >= self._idle_release_s
            if idle and not self._gone:
                with suppress(OSError):
                    self._release()

    def _handle(self, reply: SchedulerReply) -> None:
        kind = reply.type
        if kind in (MessageType.SCHED_ON, MessageType.SCHED_OFF):
            self._switched(kind == MessageType.SCHED_ON, reply)
        elif kind == MessageType.LOCK_OK and self._on:
            self._holds, self._asked, self._must_drop, self.waits_for_memory = True, False, False, False
            self._used_s = monotonic()
        elif kind == MessageType.DROP_LOCK and self._holds:
            if self._inside:
                self._must_drop = True
            else:
                with suppress(OSError):
                    self._release()
        elif kind in (MessageType.WAIT_FOR_MEM, MessageType.MEM_AVAILABLE):
            self.waits_for_memory = kind == MessageType.WAIT_FOR_MEM
        elif kind == MessageType.UPDATE_LIMIT:
            self.memory_limit_bytes = reply.memory_limit_bytes
        elif kind == MessageType.UPDATE_CORE_LIMIT:
            self.core_limit_percent = reply.core_limit_percent
        self._changed.notify_all()

    def _switched(self, on: bool, reply: SchedulerReply) -> None:
        if not self.client_id:
            self.client_id = reply.data
            self.core_limit_percent = reply.core_limit_percent or 100
        elif on != self._on:
            self._holds = self._asked = self._must_drop = False
        self._on = on

    def _send(
        self,
        type: MessageType,
        *,
        pod: str = "",
        namespace: str = "",
        gpu: str = "",
        memory_usage_bytes: int = 0,
    ) -> None:
        frame = encode(
            self._version, type, pod=pod, namespace=namespace, gpu=gpu, memory_usage_bytes=memory_usage_bytes
        )
        self._socket.sendall(frame)
