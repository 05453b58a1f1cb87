"""The control socket: one JSON line in, one JSON line out.

It is in the directory of the client socket, or in that of the agent's user if the agent may not use the former.

Every user may read the status, with the names of other users hidden as on the API's Unix socket. Orders are accepted
from admins only, except that owners may park and wake their own programs. No request may delay a hand-off: the replies
to `status` are made in small steps and kept for a while.
"""

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Final, NamedTuple

from gpucommons.base.line_server import LineConnection, LineLimits, LinePeer, LineServer
from gpucommons.base.text import parse_core, parse_memory
from gpucommons.base.unix_listener import ListenError, peer_credentials
from gpucommons.config.runtime_directory import control_path
from gpucommons.model.sharing import ClientSharing, LeftAlone, ParkedReading, SharingReading
from gpucommons.model.viewer import SEES_ALL, Viewer
from gpucommons.model.words import SharingClass
from gpucommons.rules.privacy import Privacy, redact_sharing
from gpucommons.scheduler.policy.quotas import QuotaValues
from gpucommons.scheduler.service.server import SchedulerServer

_LONGEST_QUANTUM_S: Final = 86_400
_AUTO: Final = "auto"
_TIMEOUT_S: Final = 5.0
_LIMITS: Final = LineLimits(
    line_bytes=4096, connections=32, connections_in_all=128, requests_per_s=10.0, request_burst=20.0
)
# A reply may be this old, unless an order, a connection or a disconnection came since.
_STATUS_AGE_S: Final = 0.5
# Pieces made before the sockets are served again: a fraction of a millisecond of work.
_PIECES_PER_STEP: Final = 4

log = logging.getLogger(__name__)

ControlCommand = Mapping[str, object]
# The JSON text of a reading, in pieces.
Document = Callable[[SharingReading], Iterator[str]]


class Status(NamedTuple):
    """What `status` answers from; the generation of the server and the time when it was begun; the users with rows.

    `texts` has a reply for each kind of viewer: those that see all, those without rows, and each user with rows.
    """

    reading: SharingReading
    generation: int
    begun_s: float
    users: frozenset[int | None]
    texts: dict[Viewer, bytes]


class ControlError(Exception):
    """A request that cannot be carried out: one line that says what to do."""


class ControlSocket:
    def __init__(
        self, server: SchedulerServer, document: Document, privacy: Privacy, paths: Sequence[str] = ()
    ) -> None:
        """The first of `paths` that can be served is; empty: in the directory of the client socket."""
        self._server = server
        self._document = document
        self._privacy = privacy
        self._paths = tuple(paths) or (control_path(server.settings.socket),)
        self._lines = LineServer("the control socket", _LIMITS, self._converse, _refusal)
        self._status: Status | None = None
        self._status_lock = asyncio.Lock()
        self._orders: Mapping[str, Callable[[ControlCommand], str]] = {
            "on": self._on,
            "off": self._off,
            "set-quantum": self._set_quantum,
            "set-limit": self._set_limit,
            "set-class": self._set_class,
        }

    async def start(self) -> None:
        """Raises ListenError if the socket cannot be served and clients of nvshare are."""
        try:
            await self._lines.start(self._paths, "scheduler.socket")
        except ListenError as error:
            if self._server.settings.enabled:
                raise
            log.warning("the control socket is not served: %s", error)

    async def stop(self) -> None:
        await self._lines.stop()

    async def _converse(self, peer: LinePeer, line: bytes, connection: LineConnection) -> None:
        async with asyncio.timeout(_TIMEOUT_S):
            connection.send(await self._reply(line, peer.socket, peer.process.is_local))

    async def _reply(self, line: bytes, peer: socket.socket, local: bool) -> bytes:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise ControlError("expected a JSON object on one line")
            if request.get("command") == "status":
                return await self._status_reply(self._viewer(peer, local))
            if request.get("command") in ("park", "wake"):
                return json.dumps({"ok": True, "answer": self._move(request, peer, local)}).encode() + b"\n"
            answer = self._carry_out(request, lambda: self._server.is_admin(peer, local))
            return json.dumps({"ok": True, "answer": answer}).encode() + b"\n"
        except ControlError as error:
            return _refusal(str(error))
        except (ValueError, RecursionError):
            return _refusal("invalid JSON: send one JSON object on one line")

    def _move(self, request: ControlCommand, peer: socket.socket, local: bool) -> Mapping[str, object]:
        """Parks or wakes programs, for their owners and admins. A uid of a container is not that of a user here."""
        parking, target = self._server.parking, _text(request, "target")
        if parking is None:
            raise ControlError("nothing is parked here: set scheduler.share_programs to own or all")
        if not local:
            raise ControlError(f"{request['command']} refused: not from inside a container")
        uid = None if self._server.includes_admin(peer, local) else peer_credentials(peer).uid
        try:
            orders = parking.orders
            order = orders.park(target, uid) if request["command"] == "park" else orders.wake(target, uid)
        except ValueError as error:
            raise ControlError(str(error)) from None
        self._server.generation += 1
        log.info("control socket: %s %s by uid %d", request["command"], target, peer_credentials(peer).uid)
        return order._asdict()

    def _viewer(self, peer: socket.socket, local: bool) -> Viewer:
        """Admins see all. A uid of a container does not name a user of this node: such a peer sees no names."""
        if self._server.includes_admin(peer, local):
            return SEES_ALL
        return self._privacy.viewer(peer_credentials(peer).uid, None, False, local)

    async def _status_reply(self, viewer: Viewer) -> bytes:
        """One reply is made at a time; all requests of the same kind of viewer that came before it was begun get it."""
        needed = self._server.generation
        async with self._status_lock:
            status = self._status
            if status is None or status.generation < needed or monotonic() - status.begun_s > _STATUS_AGE_S:
                self._status = status = await self._read_status()
            if not viewer.sees_all and (viewer.sees_names or viewer.uid not in status.users):
                # The names that a local user sees are the same for all.
                viewer = Viewer(False, sees_names=viewer.sees_names)
            text = status.texts.get(viewer)
            if text is None:
                text = status.texts[viewer] = await self._make_text(status.reading, viewer)
            return text

    async def _read_status(self) -> Status:
        generation, begun_s = self._server.generation, monotonic()
        reading = await self._server.read_in_steps()
        parked = () if reading.parking is None else reading.parking.programs
        rows: Iterable[ClientSharing | LeftAlone | ParkedReading] = (*reading.clients, *reading.left_alone, *parked)
        return Status(reading, generation, begun_s, frozenset(row.uid for row in rows), {})

    async def _make_text(self, reading: SharingReading, viewer: Viewer) -> bytes:
        # Hiding the names of thousands of clients takes milliseconds: in another thread it delays no hand-off.
        seen = reading if viewer.sees_all else await asyncio.to_thread(redact_sharing, reading, viewer)
        parts = [b'{"ok": true, "answer": ']
        for piece in self._document(seen):
            parts.append(piece.encode())
            if len(parts) % _PIECES_PER_STEP == 0:
                await asyncio.sleep(0)
        return b"".join((*parts, b"}\n"))

    def _carry_out(self, request: ControlCommand, is_admin: Callable[[], bool]) -> str:
        command = request.get("command")
        order = self._orders.get(command) if isinstance(command, str) else None
        if order is None:
            raise ControlError(f"unknown command {command!r}: use status, park, wake, {', '.join(self._orders)}")
        if not is_admin():
            raise ControlError(
                f"{command} refused: only root, the agent's user and members of scheduler.admin_group may do that, "
                "and not from inside a container"
            )
        answer = order(request)
        log.info("control socket: %s", answer)
        return answer

    def _on(self, _: ControlCommand) -> str:
        self._server.switch(True)
        return "the scheduler is on: clients and programs take turns"

    def _off(self, _: ControlCommand) -> str:
        self._server.switch(False)
        return "the scheduler is off: every client and program runs, unscheduled and unbilled"

    def _set_quantum(self, request: ControlCommand) -> str:
        """How long a turn lasts while other clients wait for its room, on every GPU and for every reason."""
        seconds = request.get("seconds")
        if seconds == _AUTO:
            self._server.set_quantum(None)
            return "the scheduler chooses the length of a turn from now on, as configured"
        if not isinstance(seconds, int | float) or isinstance(seconds, bool):
            raise ControlError(f"invalid quantum {seconds!r}: use a number of seconds, or {_AUTO}")
        if not 0.1 <= seconds <= _LONGEST_QUANTUM_S:
            raise ControlError(f"invalid quantum {seconds}: use 0.1 to {_LONGEST_QUANTUM_S} seconds")
        self._server.set_quantum(float(seconds))
        return f"a turn lasts {seconds:g} s from now on"

    def _set_limit(self, request: ControlCommand) -> str:
        """Limits a client, or all present and later clients of a pod."""
        target = _text(request, "target")
        if request.get("clear") is True:
            return self._clear_limit(target)
        memory, core = (None if request.get(name) is None else _text(request, name) for name in ("memory", "core"))
        if memory is None and core is None:
            raise ControlError("nothing to set: give --memory, --core or both")
        if _is_client_id(target) and not self._server.count_matching(target):
            raise ControlError(f"no client {target}: see 'gpucommons scheduler status'")
        try:
            quota = QuotaValues(
                None if memory is None else parse_memory(memory), None if core is None else parse_core(core)
            )
        except ValueError as error:
            raise ControlError(str(error)) from None
        reached = self._server.set_limit(target, quota)
        return f"{target} is limited; {reached} connected client{'' if reached == 1 else 's'} updated"

    def _set_class(self, request: ControlCommand) -> str:
        """Gives programs a class, for as long as the agent runs; batch ends that."""
        target, text = _text(request, "target"), _text(request, "class")
        if text not in SharingClass.__members__.values():
            raise ControlError(f"unknown class {text!r}: use {', '.join(SharingClass)}")
        if _is_client_id(target) and not self._server.count_matching(target):
            raise ControlError(f"no client {target}: see 'gpucommons scheduler status'")
        reached = self._server.set_limit(target, QuotaValues(sharing_class=SharingClass(text)))
        return f"{target} is of class {text}; {reached} client{'' if reached == 1 else 's'} updated"

    def _clear_limit(self, target: str) -> str:
        reached = self._server.clear_limit(target)
        if reached is None:
            raise ControlError(f"nothing to clear: no limit was set for {target} with set-limit")
        return f"the limit of {target} is cleared; {reached} connected client{'' if reached == 1 else 's'} updated"


def _refusal(error: str) -> bytes:
    return json.dumps({"ok": False, "error": error}).encode() + b"\n"


def _is_client_id(target: str) -> bool:
    return len(target) == 16 and all(digit in "0123456789abcdef" for digit in target)


def _text(request: ControlCommand, name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str) or not value:
        raise ControlError(f"{name} is missing: expected a string")
    return value
