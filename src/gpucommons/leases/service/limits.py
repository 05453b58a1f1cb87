"""Leases that reached their time limit (`run --for`) while their clients did not end the command.

A client ends its command at the limit by itself: SIGTERM, and SIGKILL after 30 s. One that is stopped, or ignores the
limit, does not. So the service ends the lease `LIMIT_GRACE_S` after its limit, and `leases.at_limit` says what is done
about the programs that still use its slots. `message`: they are shown. `pause`: they do not keep others from the slots,
and are paused while another user has a lease on them. `signal`: they get SIGTERM, and SIGKILL after 30 s.

A program belongs to such a lease if it descends from the client; and, where the lease was exclusive, if it runs for the
lease's user at the first reading after the end. A program that the user starts there later is a plain one.
"""

import signal
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from gpucommons.model.leases import Lease
from gpucommons.model.process_identity import ProcessKey

LIMIT_GRACE_S: Final = 60.0
_KILL_AFTER_S: Final = 30.0
_MAX_OVERDUE: Final = 256


class GpuProgram(NamedTuple):
    """A process on a slot. `names` are the user and the owner that it is attributed to."""

    slot_uuid: str
    pid: int
    key: ProcessKey | None
    uid: int | None
    names: frozenset[str]
    process_name: str


class LeaseHost(NamedTuple):
    """What the service asks the machine: Unix time, a clock that is never set, and processes.

    `start_ticks` is None for a process that does not exist. `request_report` asks for the report of a lease that was
    billed in full: `deliver_report` gets it. `send_signal` returns why it could not be sent; empty if it was.
    """

    wall: Callable[[], float]
    monotonic: Callable[[], float]
    start_ticks: Callable[[int], int | None]
    is_descendant: Callable[[int, int], bool]
    request_report: Callable[[str], None]
    send_signal: Callable[[ProcessKey, signal.Signals], str]


@dataclass(frozen=True, slots=True)
class OverdueLease:
    """`client` has pid 0 where its process is not visible. `programs` are those that still use the slots.

    `looked`: the slots were read since the lease was ended.
    """

    lease: Lease
    client: ProcessKey
    ended_s: float
    programs: frozenset[ProcessKey] = frozenset()
    looked: bool = False


def is_over_limit(lease: Lease, now_s: float) -> bool:
    limit_s = lease.request.limit_s
    return limit_s is not None and now_s - lease.since_s >= limit_s + LIMIT_GRACE_S


class LeaseLimits:
    """`action` is message, pause or signal."""

    def __init__(self, action: str, host: LeaseHost, overdue: Iterable[OverdueLease] = ()) -> None:
        self.action = action
        self._host = host
        self._overdue = {overdue.lease.request.id: overdue for overdue in overdue}
        # When each program got SIGTERM, by the clock that is never set; and why it could not be sent.
        self._asked_s: dict[ProcessKey, float] = {}
        self._refusals: dict[ProcessKey, str] = {}

    @property
    def overdue(self) -> tuple[OverdueLease, ...]:
        return tuple(self._overdue.values())

    def lease_of(self, program: ProcessKey | None) -> Lease | None:
        """The overdue lease that a program belongs to."""
        return next((overdue.lease for overdue in self._overdue.values() if program in overdue.programs), None)

    def refusal(self, program: ProcessKey | None) -> str:
        """Why a program could not be ended; empty where that was not to be done, or can be."""
        return "" if program is None else self._refusals.get(program, "")

    def add(self, lease: Lease, client: ProcessKey, now_s: float) -> None:
        self._overdue[lease.request.id] = OverdueLease(lease, client, now_s)
        while len(self._overdue) > _MAX_OVERDUE:
            del self._overdue[next(iter(self._overdue))]

    def shift(self, step_s: float) -> None:
        """The clock was set."""
        self._overdue = {
            id: replace(overdue, ended_s=overdue.ended_s + step_s) for id, overdue in self._overdue.items()
        }

    def update(self, programs: Collection[GpuProgram], leases: Mapping[str, Lease], read_s: float) -> bool:
        """Each snapshot. Returns whether an overdue lease has changed."""
        before = self._overdue
        # A user that has another lease on a slot may use it.
        rights = {(uuid, lease.request.uid) for lease in leases.values() for uuid in lease.slots}
        self._overdue = {
            id: current
            for id, overdue in before.items()
            if (current := self._current(overdue, programs, rights, read_s)) is not None
        }
        own = frozenset().union(*(overdue.programs for overdue in self._overdue.values()))
        self._asked_s = {key: at_s for key, at_s in self._asked_s.items() if key in own}
        self._refusals = {key: why for key, why in self._refusals.items() if key in own}
        if self.action == "signal":
            for key in own:
                self._end(key)
        return self._overdue != before

    def _current(
        self, overdue: OverdueLease, programs: Collection[GpuProgram], rights: set[tuple[str, int]], read_s: float
    ) -> OverdueLease | None:
        """None if none of its programs is left, and none can come."""
        if read_s < overdue.ended_s:
            return overdue
        request, client = overdue.lease.request, overdue.client
        is_alive = bool(client.pid) and self._host.start_ticks(client.pid) == client.start_ticks

        def belongs(program: GpuProgram) -> bool:
            if program.slot_uuid not in overdue.lease.slots or (program.slot_uuid, request.uid) in rights:
                return False
            if program.key in overdue.programs or (is_alive and self._host.is_descendant(program.pid, client.pid)):
                return True
            is_own = program.uid == request.uid or request.user in program.names
            return is_own and not request.share and not overdue.looked

        left = frozenset(program.key for program in programs if program.key is not None and belongs(program))
        return replace(overdue, programs=left, looked=True) if left or is_alive else None

    def _end(self, program: ProcessKey) -> None:
        now_s = self._host.monotonic()
        asked_s = self._asked_s.setdefault(program, now_s)
        if asked_s == now_s:
            self._refusals[program] = self._host.send_signal(program, signal.SIGTERM)
            # One that is stopped gets SIGTERM only when it continues.
            self._host.send_signal(program, signal.SIGCONT)
        elif now_s - asked_s >= _KILL_AFTER_S:
            self._refusals[program] = self._host.send_signal(program, signal.SIGKILL)
