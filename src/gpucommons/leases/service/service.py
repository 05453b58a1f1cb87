"""The lease service: carries out the requests of clients on the queue, keeps the record, and sends each client what
concerns it.

Runs on one thread. Its input is calls and, with each snapshot, `LeaseFacts`; its output is `reading` and the lines that
it sends.
"""

import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from gpucommons.config.accounts import LeaseQuotaSettings, LeasesSettings
from gpucommons.leases.policy.plan import blockers_of
from gpucommons.leases.policy.queue import LeaseQueue
from gpucommons.leases.policy.values import (
    LeasableSlot,
    LeaseBusy,
    LeaseRefused,
    LeaseUnknown,
    SlotUse,
    UserFacts,
)
from gpucommons.leases.protocol import Line, ReserveRequest, ResumeRequest, RunRequest
from gpucommons.leases.service.limits import GpuProgram, LeaseHost, LeaseLimits, is_over_limit
from gpucommons.leases.service.record import KnownClient, LeaseRecord, hash_token
from gpucommons.model.allocations import SlotStatus
from gpucommons.model.leases import (
    Lease,
    LeaseCounters,
    LeaseRequest,
    LeasesReading,
    LeaseWait,
    MpsReading,
    Reservation,
    SlotBlocker,
    Trespasser,
    WaitCause,
)
from gpucommons.model.process_identity import ProcessKey


@dataclass(frozen=True, slots=True)
class LeaseFacts:
    """`slots` is None while the driver does not answer. `read_s` is when the slots began to be read.

    `off_reason` is why no lease is given; empty where leases are given. `unbilled` are the leases in the snapshot: all
    others are billed in full. `rooms_s` is when requests are expected to have the room that parking makes for them.
    `statuses` are the states and holders of the slots, by UUID.
    """

    slots: tuple[LeasableSlot, ...] | None
    read_s: float = field(compare=False)
    users: UserFacts = field(default_factory=UserFacts)
    programs: tuple[GpuProgram, ...] = ()
    off_reason: str = ""
    unbilled: frozenset[str] = frozenset()
    rooms_s: Mapping[str, float] = field(default_factory=dict)
    statuses: Mapping[str, SlotStatus] = field(default_factory=dict)


_NO_SHOWS_KEPT: Final = 16
# A step of the wall clock that counts as setting it.
_STEP_S: Final = 2.0
MPS_OFF: Final = "MPS is off on this node (leases.mps)"

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class LeaseClient:
    """A connection that has a lease or waits for one. `send` does not block."""

    uid: int
    user: str
    pid: int
    start_ticks: int
    sees_names: bool
    send: Callable[[Line], None]
    updates: bool = False
    shown: tuple[object, ...] | None = None


class LeaseEnforcement(NamedTuple):
    """What pauses trespassers. `report` gets those to pause, often; `marked` adds whether one is paused.

    `overdue_only`: only programs of a lease that is over its time limit are paused.
    """

    report: Callable[[Sequence[Trespasser]], None]
    marked: Callable[[Trespasser], Trespasser]
    overdue_only: bool = False


class MpsService(Protocol):
    """MPS for leases, see mps/supervisor.py."""

    @property
    def mode(self) -> str: ...
    def obstacle(self, uid: int) -> str: ...
    def serve(self, leases: Iterable[Lease]) -> None: ...
    def failure(self, lease: Lease) -> str: ...
    def terms(self, lease: Lease) -> Line | None: ...
    def reading(self) -> MpsReading: ...


class LeaseService:
    def __init__(
        self,
        settings: LeasesSettings,
        quotas: Iterable[LeaseQuotaSettings],
        record: LeaseRecord,
        host: LeaseHost,
        scenario: str | None = None,
        enforcement: LeaseEnforcement | None = None,
        mps: MpsService | None = None,
    ) -> None:
        """Without `mps`, commands that share a GPU run without MPS."""
        self._record = record
        self._host = host
        self._scenario = scenario
        self._enforcement = enforcement
        self._mps = mps
        # Leases under MPS whose clients wait for the daemon, and whether the command may run already.
        self._unserved: dict[str, bool] = {}
        recorded, clients, overdue = record.read()
        self._queue = LeaseQueue(settings, quotas, recorded, host.wall())
        self._known = dict(clients)
        self._limits = LeaseLimits(settings.at_limit, host, overdue)
        self._clients: dict[str, LeaseClient] = {}
        # Clients whose lease has ended, and who wait for what was billed to it.
        self._reports: dict[str, LeaseClient] = {}
        self._requested: set[str] = set()
        # Clients whose lease was cancelled, while their command ends.
        self._cancelled: dict[str, LeaseClient] = {}
        self._offset_s = host.wall() - host.monotonic()
        self._off_reason = "the agent has not read the GPUs yet; try again in a moment"
        self._counters = LeaseCounters()
        self._no_shows: deque[Reservation] = deque(maxlen=_NO_SHOWS_KEPT)
        self._trespassers: tuple[Trespasser, ...] = ()
        self._rooms_s: Mapping[str, float] = {}
        self._statuses: Mapping[str, SlotStatus] = {}
        self._is_dirty = False
        self.reading = LeasesReading()
        self._drop_dead()
        self._publish()

    @property
    def has_overdue(self) -> bool:
        """Whether programs of a lease that is over its time limit may be left. Read on any thread."""
        return bool(self._limits.overdue)

    @property
    def has_requests(self) -> bool:
        """Whether a user has a lease, waits for one, or has reserved one. Read on any thread."""
        reading = self.reading
        return bool(reading.leases or reading.waiting or reading.reservations or reading.clients or self.has_overdue)

    def open(self, client: LeaseClient, request: RunRequest) -> str:
        """The id of the lease or request. Raises LeaseRefused."""
        try:
            if self._off_reason:
                raise LeaseRefused(self._off_reason)
            mps = self._mps_of(client, request)
            waiting = LeaseRequest(
                client.uid,
                client.user,
                self._host.wall(),
                request.gpus,
                request.memory_bytes,
                request.share,
                request.limit_s,
                request.name,
                mps,
                request.sm_percent,
                sharing_class=request.sharing_class,
                model=request.model,
                slot=request.slot,
                whole=request.whole,
                program=request.program,
            )
            id = self._queue.add(waiting).id
        except LeaseRefused:
            self._counters = self._counters._replace(refused=self._counters.refused + 1)
            raise
        token = secrets.token_hex(16)
        self._known[id] = KnownClient(hash_token(token), client.pid, client.start_ticks)
        self._clients[id] = client
        self._is_dirty = True
        client.send({"event": "queued", "id": id, "token": token})
        self.settle()
        wait = self._waits().get(id)
        if wait is not None and not request.wait:
            self._end(id, clean=True)
            self._counters = self._counters._replace(refused=self._counters.refused + 1)
            self.settle()
            sentence = _hide_names(wait, client.sees_names).sentence
            raise LeaseBusy(f"no slot is free now: {sentence}; run it without --no-wait to wait")
        return id

    def _mps_of(self, client: LeaseClient, request: RunRequest) -> str:
        """How the command runs under MPS; empty: without. Raises LeaseRefused where a limit cannot be enforced."""
        if request.sm_percent is not None and not request.share:
            raise LeaseRefused(f"--sm {request.sm_percent} needs --share: a GPU of its own is not limited")
        if not request.share:
            return ""
        why = MPS_OFF if self._mps is None else self._mps.obstacle(client.uid)
        if why and request.sm_percent is not None:
            raise LeaseRefused(
                f"--sm {request.sm_percent} needs MPS: {why}; run it without --sm, or ask the administrator"
            )
        return "" if why or self._mps is None else self._mps.mode

    def resume(self, client: LeaseClient, request: ResumeRequest) -> str:
        """Raises LeaseRefused where the lease is over, or is not this client's."""
        lease = self._queue.leases.get(request.id)
        waiting = self._queue.waiting.get(request.id)
        owner = lease.request if lease else waiting
        expected = self._known.get(request.id)
        shown = hash_token(request.token)
        if (
            owner is None
            or expected is None
            or owner.uid != client.uid
            or not secrets.compare_digest(expected.token_hash, shown)
        ):
            raise LeaseUnknown(f"lease {request.id} is not known to the agent: it is over")
        if request.id in self._clients:
            raise LeaseRefused(f"lease {request.id} has a connection")
        self._queue.resume(request.id)
        self._clients[request.id] = client
        if lease is not None:
            self._grant(lease, is_new=False)
        self.settle()
        return request.id

    def finish(self, id: str, report: bool) -> None:
        """The command has ended."""
        client = self._clients.get(id) if id in self._queue.leases else self._cancelled.pop(id, None)
        if client is not None and report:
            self._reports[id] = client
        self._end(id, clean=True)
        self.settle()

    def disconnect(self, id: str) -> None:
        """The connection of a lease or of a waiting request is gone."""
        self._reports.pop(id, None)
        self._cancelled.pop(id, None)
        self._requested.discard(id)
        if id in self._clients:
            self._counters = self._counters._replace(lost=self._counters.lost + 1)
            self._end(id, clean=False)
            self.settle()

    def cancel(self, id: str, uid: int, is_admin: bool, why: str = "") -> str:
        """`why` is a sentence for its user, in place of the one that says who cancelled it. Raises LeaseRefused."""
        lease = self._queue.leases.get(id)
        request = lease.request if lease else self._queue.waiting.get(id)
        if request is None or not (is_admin or request.uid == uid):
            raise LeaseUnknown(f"no lease and no request {id} of yours; see 'gpucommons queue'")
        client = self._clients.get(id)
        sentence = why or ("cancelled by its user" if request.uid == uid else "cancelled by an administrator")
        self._counters = self._counters._replace(cancelled=self._counters.cancelled + 1)
        log.info("leases: %s of %s %s", id, request.user, sentence)
        if client is not None:
            client.send({"event": "cancelled", "sentence": sentence})
            if lease is not None:
                self._cancelled[id] = client
        # The command of a lease runs until its client has ended it: the slots are read before they are given again.
        self._end(id, clean=lease is None)
        self.settle()
        return f"{'lease' if lease else 'request'} {id} of {request.user} is cancelled"

    def reserve(self, uid: int, user: str, request: ReserveRequest) -> Reservation:
        """Raises LeaseRefused."""
        if self._off_reason:
            raise LeaseRefused(self._off_reason)
        until_s = request.from_s + request.for_s
        made = self._queue.reserve(uid, user, request.gpus, request.from_s, until_s, self._host.wall())
        self._write(durably=True)
        self.settle()
        return self._queue.reservations.get(made.id, made)

    def unreserve(self, id: str, uid: int, is_admin: bool) -> str:
        """Raises LeaseRefused."""
        reservation = self._queue.reservations.get(id)
        if reservation is None or not (is_admin or reservation.uid == uid):
            raise LeaseUnknown(f"no reservation {id} of yours; see 'gpucommons reservations'")
        self._queue.unreserve(id)
        self._write(durably=True)
        self.settle()
        return f"reservation {id} of {reservation.user} is removed"

    def update(self, facts: LeaseFacts) -> None:
        """Each snapshot."""
        self._set_off_reason(facts.off_reason)
        if facts.slots is None:
            self._queue.forget_slots()
        else:
            self._is_dirty |= self._limits.update(facts.programs, self._queue.leases, facts.read_s)
            slots = (self._without_overdue(slot, facts.programs) for slot in facts.slots)
            self._queue.update_slots(slots, facts.read_s, facts.users)
            self._refuse_impossible()
        self._trespassers = tuple(self._find_trespassers(facts.programs, facts.read_s))
        self._report_trespassers()
        self._rooms_s = facts.rooms_s
        self._statuses = facts.statuses
        for id in self._reports.keys() - facts.unbilled - self._requested:
            self._requested.add(id)
            self._host.request_report(id)
        self.settle()

    def deliver_report(self, id: str, report: Line) -> None:
        client = self._reports.pop(id, None)
        if client is not None:
            client.send({"event": "report", **report})

    def tick(self) -> None:
        """Every second: time passes also while nothing happens."""
        offset_s = self._host.wall() - self._host.monotonic()
        was_set = abs(offset_s - self._offset_s) > _STEP_S
        if was_set:
            self._queue.shift(offset_s - self._offset_s)
            self._limits.shift(offset_s - self._offset_s)
            self._is_dirty = True
        # A clock that is slewed moves a little all the time.
        self._offset_s = offset_s
        absent = any(map(self._queue.is_absent, (*self._queue.leases, *self._queue.waiting)))
        if absent:
            self._drop_dead()
        expired = self._end_over_limit()
        if was_set or absent or expired or self._queue.waiting or self._queue.reservations:
            self.settle()
        if self._is_dirty:
            self._write()

    def close(self) -> None:
        """The agent stops. The leases go on: their clients connect again."""
        self._clients.clear()
        if self._is_dirty:
            self._write()

    def settle(self) -> None:
        settled = self._queue.settle(self._host.wall())
        self._forget_trespassers()
        for id in settled.dropped:
            self._known.pop(id, None)
            self._counters = self._counters._replace(lost=self._counters.lost + 1)
        for reservation in settled.no_shows:
            log.info("leases: reservation %s of %s was not used and is released", reservation.id, reservation.user)
            self._no_shows.append(reservation)
            self._counters = self._counters._replace(no_shows=self._counters.no_shows + 1)
        if settled.grants:
            # Written before a client learns of its lease: a lease that a client knows survives a restart.
            self._write()
        elif settled.dropped or settled.no_shows or settled.aged:
            self._is_dirty = True
        for lease in settled.grants:
            waited_s = max(0.0, lease.since_s - lease.request.arrived_s)
            counters = self._counters
            self._counters = counters._replace(granted=counters.granted + 1, waited_s=counters.waited_s + waited_s)
            self._grant(lease, is_new=True)
        self._serve_mps()
        self._show_waits()
        self._publish()

    def _grant(self, lease: Lease, is_new: bool) -> None:
        """Sends the client its slots. Under MPS once the daemon runs: without it CUDA would run without limits."""
        id = lease.request.id
        if lease.request.mps and self._mps is not None:
            self._unserved[id] = is_new
        elif (client := self._clients.get(id)) is not None:
            client.send(self._grant_line(lease))

    def _serve_mps(self) -> None:
        mps, leases = self._mps, self._queue.leases
        if mps is None:
            return
        mps.serve(leases.values())
        for id, is_new in list(self._unserved.items()):
            client, lease = self._clients.get(id), leases.get(id)
            if client is None or lease is None:
                del self._unserved[id]
            elif (terms := mps.terms(lease)) is not None:
                del self._unserved[id]
                client.send({**self._grant_line(lease), "mps": terms})
            elif is_new and (why := mps.failure(lease)):
                # A command that may run already keeps its lease.
                del self._unserved[id]
                self._refuse(id, f"MPS could not be started for the lease: {why}; ask the administrator")
                mps.serve(leases.values())

    def _end(self, id: str, clean: bool) -> None:
        self._clients.pop(id, None)
        self._known.pop(id, None)
        if self._queue.end(id, self._host.wall(), clean) is not None:
            self._counters = self._counters._replace(ended=self._counters.ended + 1)
        self._is_dirty = True

    def _end_over_limit(self) -> bool:
        """Leases whose clients have not ended them in time."""
        now_s = self._host.wall()
        over = [lease for lease in self._queue.leases.values() if is_over_limit(lease, now_s)]
        for lease in over:
            id, known_client = lease.request.id, self._known.get(lease.request.id)
            log.warning("leases: %s of %s ended: its time limit (--for) is over", id, lease.request.user)
            client = self._clients.get(id)
            if client is not None:
                client.send({"event": "cancelled", "sentence": "ended: its time limit (--for) is over"})
                self._cancelled[id] = client
            self._limits.add(lease, ProcessKey(0, 0) if known_client is None else known_client.process, now_s)
            self._counters = self._counters._replace(expired=self._counters.expired + 1)
            self._end(id, clean=False)
        return bool(over)

    def _without_overdue(self, slot: LeasableSlot, programs: tuple[GpuProgram, ...]) -> LeasableSlot:
        """A slot counts as free if all its programs are to be paused for the next lease."""
        if self._limits.action != "pause" or slot.use is not SlotUse.USED:
            return slot
        here = [program for program in programs if program.slot_uuid == slot.uuid]
        is_free = bool(here) and all(self._limits.lease_of(program.key) is not None for program in here)
        return slot._replace(use=SlotUse.FREE) if is_free else slot

    def _drop_dead(self) -> None:
        """After a restart: a client whose process has ended does not come back."""
        for id in [id for id in (*self._queue.leases, *self._queue.waiting) if self._queue.is_absent(id)]:
            client = self._known.get(id)
            if client is not None and client.pid and self._host.start_ticks(client.pid) != client.start_ticks:
                self._counters = self._counters._replace(lost=self._counters.lost + 1)
                self._end(id, clean=False)

    def _set_off_reason(self, off_reason: str) -> None:
        self._off_reason = off_reason
        if off_reason:
            for id in list(self._queue.waiting):
                self._refuse(id, off_reason)

    def _refuse_impossible(self) -> None:
        """Requests that came before the GPUs were read."""
        for id, reason in self._queue.impossible().items():
            self._refuse(id, reason)

    def _refuse(self, id: str, reason: str) -> None:
        client = self._clients.get(id)
        if client is not None:
            client.send({"event": "error", "error": reason})
        self._counters = self._counters._replace(refused=self._counters.refused + 1)
        self._end(id, clean=True)

    def _write(self, durably: bool = False) -> None:
        self._record.write(self._queue.record(), self._known, self._limits.overdue, durably)
        self._is_dirty = False

    def _grant_line(self, lease: Lease) -> Line:
        slots = self._queue.slots or {}
        return {
            "event": "granted",
            "id": lease.request.id,
            "slots": [
                {"uuid": uuid, "name": slots[uuid].name if uuid in slots else "", "gpus": slots[uuid].gpus}
                if uuid in slots
                else {"uuid": uuid, "name": "", "gpus": 1.0}
                for uuid in lease.slots
            ],
            "waited_s": max(0.0, lease.since_s - lease.request.arrived_s),
            "simulated": self._scenario,
        }

    def _waits(self) -> Mapping[str, LeaseWait]:
        waiting = self._queue.waiting
        return {
            id: wait._replace(
                room_s=self._rooms_s.get(id),
                blockers=self._blockers(waiting[id]) if wait.cause is WaitCause.BUSY and id in waiting else (),
            )
            for id, wait in self._queue.waits.items()
        }

    def _blockers(self, request: LeaseRequest) -> tuple[SlotBlocker, ...]:
        fitting = {slot.uuid: slot.name for slot in self._queue.fitting(request)}
        return blockers_of(fitting, self._statuses, self._queue.leases.values())

    def find_held_beyond(self, reservation: Reservation) -> tuple[SlotBlocker, ...]:
        """Its slots that another user holds, and is not known to leave before it starts."""
        ending = {
            uuid
            for lease in self._queue.leases.values()
            if lease.request.limit_s is not None and lease.since_s + lease.request.limit_s <= reservation.from_s
            for uuid in lease.slots
        }
        slots = {uuid: self._slot_name(uuid) for uuid in reservation.slots if uuid not in ending}
        blockers = blockers_of(slots, self._statuses, self._queue.leases.values())
        return tuple(blocker for blocker in blockers if set(blocker.users) - {reservation.user})

    def _show_waits(self) -> None:
        now_s = self._host.wall()
        if not any(id in self._clients for id in self._queue.waits):
            return
        for id, wait in self._waits().items():
            client = self._clients.get(id)
            if client is None:
                continue
            place = _place(wait, len(self._queue.waits))
            if client.shown is None or (client.updates and client.shown != place):
                client.shown = place
                start_s = wait.expected_start_s
                left_s = None if start_s is None else max(0.0, start_s - now_s)
                client.send({**self._waiting(_hide_names(wait, client.sees_names)), "expected_s": left_s})

    def _waiting(self, wait: LeaseWait) -> Line:
        return {
            "event": "waiting",
            "position": wait.position,
            "of": len(self._queue.waits),
            "sentence": wait.sentence,
            "start_s": wait.expected_start_s,
        }

    def _slot_name(self, uuid: str) -> str:
        slots = self._queue.slots or {}
        return slots[uuid].name if uuid in slots else uuid

    def _find_trespassers(self, programs: tuple[GpuProgram, ...], read_s: float) -> list[Trespasser]:
        """A program is part of a lease if it runs for the lease's user, or descends from the client's process.

        Without a lease on its slot, only a program of a lease that is over its time limit is a trespasser.
        """
        by_slot = {
            uuid: lease
            for lease in self._queue.leases.values()
            if not lease.request.share and lease.since_s < read_s
            for uuid in lease.slots
        }
        trespassers = []
        for program in programs:
            overdue = self._limits.lease_of(program.key)
            lease = by_slot.get(program.slot_uuid)
            if lease is not None and self._is_part(program, lease):
                continue
            lease = lease or overdue
            if lease is not None:
                slot, user = self._slot_name(program.slot_uuid), min(program.names, default="")
                row = Trespasser(lease.request.id, slot, program.pid, program.key, user, program.process_name)
                trespassers.append(row._replace(overdue=overdue is not None, spared=self._limits.refusal(program.key)))
        return trespassers

    def _is_part(self, program: GpuProgram, lease: Lease) -> bool:
        if program.uid == lease.request.uid or lease.request.user in program.names:
            return True
        client = self._known.get(lease.request.id)
        return client is not None and bool(client.pid) and self._host.is_descendant(program.pid, client.pid)

    def _forget_trespassers(self) -> None:
        """A lease has ended: its trespassers are not paused any longer, before the next snapshot is there."""
        left = tuple(
            trespasser
            for trespasser in self._trespassers
            if trespasser.lease_id in self._queue.leases or trespasser.overdue
        )
        if len(left) < len(self._trespassers):
            self._trespassers = left
            self._report_trespassers()

    def _mark_trespassers(self) -> tuple[Trespasser, ...]:
        if self._enforcement is None:
            return self._trespassers
        paused = {id(trespasser) for trespasser in self._to_pause(self._enforcement)}
        mark = self._enforcement.marked
        return tuple(mark(trespasser) if id(trespasser) in paused else trespasser for trespasser in self._trespassers)

    def _report_trespassers(self) -> None:
        if self._enforcement is not None:
            self._enforcement.report(self._to_pause(self._enforcement))

    def _to_pause(self, enforcement: LeaseEnforcement) -> list[Trespasser]:
        """Programs are paused for a lease of another user, so not while there is none."""
        return [
            trespasser
            for trespasser in self._trespassers
            if trespasser.lease_id in self._queue.leases and (trespasser.overdue or not enforcement.overdue_only)
        ]

    def _publish(self) -> None:
        queue = self._queue
        waits = self._waits()
        # The same tuple while nothing changed: holders are computed again only if it is another one.
        leases = tuple(queue.leases.values())
        leases = self.reading.leases if leases == self.reading.leases else leases
        ordered = sorted((id for id in waits if id in queue.waiting), key=lambda id: waits[id].position)
        self.reading = LeasesReading(
            self._off_reason,
            {uuid: slot.name for uuid, slot in (queue.slots or {}).items()},
            leases,
            tuple((queue.waiting[id], waits[id]) for id in ordered),
            tuple(queue.reservations.values()),
            self._mark_trespassers(),
            tuple(self._no_shows),
            self._counters,
            self._record.writing,
            {id: client.process for id, client in self._known.items() if id in queue.leases and client.pid},
            None if self._mps is None else self._mps.reading(),
            self._queue.ready_s,
            {
                reservation.id: held
                for reservation in queue.reservations.values()
                if reservation.is_active(self._host.wall()) and (held := self.find_held_beyond(reservation))
            },
            queue.quota_uses(),
        )


def _hide_names(wait: LeaseWait, sees_names: bool) -> LeaseWait:
    """As a client may see it that does not see the names of others."""
    if sees_names:
        return wait
    return wait._replace(blockers=tuple(blocker._replace(users=()) for blocker in wait.blockers))


def _place(wait: LeaseWait, of: int) -> tuple[object, ...]:
    """What a new line is worth: the place and the reason, and times to half a minute."""
    start_s = wait.expected_start_s
    held = tuple((blocker.slot, blocker.users, _half_minutes(blocker.idle_s)) for blocker in wait.blockers)
    return wait.position, of, wait.cause, wait.detail, held, _half_minutes(start_s)


def _half_minutes(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds / 30)
