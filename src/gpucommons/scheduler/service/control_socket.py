"""The operator's door: one JSON line in, one JSON line out, on a Unix socket beside the clients' one.

Everybody may ask (status, explain); orders are obeyed only from those whom the server obeys. Decides nothing:
it hands orders to the server and shows what the server shows.
"""

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from gpucommons.base.unix_listener import UnixListener, group_id, listen, peer_credentials, peer_groups
from gpucommons.model.sharing import SharingReading
from gpucommons.scheduler.policy.quotas import QuotaValues, parse_core, parse_memory
from gpucommons.scheduler.service.explain import describe, explain_client
from gpucommons.scheduler.service.reading import client_name
from gpucommons.scheduler.service.server import SchedulerServer

_LONGEST_QUANTUM_S = 86_400


class ControlError(Exception):
    """An order that cannot be followed: one line that says what to do."""


class SchedulerControl:
    def __init__(self, server: SchedulerServer) -> None:
        self._server = server

    def on(self) -> None:
        self._server.switch(True)

    def off(self) -> None:
        """Every client runs freely from now on, unscheduled and unbilled."""
        self._server.switch(False)

    def set_quantum(self, seconds: float) -> None:
        """How long a turn lasts while others wait for its room, on every GPU and whatever they wait for."""
        if not 0.1 <= seconds <= _LONGEST_QUANTUM_S:
            raise ControlError(f"a quantum of {seconds} s cannot be: use 0.1 to {_LONGEST_QUANTUM_S}")
        self._server.set_quantum(seconds)

    def set_limit(self, target: str, *, memory: str | None = None, core: str | None = None) -> list[str]:
        """Limits a client, or all present and later clients of a pod. Returns the ids of those present."""
        if memory is None and core is None:
            raise ControlError("nothing to set: give --memory, --core or both")
        clients = self._server.matching(target)
        if not clients and _is_client_id(target):
            raise ControlError(f"no client {target}: see 'gpucommons scheduler status'")
        try:
            quota = QuotaValues(
                None if memory is None else parse_memory(memory), None if core is None else parse_core(core)
            )
        except ValueError as error:
            raise ControlError(str(error)) from None
        self._server.set_limit(target, quota)
        return [client_name(client.id) for client in clients]

    def explain(self, target: str) -> str:
        """In plain words, one paragraph a client, why it waits and about how long."""
        wanted = {client_name(client.id) for client in self._server.matching(target)}
        reading = self._server.read_now()
        found = [explain_client(reading, client) for client in reading.clients if client.client_id in wanted]
        if not found:
            raise ControlError(f"no client or pod {target!r} here: see 'gpucommons scheduler status'")
        return "\n".join(found)

    def status(self) -> SharingReading:
        """The state at this instant; explain.describe puts it in words."""
        return self._server.read_now()


def _is_client_id(target: str) -> bool:
    return len(target) == 16 and all(digit in "0123456789abcdef" for digit in target)


_SOCKET_NAME: Final = "control.sock"
_SOCKET_MODE: Final = 0o666
_MOST_LINE_BYTES: Final = 4096
_PATIENCE_S: Final = 5.0

log = logging.getLogger(__name__)

Request = Mapping[str, object]


def control_path(scheduler_socket: str) -> str:
    return str(Path(scheduler_socket).parent / _SOCKET_NAME)


class ControlSocket:
    def __init__(self, server: SchedulerServer) -> None:
        self._server = server
        self._control = SchedulerControl(server)
        self._path = control_path(server.settings.socket_path)
        self._socket: UnixListener | None = None
        self._listener: asyncio.Server | None = None
        self._orders: Mapping[str, Callable[[Request], str]] = {
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
            async with asyncio.timeout(_PATIENCE_S):
                line = await reader.readline()
                answer = self._answer(line, self._may_order(writer))
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (TimeoutError, ValueError, OSError):
            log.debug("a peer of the control socket was let go")
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _may_order(self, writer: asyncio.StreamWriter) -> bool:
        peer = writer.get_extra_info("socket")
        _, uid, gid = peer_credentials(peer)
        admins = group_id(self._server.settings.admin_group)
        return uid in (0, os.geteuid()) or (admins is not None and (gid == admins or admins in peer_groups(peer)))

    def _answer(self, line: bytes, may_order: bool) -> dict[str, object]:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise ControlError("wants one JSON object a line")
            return {"ok": True, "answer": self._carry_out(request, may_order)}
        except ControlError as error:
            return {"ok": False, "error": str(error)}
        except ValueError:
            return {"ok": False, "error": "not JSON"}

    def _carry_out(self, request: Request, may_order: bool) -> object:
        command = request.get("command")
        if command == "status":
            return as_plain(self._control.status())
        if command == "describe":
            return "\n".join(describe(self._control.status()))
        if command == "explain":
            return self._control.explain(_text(request, "target"))
        order = self._orders.get(command) if isinstance(command, str) else None
        if order is None:
            raise ControlError(f"no command {command!r}")
        if not may_order:
            self._server.policy.refusals["control_not_admin"] += 1
            raise ControlError("only root, the agent's own user, or a member of scheduler.admin_group may order that")
        answer = order(request)
        log.info("by order: %s", answer)
        return answer

    def _on(self, _: Request) -> str:
        self._control.on()
        return "the scheduler is on: clients take turns"

    def _off(self, _: Request) -> str:
        self._control.off()
        return "the scheduler is off: every client runs free"

    def _set_quantum(self, request: Request) -> str:
        seconds = request.get("seconds")
        if not isinstance(seconds, int | float) or isinstance(seconds, bool):
            raise ControlError(f"a quantum is a number of seconds, not {seconds!r}")
        self._control.set_quantum(float(seconds))
        return f"a turn lasts {seconds:g} s from now on"

    def _set_limit(self, request: Request) -> str:
        target = _text(request, "target")
        memory, core = (None if request.get(name) is None else _text(request, name) for name in ("memory", "core"))
        reached = len(self._control.set_limit(target, memory=memory, core=core))
        return f"{target} is limited; {reached} connected client{'' if reached == 1 else 's'} told"


def _text(request: Request, name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str) or not value:
        raise ControlError(f"{name} is missing")
    return value


def as_plain(reading: SharingReading) -> dict[str, object]:
    """The reading as JSON knows it: named tuples and dataclasses by field name."""
    return {
        "on": reading.on,
        "mode": reading.mode,
        "fixed_quantum_s": reading.fixed_quantum_s,
        "socket_path": reading.socket_path,
        "gpus": [
            {
                "uuid": gpu.uuid,
                "index": gpu.index,
                "present": gpu.present,
                "running": list(gpu.running),
                "request_queue": list(gpu.request_queue),
                "wait_queue": list(gpu.wait_queue),
                "running_memory_bytes": gpu.running_memory_bytes,
                "safe_limit_bytes": gpu.safe_limit_bytes,
                "total_memory_bytes": gpu.total_memory_bytes,
                "total_memory_measured": gpu.total_memory_measured,
                "overloaded": gpu.overloaded,
                "way": gpu.way,
                "way_reason": gpu.way_reason,
                "quantum_left_s": gpu.quantum_left_s,
            }
            for gpu in reading.gpus
        ],
        "clients": [
            {**client._asdict(), "wait": None if client.wait is None else client.wait._asdict()}
            for client in reading.clients
        ],
    }
