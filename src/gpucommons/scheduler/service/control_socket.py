"""The control socket: one JSON line in, one JSON line out, in the directory of the client socket.

Every user may read the status; orders are accepted from admins only.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from gpucommons.base.unix_listener import UnixListener, listen
from gpucommons.model.sharing import SharingReading
from gpucommons.scheduler.policy.quotas import QuotaValues, parse_core, parse_memory
from gpucommons.scheduler.service.server import SchedulerServer

_LONGEST_QUANTUM_S: Final = 86_400
_SOCKET_NAME: Final = "control.sock"
_SOCKET_MODE: Final = 0o666
_MOST_LINE_BYTES: Final = 4096
_TIMEOUT_S: Final = 5.0

log = logging.getLogger(__name__)

ControlCommand = Mapping[str, object]
# The JSON document of a reading.
Document = Callable[[SharingReading], object]


class ControlError(Exception):
    """A request that cannot be carried out: one line that says what to do."""


def control_path(scheduler_socket: str) -> str:
    return str(Path(scheduler_socket).parent / _SOCKET_NAME)


class ControlSocket:
    def __init__(self, server: SchedulerServer, document: Document) -> None:
        self._server = server
        self._document = document
        self._path = control_path(server.settings.socket)
        self._socket: UnixListener | None = None
        self._listener: asyncio.Server | None = None
        self._orders: Mapping[str, Callable[[ControlCommand], str]] = {
            "on": self._on,
            "off": self._off,
            "set-quantum": self._set_quantum,
            "set-limit": self._set_limit,
        }

    async def start(self) -> None:
        """Raises ListenError if the socket cannot be served."""
        self._socket = listen(self._path, mode=_SOCKET_MODE)
        self._listener = await asyncio.start_unix_server(self._serve, sock=self._socket, limit=_MOST_LINE_BYTES)

    async def stop(self) -> None:
        if self._socket is not None and self._listener is not None:
            self._socket.remove_file()
            self._listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                line = await reader.readline()
                peer = writer.get_extra_info("socket")
                answer = self._answer(line, lambda: self._server.is_admin(peer))
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (TimeoutError, ValueError, OSError):
            log.debug("control socket: dropped an unresponsive client")
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _answer(self, line: bytes, is_admin: Callable[[], bool]) -> dict[str, object]:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise ControlError("expected a JSON object on one line")
            return {"ok": True, "answer": self._carry_out(request, is_admin)}
        except ControlError as error:
            return {"ok": False, "error": str(error)}
        except ValueError:
            return {"ok": False, "error": "invalid JSON: send one JSON object on one line"}

    def _carry_out(self, request: ControlCommand, is_admin: Callable[[], bool]) -> object:
        command = request.get("command")
        if command == "status":
            return self._document(self._server.read_now())
        order = self._orders.get(command) if isinstance(command, str) else None
        if order is None:
            raise ControlError(f"unknown command {command!r}: use status, {', '.join(self._orders)}")
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
        return "the scheduler is on: clients take turns"

    def _off(self, _: ControlCommand) -> str:
        self._server.switch(False)
        return "the scheduler is off: every client runs, unscheduled and unbilled"

    def _set_quantum(self, request: ControlCommand) -> str:
        """How long a turn lasts while other clients wait for its room, on every GPU and for every reason."""
        seconds = request.get("seconds")
        if not isinstance(seconds, int | float) or isinstance(seconds, bool):
            raise ControlError(f"invalid quantum {seconds!r}: use a number of seconds")
        if not 0.1 <= seconds <= _LONGEST_QUANTUM_S:
            raise ControlError(f"invalid quantum {seconds}: use 0.1 to {_LONGEST_QUANTUM_S} seconds")
        self._server.set_quantum(float(seconds))
        return f"a turn lasts {seconds:g} s from now on"

    def _set_limit(self, request: ControlCommand) -> str:
        """Limits a client, or all present and later clients of a pod."""
        target = _text(request, "target")
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


def _is_client_id(target: str) -> bool:
    return len(target) == 16 and all(digit in "0123456789abcdef" for digit in target)


def _text(request: ControlCommand, name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str) or not value:
        raise ControlError(f"{name} is missing: expected a string")
    return value
