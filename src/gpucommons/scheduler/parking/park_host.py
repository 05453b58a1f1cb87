"""What parking asks the machine about its memory and about processes. A simulation answers by itself."""

from collections.abc import Iterable
from typing import Protocol

from gpucommons.model.process_identity import ProcessKey
from gpucommons.parking import host
from gpucommons.parking.values import HostMemory
from gpucommons.pauser import identity
from gpucommons.pauser.stopped import why_stopped


class ParkHost(Protocol):
    """Each as the function of that name in parking/host.py, pauser/identity.py and pauser/stopped.py."""

    def host_memory(self) -> HostMemory | None: ...
    def container_room_bytes(self, pids: Iterable[int]) -> int | None: ...
    def cpu_seconds(self, pids: Iterable[int]) -> float | None: ...
    def waits_in(self, pids: Iterable[int]) -> tuple[int, ...] | None: ...
    def resident_bytes(self, pids: Iterable[int]) -> int: ...
    def has_ended(self, process: ProcessKey) -> bool: ...
    def why_stopped(self, pids: Iterable[int]) -> str: ...


class ThisHost:
    """The machine that the agent runs on."""

    def host_memory(self) -> HostMemory | None:
        return host.host_memory()

    def container_room_bytes(self, pids: Iterable[int]) -> int | None:
        return host.container_room_bytes(pids)

    def cpu_seconds(self, pids: Iterable[int]) -> float | None:
        return host.cpu_seconds(pids)

    def waits_in(self, pids: Iterable[int]) -> tuple[int, ...] | None:
        return host.waits_in(pids)

    def resident_bytes(self, pids: Iterable[int]) -> int:
        return host.resident_bytes(pids)

    def has_ended(self, process: ProcessKey) -> bool:
        return identity.has_ended(process)

    def why_stopped(self, pids: Iterable[int]) -> str:
        return next((why for pid in pids if (why := why_stopped(pid, every_thread=False))), "")


THIS_HOST = ThisHost()
