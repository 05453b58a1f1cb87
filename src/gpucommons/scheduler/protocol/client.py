"""A client of the scheduler for Python programs, instead of libnvshare.so or libxpushare.so.

    with NvshareClient(path, pod="train", synchronize=torch.cuda.synchronize) as client:
        for batch in batches:
            with client.turn():
                step(batch)

It behaves as the library does: `turn` waits for the lock if it is not held. The lock is kept from one turn to the
next, and released between turns when the scheduler sends DROP_LOCK, or after a while without a turn. Submit work to the
GPU inside `turn` only; `synchronize` waits until that work is done.

The lock is lost with the connection to the scheduler. The client connects again by itself, with growing pauses; what
`turn` does until then is `on_lost`: "wait" for the scheduler, "run" without the lock, or "raise" SchedulerGone.
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Final, Literal, Self, get_args

from gpucommons.base.backoff import Backoff
from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.scheduler.protocol.wire import MessageType, ReplyDecoder, SchedulerReply, Version, encode

SOCKET_VARIABLE: Final = "GPUCOMMONS_SCHEDULER_SOCKET"
_POLL_S: Final = 0.25
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_STATUS: Final = (MessageType.SCHED_ON, MessageType.SCHED_OFF)
OnLost = Literal["wait", "run", "raise"]
NVSHARE_SOCKET, XPUSHARE_SOCKET = SchedulerSettings().socket, SchedulerSettings().xpushare_socket


class SchedulerGone(ConnectionError):
    """The scheduler closed the connection, or could not be reached."""


def default_socket() -> str:
    """GPUCOMMONS_SCHEDULER_SOCKET; else nvshare's socket, or XPUShare's where there is only that one."""
    named = os.environ.get(SOCKET_VARIABLE)
    if named:
        return named
    return XPUSHARE_SOCKET if os.path.exists(XPUSHARE_SOCKET) and not os.path.exists(NVSHARE_SOCKET) else NVSHARE_SOCKET


class NvshareClient:
    """One registered client. Without a `path` it connects to `default_socket()`.

    The constructor raises SchedulerGone if no scheduler has answered after `timeout_s`.
    """

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
        on_lost: OnLost = "wait",
        timeout_s: float = 10.0,
    ) -> None:
        if on_lost not in get_args(OnLost):
            raise ValueError(f"invalid on_lost {on_lost!r}: use {', '.join(get_args(OnLost))}")
        self._path = default_socket() if path is None else path
        self._register = encode(version, MessageType.REGISTER, pod=pod, namespace=namespace, gpu=gpu)
        self._version: Version = version
        self._synchronize = synchronize
        self._idle_release_s = idle_release_s
        self._on_lost: OnLost = on_lost
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._connected = False
        self._closed = False
        self._on = False
        self._holds = False
        self._asked = False
        self._must_drop = False
        self._inside = 0
        self._lost_inside = False
        self._used_s = monotonic()
        self._used_bytes = 0
        self.client_id = ""
        self.memory_limit_bytes = 0
        self.core_limit_percent = 100
        self.waits_for_memory = False
        try:
            self._connect()
        except OSError as error:
            raise SchedulerGone(f"no scheduler answers at {self._path}: {error.strerror or error}") from None
        self._thread = threading.Thread(target=self._listen, name="nvshare-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @contextmanager
    def turn(self, timeout_s: float | None = None) -> Iterator[None]:
        """Holds the lock while the block runs; raises TimeoutError if it was not granted in time.

        While there is no connection, it waits, runs the block without the lock or raises SchedulerGone, by `on_lost`.
        """
        with self._changed:
            self._acquire(None if timeout_s is None else monotonic() + timeout_s)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._used_s = monotonic()
                if not self._inside:
                    self._end_of_turns()

    def report_memory(self, used_bytes: int) -> None:
        """Reports how much is allocated in total; the scheduler uses it for admission. v1 has no such message."""
        with self._changed:
            self._used_bytes = used_bytes
            self._send_memory()

    @property
    def connected(self) -> bool:
        return self._connected

    @property
    def holds(self) -> bool:
        return self._holds

    def close(self) -> None:
        with self._changed:
            if self._holds:
                self._release()
            self._closed = True
            self._changed.notify_all()
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    # Turns. The caller holds `_changed`.

    def _acquire(self, deadline_s: float | None) -> None:
        """Waits for the lock. While the scheduler is off, every client has it."""
        while not self._may_run():
            if self._connected and not self._asked and not self._holds:
                self._asked = True
                self._send(MessageType.REQ_LOCK)
            left = None if deadline_s is None else deadline_s - monotonic()
            if left is not None and left <= 0:
                raise TimeoutError("the lock was not granted in time")
            self._changed.wait(left)

    def _may_run(self) -> bool:
        if self._closed:
            raise SchedulerGone("the client was closed")
        if self._connected:
            return not self._on or (self._holds and not self._must_drop)
        if self._on_lost == "raise":
            raise SchedulerGone(f"the scheduler at {self._path} closed the connection")
        return self._on_lost == "run"

    def _end_of_turns(self) -> None:
        """The last block ended."""
        if self._must_drop:
            self._release()
        elif self._lost_inside:
            self._wait_for_work()
        self._lost_inside = False

    def _release(self) -> None:
        """Between turns only."""
        self._wait_for_work()
        self._holds = self._must_drop = False
        self._send(MessageType.LOCK_RELEASED)
        self._changed.notify_all()

    def _wait_for_work(self) -> None:
        """Submitted work ends first: the next client may start at once."""
        if self._synchronize is not None:
            self._synchronize()

    # The connection

    def _connect(self) -> None:
        """Connects and registers. Raises OSError if that fails or takes too long."""
        deadline_s = monotonic() + self._timeout_s
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        decoder = ReplyDecoder(self._version)
        try:
            peer.settimeout(self._timeout_s)
            peer.connect(self._path)
            peer.sendall(self._register)
            replies = _first_replies(peer, decoder, deadline_s)
            peer.settimeout(_POLL_S)
        except OSError:
            peer.close()
            raise
        with self._changed:
            self._socket = peer
            self._decoder = decoder
            self._connected = True
            self.client_id = ""
            for reply in replies:
                self._handle(reply)
            if self._used_bytes:
                self._send_memory()
            self._changed.notify_all()

    def _listen(self) -> None:
        while not self._closed:
            self._serve_connection()
            self._lose()
            self._connect_again()

    def _serve_connection(self) -> None:
        """Handles messages until the connection ends."""
        while True:
            try:
                data = self._socket.recv(4096)
            except TimeoutError:
                self._release_if_idle()
                continue
            except OSError:
                return
            if not data:
                return
            with self._changed:
                for reply in self._decoder.feed(data):
                    self._handle(reply)

    def _lose(self) -> None:
        """The connection ended, and the lock with it: the scheduler may give it to another client."""
        with self._changed:
            held, self._holds = self._holds, False
            self._connected = self._asked = self._must_drop = self.waits_for_memory = False
            self._lost_inside = held and self._inside > 0
            if held and not self._inside and not self._closed:
                self._wait_for_work()
            self._changed.notify_all()

    def _connect_again(self) -> None:
        pauses = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while not self._connected:
            with self._changed:
                if self._changed.wait_for(lambda: self._closed, pauses.next_s()):
                    return
                self._socket.close()
            with suppress(OSError):
                self._connect()

    def _release_if_idle(self) -> None:
        with self._changed:
            idle = self._holds and not self._inside and monotonic() - self._used_s >= self._idle_release_s
            if idle and not self._closed:
                self._release()

    def _handle(self, reply: SchedulerReply) -> None:
        kind = reply.type
        if kind in _STATUS:
            self._switch(kind == MessageType.SCHED_ON, reply)
        elif kind == MessageType.LOCK_OK and self._on:
            self._holds, self._asked, self._must_drop, self.waits_for_memory = True, False, False, False
            self._used_s = monotonic()
        elif kind == MessageType.DROP_LOCK and self._holds:
            if self._inside:
                self._must_drop = True
            else:
                self._release()
        elif kind in (MessageType.WAIT_FOR_MEM, MessageType.MEM_AVAILABLE):
            self.waits_for_memory = kind == MessageType.WAIT_FOR_MEM
        elif kind == MessageType.UPDATE_LIMIT:
            self.memory_limit_bytes = reply.memory_limit_bytes
        elif kind == MessageType.UPDATE_CORE_LIMIT:
            self.core_limit_percent = reply.core_limit_percent
        self._changed.notify_all()

    def _switch(self, on: bool, reply: SchedulerReply) -> None:
        if not self.client_id:
            self.client_id = reply.data
            self.core_limit_percent = reply.core_limit_percent or 100
        elif on != self._on:
            self._holds = self._asked = self._must_drop = False
        self._on = on

    def _send_memory(self) -> None:
        if self._version == 2:
            self._send(MessageType.MEM_UPDATE, self._used_bytes)

    def _send(self, type: MessageType, memory_usage_bytes: int = 0) -> None:
        """A message that cannot be sent is dropped: the listener notices that the connection has ended."""
        if self._connected:
            with suppress(OSError):
                self._socket.sendall(encode(self._version, type, memory_usage_bytes=memory_usage_bytes))


def _first_replies(peer: socket.socket, decoder: ReplyDecoder, deadline_s: float) -> list[SchedulerReply]:
    """The answer to REGISTER, and messages that arrive with it."""
    replies: list[SchedulerReply] = []
    while not any(reply.type in _STATUS for reply in replies):
        peer.settimeout(max(deadline_s - monotonic(), 0.001))
        data = peer.recv(4096)
        if not data:
            raise ConnectionResetError("the scheduler closed the connection")
        replies += decoder.feed(data)
    return replies
