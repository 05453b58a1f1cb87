"""The memory of responses that peers have not read yet: a body counts once, however many connections send it.

Above the limit, the connections that have held their body for longest are closed.
"""

from dataclasses import dataclass
from typing import Protocol


class Holder(Protocol):
    """A connection."""

    def abort(self, reason: str) -> None: ...


@dataclass(slots=True)
class _Body:
    data: bytes
    holders: int = 0


class UnreadBodies:
    def __init__(self, most_bytes: int) -> None:
        self.total_bytes = 0
        self._most_bytes = most_bytes
        # By the identity of the object, which a holder keeps alive.
        self._bodies: dict[int, _Body] = {}
        # In the order in which they began.
        self._held: dict[Holder, bytes] = {}

    def hold(self, holder: Holder, data: bytes) -> None:
        """From now on the connection sends these bytes. The newest connection is never closed."""
        self.release(holder)
        body = self._bodies.get(id(data))
        if body is None:
            body = self._bodies[id(data)] = _Body(data)
            self.total_bytes += len(data)
        body.holders += 1
        self._held[holder] = data
        while self.total_bytes > self._most_bytes and len(self._held) > 1:
            oldest = next(iter(self._held))
            self.release(oldest)
            oldest.abort("unread_memory")

    def release(self, holder: Holder) -> None:
        data = self._held.pop(holder, None)
        if data is None:
            return
        body = self._bodies[id(data)]
        body.holders -= 1
        if not body.holders:
            del self._bodies[id(data)]
            self.total_bytes -= len(data)
