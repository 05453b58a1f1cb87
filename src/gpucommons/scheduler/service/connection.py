"""One client's connection: bytes to messages to policy events. It decides nothing.

It reads and writes its socket directly, without a transport: LOCK_OK is sent before the accounts are updated, and
nothing but the kernel's buffer is held for a client that does not read.
"""

import socket
from time import monotonic
from typing import Final, Protocol

from gpucommons.base.peers import PeerProcess, accounts_of, look_at, owner_of
from gpucommons.base.unix_listener import PeerCredentials, peer_credentials
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
from gpucommons.scheduler.service.gone_peers import PeerTrace, trace_of
from gpucommons.scheduler.service.turn_loop import TurnLoop

RUNNING: Final = ClientStanding.RUNNING
# Plain integers: an enum member as an index costs a call.
_REQ_LOCK: Final = int(MessageType.REQ_LOCK)
_LOCK_RELEASED: Final = int(MessageType.LOCK_RELEASED)
_STATUS: Final = frozenset({MessageType.SCHED_ON, MessageType.SCHED_OFF})


class ConnectionOwner(Protocol):
    """What a connection reports to the server that accepted it."""

    def register(self, connection: "Connection", message: Register, now: float) -> Client | None: ...
    def control_frame(self, connection: "Connection", message: ControlRequest, now: float) -> None: ...
    def closed(self, connection: "Connection") -> None: ...
    def failed(self, connection: "Connection", error: Exception) -> None: ...


class Connection:
    __slots__ = (
        "_decoder",
        "_owner",
        "_plain",
        "_recv_into",
        "_send",
        "_turns",
        "_version",
        "accounts",
        "client",
        "closing",
        "credentials",
        "lock_ok",
        "owner",
        "process",
        "socket",
        "trace",
    )

    def __init__(self, turns: TurnLoop, owner: ConnectionOwner, peer: socket.socket) -> None:
        self.socket = peer
        self.client: Client | None = None
        self.credentials: PeerCredentials = peer_credentials(peer)
        # Read now: a program that sends one order and exits may be gone when its frame is handled.
        pid, uid, _ = self.credentials
        self.process = look_at(pid)
        # Read afterwards: what belongs to a process that has ended may be that of another with its pid.
        self.trace = trace_of(peer, pid) if uid == 0 else PeerTrace(has_ended=False)
        if self.trace.has_ended:
            self.process = PeerProcess()
        self.accounts = accounts_of(uid, self.process)
        self.owner = owner_of(uid, self.process)
        # Why this connection ended; empty while it is open.
        self.closing = ""
        self._turns = turns
        self._owner = owner
        self._recv_into = peer.recv_into
        self._send = peer.send
        self._decoder = Decoder()
        self._use_version(2)

    @property
    def is_root(self) -> bool:
        """Whether it is root's, outside of containers, or may be: one that has ended sends no more than one order."""
        return not self.accounts or self.trace.has_ended

    def readable(self) -> None:
        """The loop calls this whenever the socket is readable."""
        turns = self._turns
        buffer = turns.buffer
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
                    self._received(bytes(turns.view[frame_bytes:size]), now)
            else:
                self._received(bytes(turns.view[:size]), now)
                client = self.client
            if client is not None and client.gpu.deadline_s < turns.armed_s:
                turns.arm(client.gpu.deadline_s, now)
        except Exception as error:
            self._owner.failed(self, error)

    def _received(self, data: bytes, now: float) -> None:
        client = self.client
        for message in self._decoder.feed(data):
            if client is None:
                client = self._unregistered(message, now)
            elif message is LOCK_RELEASED:
                self._released(client, now)
            elif message is REQUEST_LOCK:
                turns = self._turns
                turns.messages[_REQ_LOCK] += 1
                actions = turns.policy.request(client, now)
                if actions:
                    turns.perform(actions)
            else:
                self._rare(client, message, now)

    def _released(self, client: Client, now: float) -> None:
        """Where the next client is certain, its LOCK_OK is sent first, and the accounts are updated afterwards."""
        turns = self._turns
        next_client = client.gpu.next_client
        if next_client is not None and client.standing is RUNNING:
            turns.grant(next_client)
            turns.policy.hand_over(client, next_client, now)
        else:
            turns.perform(turns.policy.release(client, now))
        turns.messages[_LOCK_RELEASED] += 1
        if now >= turns.time_handoff_s:
            turns.time_handoff(now)

    def write(self, frame: bytes) -> None:
        """Sends at once or not at all: a client whose kernel buffer is full does not read."""
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
            frame = encode_status(self._version, on, self.client.id, value)
        else:
            frame = self._plain[message]
        self.write(frame)

    def close(self, reason: str) -> None:
        """Ends the connection. The policy gets the event later, from the loop: it may be handling one now."""
        if not self.closing:
            self.closing = reason
            self._owner.closed(self)

    # Messages off the hot path

    def _unregistered(self, message: Received, now: float) -> Client | None:
        if self.closing:
            return None
        if isinstance(message, Register):
            self._turns.messages[MessageType.REGISTER] += 1
            self._use_version(message.version)
            self.client = self._owner.register(self, message, now)
        elif isinstance(message, ControlRequest):
            self._turns.messages[message.type] += 1
            self._owner.control_frame(self, message, now)
        elif isinstance(message, ProtocolError):
            self.close(message.reason)
        return self.client

    def _rare(self, client: Client, message: Received, now: float) -> None:
        turns = self._turns
        if isinstance(message, MemoryUpdate):
            turns.messages[MessageType.MEM_UPDATE] += 1
            turns.apply(turns.policy.update_memory(client, message.used_bytes, now), now)
        elif isinstance(message, Register):
            turns.messages[MessageType.REGISTER] += 1
            turns.policy.refusals["repeated_register"] += 1
            turns.perform([turns.policy.status_of(client)])
        elif isinstance(message, ProtocolError):
            self.close(message.reason)

    def _use_version(self, version: Version) -> None:
        self._version = version
        self._plain = PLAIN[version]
        self.lock_ok = self._plain[MessageType.LOCK_OK]
