"""The identity of each GPU process, read once and kept until the process ends.

It reads only through a ProcessReader. Which pids of the driver procfs can show at all is decided here as well: in a
container the driver reports pids of another namespace.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from gpucommons.model.ownership import Reason
from gpucommons.model.process_identity import (
    CommandLineReading,
    PidFacts,
    PidScope,
    PidView,
    ProcessDetails,
    ProcessIdentity,
    ProcessKey,
)
from gpucommons.owners.cgroup import identify

# The two lines of /proc/PID/status that attribution needs. No text raises an exception.

# The kernel escapes newlines in the name, on the first line: a name cannot forge another line.
_UID = re.compile(r"^Uid:\s+([0-9]{1,10})\b", re.MULTILINE | re.ASCII)
_NSPID = re.compile(r"^NSpid:((?:[ \t]+[0-9]{1,10})+)", re.MULTILINE | re.ASCII)


class ProcessStatus(NamedTuple):
    """The real uid, and the pids from the namespace of this procfs down to that of the process."""

    uid: int | None
    namespaced_pids: tuple[int, ...]


def parse_status(text: str) -> ProcessStatus:
    uid, pids = _UID.search(text), _NSPID.search(text)
    return ProcessStatus(
        int(uid[1]) if uid else None,
        tuple(map(int, pids[1].split())) if pids else (),
    )


# Decides whether the pids that the driver reports can be found in procfs, and explains why not.

# The kernel gives the first pid namespace this number on every machine.
_HOST_NAMESPACE = "pid:[4026531836]"
# pid 2 of the host is this kernel thread; no other pid namespace has kernel threads.
_SECOND_OF_HOST = "kthreadd"
_REMEDY = "run the agent in the host's pid namespace (hostPID: true, docker run --pid=host)"


def pid_view(facts: PidFacts) -> PidView:
    where = facts.procfs
    if facts.own_status is None:
        return PidView(PidScope.NONE, f"{where} shows no processes: mount the host's /proc and set --path.procfs")
    if not _is_hosts(facts):
        return PidView(
            PidScope.NAMESPACE,
            f"{where} shows only the processes of the agent's container; other processes that use the GPU are hidden: "
            f"{_REMEDY}",
        )
    if not _is_own_namespace_shown(facts):
        return PidView(
            PidScope.NAMESPACE,
            f"{where} shows the host's processes, but the agent is in another pid namespace, where the driver does not "
            f"list them: {_REMEDY}",
        )
    if not facts.first_is_there:
        return PidView(
            PidScope.OWN_USER,
            f"{where} hides the processes of other users (hidepid): run the agent as root, or as a member of the "
            "group in its gid= option",
        )
    return PidView(PidScope.HOST, f"{where} shows every process of the host")


def _is_hosts(facts: PidFacts) -> bool:
    if facts.first_namespace == _HOST_NAMESPACE or facts.second_name == _SECOND_OF_HOST:
        return True
    return _is_own_namespace_shown(facts) and facts.own_namespace == _HOST_NAMESPACE


def _is_own_namespace_shown(facts: PidFacts) -> bool:
    """Whether this procfs shows the agent's pid namespace: then the agent has exactly one pid in it."""
    own_pids = parse_status(facts.own_status or "").namespaced_pids
    return len(own_pids) == 1 if own_pids else facts.own_namespace == _HOST_NAMESPACE


# The identity of each GPU process, read once and kept until the process ends. Reads only through a ProcessReader.
#
# Used by one thread at a time. It publishes an immutable table that any thread may hold.

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


class IdentityTable(NamedTuple):
    """The identities of one pass and of the pass before it, whose GPU reading may still be in use.

    `by_pid` overrides the keys: the identity, or the reason why there is none, of a pid without a key or with the
    key of a process that has ended.
    """

    by_key: Mapping[ProcessKey, ProcessIdentity] = {}
    by_pid: Mapping[int, ProcessIdentity | Reason] = {}
    view: PidView = NOT_READ_YET

    def find(self, pid: int, key: ProcessKey | None) -> ProcessIdentity | Reason:
        identity = self.by_pid.get(pid)
        if identity is None and key is not None:
            identity = self.by_key.get(key)
        return identity or Reason.PROCESS_GONE


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
            previous = before.get(pid)
            alive = previous is not None and self._reader.is_alive(previous.key)
            current = previous if previous and alive else self._identify(pid, begun_ticks)
            if isinstance(current, Reason):
                by_pid[pid] = current
                continue
            now[pid] = current
            if current.key != key:
                by_pid[pid] = current
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


# The command line of each GPU process, read once, and again after it executed another program. Pure bookkeeping.
#
# The kernel makes the reader of a command line wait for the memory map of that process, which a process stuck in the
# driver may hold. So this is a source of its own, on its own thread: the GPU readings never wait for it.


class ReadsCommands(Protocol):
    def name(self, pid: int) -> str | None:
        """The kernel's name of the process that has this pid now; None where there is none."""

    def command_line(self, key: ProcessKey) -> tuple[str, ...]:
        """Empty where that process has ended, or has none."""


class _Known(NamedTuple):
    name: str
    command_line: tuple[str, ...]


class CommandLines:
    """Used by one thread."""

    def __init__(self, reader: ReadsCommands, identities: ProcessIdentities) -> None:
        self._reader = reader
        self._identities = identities
        self._known: dict[ProcessKey, _Known] = {}
        self._reading = CommandLineReading()

    def read_at_once(self) -> CommandLineReading | None:
        """The reading while there are no processes, else None. Call it from any thread."""
        return None if self._known or self._identities.table.by_key else self._reading

    def read(self) -> CommandLineReading:
        """The same object for as long as nothing has changed."""
        before = self._known
        self._known = {key: self._look(key, before.get(key)) for key in self._identities.table.by_key}
        if self._known != before:
            lines = {key: process.command_line for key, process in self._known.items() if process.command_line}
            self._reading = CommandLineReading(MappingProxyType(lines))
        return self._reading

    def _look(self, key: ProcessKey, last: _Known | None) -> _Known:
        """Executing another program changes the name. In the middle of it, the command line is empty for a moment."""
        name = self._reader.name(key.pid)
        if last is not None and last.command_line and (name is None or name == last.name):
            return last
        line = self._reader.command_line(key)
        return last if last is not None and not line else _Known(name or "", line)
