"""What an operator may do to a running scheduler, for the command line and the API. Who may, is theirs to check."""

from gpucommons.model.sharing import SharingReading
from gpucommons.scheduler.explain import explain_client
from gpucommons.scheduler.quotas import Quota, parse_core, parse_memory
from gpucommons.scheduler.reading import client_name
from gpucommons.scheduler.server import SchedulerServer

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
            quota = Quota(None if memory is None else parse_memory(memory), None if core is None else parse_core(core))
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
