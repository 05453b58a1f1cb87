"""One client's connection: bytes to messages to policy events. Decides nothing itself.

It reads and writes its socket directly, without a transport: LOCK_OK leaves before the books are brought up
to date, and what the kernel holds for a client that does not read is all that is ever held for it.
"""

import socket
from time import monotonic
from typing import TYPE_CHECKING, Final

from gpucommons.base.unix_listener import PeerCredentials, peer_credentials, peer_groups
from gpucommons.scheduler.policy.state import Client, ClientStanding
from gpucommons.scheduler.protocol.wire import (
    LOCK_RELEASED,
    PLAIN,
    REQUEST_LOCK,
    ControlRequest,
    Decoder,
    MemoryUpdate,
    MessageType,
    ProtocolError,
    Received,
    Register,
    Version,
    encode,
    encode_status,
)

if TYPE_CHECKING:
    from gpucommons.scheduler.service.server import SchedulerServer

RUNNING: Final = ClientStanding.RUNNING
# Plain integers: an enum member as an index costs a call.
_REQ_LOCK: Final = int(MessageType.REQ_LOCK)
_LOCK_RELEASED: Final = int(MessageType.LOCK_RELEASED)
_STATUS: Final = frozenset({MessageType.SCHED_ON, MessageType.SCHED_OFF})


class Connection:
    __slots__ = (
        "_decoder",
        "_plain",
        "_recv_into",
        "_send",
        "_server",
        "client",
        "closing",
        "credentials",
        "lock_ok",
        "socket",
    )

    def __init__(self, server: "SchedulerServer", peer: socket.socket) -> None:
        self.socket = peer
        self.client: Client | None = None
        self.credentials: PeerCredentials = peer_credentials(peer)
        # Why this connection ended; empty while it lives.
        self.closing = ""
        self._server = server
        self._recv_into = peer.recv_into
        self._send = peer.send
        self._decoder = Decoder()
        self._speak(2)

    def readable(self) -> None:
        """The loop calls this whenever there is something to read."""
        server = self._server
        buffer = server.buffer
        try:
            size = self._recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close("error")
            return
        if not size:
            self.close("closed")
            return
        now = monotonic()
        client = self.client
        frame_bytes = self._decoder.lone_bytes
        try:
            if client is not None and size >= frame_bytes and buffer[0] == _LOCK_RELEASED:
                self._released(client, now)
                if size > frame_bytes:
                    self._received(bytes(server.view[frame_bytes:size]), now)
            else:
                self._received(bytes(server.view[:size]), now)
                client = self.client
            if client is not None and client.gpu.deadline_s < server.armed_s:
                server.arm(client.gpu.deadline_s, now)
        except Exception as error:
            server.failed(self, error)

    def _received(self, data: bytes, now: float) -> None:
        client = self.client
        for message in self._decoder.feed(data):
            if client is None:
                client = self._unregistered(message, now)
            elif message is LOCK_RELEASED:
                self._released(client, now)
            elif message is REQUEST_LOCK:
                server = self._server
                server.messages[_REQ_LOCK] += 1
                actions = server.policy.request(client, now)
                if actions:
                    server.perform(actions)
            else:
                self._rare(client, message, now)

    def _released(self, client: Client, now: float) -> None:
        """Where it is certain who runs next, that client is told first, and the books are brought up to date after."""
        server = self._server
        heir = client.gpu.heir
        if heir is not None and client.standing is RUNNING:
            server.grant(heir)
            server.policy.hand_over(client, heir, now)
        else:
            server.perform(server.policy.release(client, now))
        server.messages[_LOCK_RELEASED] += 1
        if now >= server.time_handoff_s:
            server.time_handoff(now)

    def write(self, frame: bytes) -> None:
        """Sends at once or not at all: a client for which the kernel has no more room does not read."""
        try:
            if self._send(frame) == len(frame):
                return
            reason = "does_not_read"
        except BlockingIOError:
            reason = "does_not_read"
        except OSError:
            reason = "error"
        self.close(reason)

    def send(self, message: MessageType, value: int) -> None:
        if message is MessageType.UPDATE_LIMIT:
            frame = encode(2, message, memory_limit_bytes=value)
        elif message is MessageType.UPDATE_CORE_LIMIT:
            frame = encode(2, message, core_limit_percent=value)
        elif message in _STATUS and self.client is not None:
            on = message is MessageType.SCHED_ON
            frame = encode_status(self.client.version, on, self.client.id, value)
        else:
            frame = self._plain[message]
        self.write(frame)

    def close(self, reason: str) -> None:
        """Ends the connection. The policy hears of it from the loop: it may be busy with an event now."""
        if not self.closing:
            self.closing = reason
            self._server.closed(self)

    def groups(self) -> frozenset[int]:
        return peer_groups(self.socket)

    # Messages off the hot path

    def _unregistered(self, message: Received, now: float) -> Client | None:
        if self.closing:
            return None
        if isinstance(message, Register):
            self._server.messages[MessageType.REGISTER] += 1
            self._speak(message.version)
            self.client = self._server.register(self, message, now)
        elif isinstance(message, ControlRequest):
            self._server.messages[message.type] += 1
            self._server.control_frame(self, message, now)
        elif isinstance(message, ProtocolError):
            self.close(message.reason)
        return self.client

    def _rare(self, client: Client, message: Received, now: float) -> None:
        server = self._server
        if isinstance(message, MemoryUpdate):
            server.messages[MessageType.MEM_UPDATE] += 1
            server.apply(server.policy.update_memory(client, message.used_bytes, now), now)
        elif isinstance(message, Register):
            server.messages[MessageType.REGISTER] += 1
            server.policy.refusals["repeated_register"] += 1
            server.perform([server.policy.status_of(client)])
        elif isinstance(message, ProtocolError):
            self.close(message.reason)

    def _speak(self, version: Version) -> None:
        self._plain = PLAIN[version]
        self.lock_ok = self._plain[MessageType.LOCK_OK]
