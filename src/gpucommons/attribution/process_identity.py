"""The identity of each GPU process, read once and kept until the process ends. Reads only through a ProcessReader.

Used by one thread at a time. It publishes an immutable table that any thread may hold.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol

from gpucommons.attribution.cgroup import identify
from gpucommons.attribution.process_status import parse_status
from gpucommons.model.ownership import Reason
from gpucommons.model.process_identity import PidScope, PidView, ProcessDetails, ProcessIdentity, ProcessKey

NOT_READ_YET = PidView(PidScope.NONE, "no process was read yet")


class ProcessReader(Protocol):
    """Reads each process once; later only whether it is alive."""

    def read(self, pid: int, look_for_gpu: bool = False) -> ProcessDetails | Reason: ...

    def is_alive(self, key: ProcessKey) -> bool: ...

    def keep(self, keys: Collection[ProcessKey]) -> None: ...


class SeenProcess(NamedTuple):
    """A process as the driver lists it. The key is None, or outdated, if procfs was not read just now."""

    pid: int
    key: ProcessKey | None


@dataclass(frozen=True, slots=True)
class IdentityTable:
    """The identities of one pass and of the pass before it, whose GPU reading may still be in use.

    `by_pid` overrides the keys: the identity, or the reason why there is none, of a pid without a key or with the
    key of a process that has ended.
    """

    by_key: Mapping[ProcessKey, ProcessIdentity] = field(default_factory=dict)
    by_pid: Mapping[int, ProcessIdentity | Reason] = field(default_factory=dict)
    view: PidView = NOT_READ_YET

    def find(self, pid: int, key: ProcessKey | None) -> ProcessIdentity | Reason:
        found = self.by_pid.get(pid)
        if found is None and key is not None:
            found = self.by_key.get(key)
        return found or Reason.PROCESS_GONE


class ProcessIdentities:
    def __init__(self, reader: ProcessReader, view: PidView) -> None:
        self._reader = reader
        self._view = view
        self._current: dict[int, ProcessIdentity] = {}
        self.table = IdentityTable(view=view)

    def see(self, processes: Iterable[SeenProcess], begun_ticks: int) -> IdentityTable:
        """Identify the processes of one GPU reading that started at this time (ticks since boot).

        A known process that is alive is not read again.
        """
        before, now = self._current, dict[int, ProcessIdentity]()
        by_pid: dict[int, ProcessIdentity | Reason] = {}
        for pid, key in processes:
            if pid in now or pid in by_pid:
                continue
            known = before.get(pid)
            alive = known is not None and self._reader.is_alive(known.key)
            found = known if known and alive else self._identify(pid, begun_ticks)
            if isinstance(found, Reason):
                by_pid[pid] = found
                continue
            now[pid] = found
            if found.key != key:
                by_pid[pid] = found
        self._current = now
        self._reader.keep({identity.key for identity in now.values()})
        by_key = {identity.key: identity for identity in (*before.values(), *now.values())}
        if by_key.keys() != self.table.by_key.keys() or by_pid != self.table.by_pid:
            self.table = IdentityTable(MappingProxyType(by_key), MappingProxyType(by_pid), self._view)
        return self.table

    def _identify(self, pid: int, begun_ticks: int) -> ProcessIdentity | Reason:
        confined = self._view.scope is PidScope.NAMESPACE
        details = self._reader.read(pid, confined)
        if isinstance(details, Reason):
            return self._unseen_reason(details)
        if confined and not details.holds_gpu:
            # Older drivers report the host's pids in a container: another process here may have that number.
            return Reason.PID_NAMESPACE
        if details.key.start_ticks >= begun_ticks:
            # It started after the reading: the process that the driver listed under this pid has ended.
            return Reason.PROCESS_GONE
        return identity_of(details)

    def _unseen_reason(self, reason: Reason) -> Reason:
        if reason is not Reason.PROCESS_GONE:
            return reason
        if self._view.scope is PidScope.NAMESPACE:
            return Reason.PID_NAMESPACE
        return reason if self._view.scope is PidScope.HOST else Reason.PROCESS_UNREADABLE


def identity_of(details: ProcessDetails) -> ProcessIdentity:
    status = parse_status(details.status)
    cgroup = identify(details.cgroup)
    namespace = details.user_namespace
    return ProcessIdentity(
        details.key,
        details.name,
        # Root makes namespaces for others: there the uid counts.
        namespace.owner_uid if namespace and namespace.owner_uid else status.uid,
        status.namespaced_pids,
        cgroup,
        details.session_id,
        details.ancestors,
        namespace,
    )
