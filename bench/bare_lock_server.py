"""A minimal lock server in Python: uvloop and a queue, without policy or accounting. The peer of bench.handoff.

python -m bench.bare_lock_server SOCKET
"""

import asyncio
import sys
from collections import deque
from pathlib import Path

import uvloop

REGISTER, SCHED_ON, REQ_LOCK, LOCK_OK, LOCK_RELEASED = 1, 2, 4, 5, 7


class Lock:
    def __init__(self) -> None:
        self.holder: Client | None = None
        self.waiting: deque[Client] = deque()

    def release(self) -> None:
        if self.waiting:
            self.holder = self.waiting.popleft()
            self.holder.transport.write(self.holder.lock_ok)
        else:
            self.holder = None


class Client(asyncio.Protocol):
    __slots__ = ("frame_bytes", "lock", "lock_ok", "pending", "transport")

    transport: asyncio.Transport
    lock_ok: bytes

    def __init__(self, lock: Lock) -> None:
        self.lock = lock
        self.pending = b""
        self.frame_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self.pending:
            data = self.pending + data
        if not self.frame_bytes:
            if len(data) < 3:
                self.pending = data
                return
            self.frame_bytes = 659 if data[1:3] == b"\x02\x00" else 537
            self.lock_ok = bytes([LOCK_OK]) + bytes(self.frame_bytes - 1)
        size, at = self.frame_bytes, 0
        while len(data) - at >= size:
            self.message(data[at])
            at += size
        self.pending = data[at:] if at < len(data) else b""

    def message(self, kind: int) -> None:
        lock = self.lock
        if kind == REQ_LOCK:
            if lock.holder is None:
                lock.holder = self
                self.transport.write(self.lock_ok)
            else:
                lock.waiting.append(self)
        elif kind == LOCK_RELEASED:
            if lock.holder is self:
                lock.release()
        elif kind == REGISTER:
            self.transport.write(bytes([SCHED_ON]) + bytes(self.frame_bytes - 1))

    def connection_lost(self, error: Exception | None) -> None:
        if self.lock.holder is self:
            self.lock.release()
        elif self in self.lock.waiting:
            self.lock.waiting.remove(self)


async def serve(path: str) -> None:
    lock = Lock()
    server = await asyncio.get_running_loop().create_unix_server(lambda: Client(lock), path, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    Path(sys.argv[1]).unlink(missing_ok=True)
    uvloop.run(serve(sys.argv[1]))
