"""Who each GPU process is, looked up once and kept until it is gone. Reads only through what it is given.

Belongs to one thread at a time; what it publishes is an immutable table that any thread may hold.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol

from gpucommons.attribution.cgroup import identify
from gpucommons.attribution.process_status import parse_status
from gpucommons.model.process_identity import PidScope, PidView, ProcessDetails, ProcessIdentity
from gpucommons.model.processes import ProcessKey
from gpucommons.model.reasons import Reason

NOT_LOOKED_YET = PidView(PidScope.NONE, "no process was looked at yet")


class ReadDetails(Protocol):
    def __call__(self, pid: int, look_for_gpu: bool = False) -> ProcessDetails | Reason: ...


class SeenProcess(NamedTuple):
    """A process as the driver lists it; the key is None where its start time is not known."""

    pid: int
    key: ProcessKey | None


@dataclass(frozen=True, slots=True)
class IdentityTable:
    """The identities of one pass and of the pass before it, whose GPU reading may still be in use.

    `by_pid` holds what was found, or why nothing was, for those whom the pass could not tell by their key.
    """

    by_key: Mapping[ProcessKey, ProcessIdentity] = field(default_factory=dict)
    by_pid: Mapping[int, ProcessIdentity | Reason] = field(default_factory=dict)
    view: PidView = NOT_LOOKED_YET

    def find(self, process: SeenProcess) -> ProcessIdentity | Reason:
        found = self.by_key.get(process.key) if process.key else None
        return found or self.by_pid.get(process.pid) or Reason.PROCESS_GONE


class ProcessIdentities:
    def __init__(self, read_details: ReadDetails, view: PidView) -> None:
        self._read_details = read_details
        self._view = view
        self._current: dict[ProcessKey, ProcessIdentity] = {}
        self.table = IdentityTable(view=view)

    def see(self, processes: Iterable[SeenProcess], begun_ticks: int | None = None) -> IdentityTable:
        """Look at the processes of one GPU reading, which was begun at this time (ticks since boot).

        A known key costs no read at all. Who started after the reading began is not whom the driver
        listed: its pid was used again in between.
        """
        before, now = self._current, dict[ProcessKey, ProcessIdentity]()
        by_pid: dict[int, ProcessIdentity | Reason] = {}
        for process in dict.fromkeys(processes):
            known = before.get(process.key) if process.key else None
            found = known or self._look_at(process, begun_ticks)
            if isinstance(found, ProcessIdentity):
                now[found.key] = found
            if process.key is None or isinstance(found, Reason):
                by_pid[process.pid] = found
        self._current = now
        by_key = before | now
        if by_key.keys() != self.table.by_key.keys() or by_pid != self.table.by_pid:
            self.table = IdentityTable(MappingProxyType(by_key), MappingProxyType(by_pid), self._view)
        return self.table

    def _look_at(self, process: SeenProcess, begun_ticks: int | None) -> ProcessIdentity | Reason:
        confined = self._view.scope is PidScope.NAMESPACE
        details = self._read_details(process.pid, confined)
        if isinstance(details, Reason):
            return self._why_unseen(details)
        if confined and not details.holds_gpu:
            # Another process of our namespace may bear the number that the driver means for one of the host.
            return Reason.PID_NAMESPACE
        reused = process.key is not None and details.key != process.key
        too_young = begun_ticks is not None and details.key.start_ticks >= begun_ticks
        if reused or too_young:
            return Reason.PROCESS_GONE
        return identity_of(details)

    def _why_unseen(self, reason: Reason) -> Reason:
        if reason is not Reason.PROCESS_GONE:
            return reason
        if self._view.scope is PidScope.NAMESPACE:
            return Reason.PID_NAMESPACE
        return reason if self._view.scope is PidScope.HOST else Reason.PROCESS_UNREADABLE


def identity_of(details: ProcessDetails) -> ProcessIdentity:
    status = parse_status(details.status)
    return ProcessIdentity(
        details.key, details.name, status.uid, status.namespaced_pids, identify(details.cgroup)
    )
