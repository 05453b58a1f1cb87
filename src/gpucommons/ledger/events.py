"""The events between two snapshots, and our own log of them: one JSON line each, in DS01's format.

Events are detected by comparing snapshots; the log is written off the event loop.
"""

import errno
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpucommons.base.files import open_state_file, open_without_waiting
from gpucommons.base.text import qualified_name
from gpucommons.base.threads import WorkerThread
from gpucommons.model.accounts import HoldingQuota
from gpucommons.model.allocations import Allocation, AllocationReading
from gpucommons.model.cost import quota_states
from gpucommons.model.events import (
    ALLOCATION_GONE,
    ALLOCATION_SEEN,
    GPU_BACK,
    GPU_LOST,
    GPU_XID,
    LEASE_TRESPASSER,
    MPS_DIED,
    MPS_FAILED,
    MPS_LOG,
    MPS_STARTED,
    MPS_STOPPED,
    PROGRAM_NOT_PARKED,
    PROGRAM_PARKED,
    PROGRAM_STRANDED,
    PROGRAM_WAITED,
    PROGRAM_WOKEN,
    PROGRAM_XID,
    QUOTA_EXCEEDED,
    QUOTA_KEPT,
    RESERVATION_RELEASED,
    TRESPASSER_PAUSED,
    TRESPASSER_RESUMED,
    TURN_REVOKED,
    Event,
    EventLogReading,
    Numbering,
    format_line,
    parse_line,
)
from gpucommons.model.gpu import GpuReading, XidProgramsReading
from gpucommons.model.idle import IdleReading
from gpucommons.model.leases import LeasesReading, MpsReading, Trespasser
from gpucommons.model.sharing import ParkingReading, SharingReading
from gpucommons.model.snapshot import Snapshot

# Detects the events between two snapshots: GPUs, allocations, quotas, turns, leases, parking, idle holders. Pure.
#
# `DetectorState` is all that the detector remembers. It can be derived from the event log, so that a restart neither
# repeats nor misses an event.

SOURCE = "gpucommons"
_PARKING = {
    "parked": PROGRAM_PARKED,
    "woken": PROGRAM_WOKEN,
    "refused": PROGRAM_NOT_PARKED,
    "stranded": PROGRAM_STRANDED,
    "waited": PROGRAM_WAITED,
}
_MPS = {
    "started": MPS_STARTED,
    "stopped": MPS_STOPPED,
    "failed": MPS_FAILED,
    "died": MPS_DIED,
    "log": MPS_LOG,
}
ANY_SLOT = "any"
# Workload id and slot name.
AllocationKey = tuple[str, str]
Details = Mapping[str, object]
# Type, user and details of each new event.
_NewEvents = list[tuple[str, str, Details]]


@dataclass(frozen=True, slots=True)
class DetectorState:
    """`held` keeps the user and the details of each allocation for the event that reports its end.

    `paused` does so for trespassers.
    """

    lost: frozenset[str] = frozenset()
    held: Mapping[AllocationKey, tuple[str, Details]] = field(default_factory=dict)
    exceeded: frozenset[str] = frozenset()
    xids: Mapping[tuple[str, int], int] = field(default_factory=dict)
    revoked: frozenset[str] = frozenset()
    trespassers: frozenset[str] = frozenset()
    released: frozenset[str] = frozenset()
    parking: frozenset[str] = frozenset()
    mps: frozenset[str] = frozenset()
    paused: Mapping[str, tuple[str, Details]] = field(default_factory=dict)
    idle: frozenset[str] = frozenset()
    xid_programs: int = 0


def state_after(events: Iterable[Event]) -> DetectorState:
    """The state after the last of these events."""
    lost: set[str] = set()
    exceeded: set[str] = set()
    held: dict[AllocationKey, tuple[str, Details]] = {}
    trespassers: set[str] = set()
    released: set[str] = set()
    paused: dict[str, tuple[str, Details]] = {}
    for event in events:
        gpu = str(event.details.get("uuid", ""))
        key = (str(event.details.get("workload_id", "")), str(event.details.get("slot", "")))
        if event.type == GPU_LOST:
            lost.add(gpu)
        elif event.type == GPU_BACK:
            lost.discard(gpu)
        elif event.type == ALLOCATION_SEEN:
            held[key] = (event.user, event.details)
        elif event.type == ALLOCATION_GONE:
            held.pop(key, None)
        elif event.type == QUOTA_EXCEEDED:
            exceeded.add(event.user)
        elif event.type == QUOTA_KEPT:
            exceeded.discard(event.user)
        elif event.type == LEASE_TRESPASSER:
            trespassers.add(str(event.details.get("process", "")))
        elif event.type == TRESPASSER_PAUSED:
            paused[str(event.details.get("process", ""))] = (event.user, event.details)
        elif event.type == TRESPASSER_RESUMED:
            paused.pop(str(event.details.get("process", "")), None)
        elif event.type == RESERVATION_RELEASED:
            released.add(str(event.details.get("reservation", "")))
    return DetectorState(
        frozenset(lost),
        held,
        frozenset(exceeded),
        trespassers=frozenset(trespassers),
        released=frozenset(released),
        paused=paused,
    )


def detect_events(
    before: DetectorState, snapshot: Snapshot, quotas: Mapping[str, HoldingQuota]
) -> tuple[DetectorState, list[Event]]:
    """The new state and the events since `before`. What could not be read keeps its state."""
    readings, wall_s = snapshot.readings, snapshot.wall_s
    new_events: _NewEvents = []
    lost, xids = before.lost, before.xids
    if readings.gpus is not None:
        lost, xids = _gpus(before, readings.gpus, new_events)
    xid_programs = before.xid_programs
    if readings.xid_programs is not None:
        xid_programs = _xid_programs(before, readings.xid_programs, new_events)
    held, exceeded = before.held, before.exceeded
    if readings.allocations is not None and readings.allocations.complete and readings.gpus is not None:
        held = _allocations(before, readings.allocations, new_events)
        exceeded = _quotas(before, quotas, readings.allocations, new_events)
    revoked, parking = before.revoked, before.parking
    if readings.sharing is not None:
        revoked = _turns(before, readings.sharing, new_events)
        if readings.sharing.parking is not None:
            parking = _parking(before, readings.sharing.parking, new_events)
    trespassers, released, paused, mps = before.trespassers, before.released, before.paused, before.mps
    if readings.leases is not None:
        trespassers, released = _leases(before, readings.leases, new_events)
        paused = _compare_pauses(before, readings.leases, new_events)
        if readings.leases.mps is not None:
            mps = _mps(before, readings.leases.mps, new_events)
    idle = before.idle if readings.idle is None else _idle(before, readings.idle, new_events)
    events = [Event(wall_s, type, user, SOURCE, details) for type, user, details in new_events]
    after = DetectorState(
        *(lost, held, exceeded, xids, revoked, trespassers, released, parking),
        mps=mps,
        paused=paused,
        idle=idle,
        xid_programs=xid_programs,
    )
    return after, events


def _xid_programs(before: DetectorState, reading: XidProgramsReading, new_events: _NewEvents) -> int:
    """The programs that XIDs hit, under the name of their user. The numbers begin again with each agent."""
    for program in reading.programs:
        if program.number > before.xid_programs:
            details: Details = {
                "gpu": str(program.gpu_index),
                "uuid": program.gpu_uuid,
                "xid": str(program.code),
                "program": program.program,
                "pid": str(program.pid),
                "by": "kernel log" if program.is_certain else "only program on the GPU",
            }
            new_events.append((PROGRAM_XID, program.user, details))
    return max((before.xid_programs, *(program.number for program in reading.programs)))


def _gpus(
    before: DetectorState, reading: GpuReading, new_events: _NewEvents
) -> tuple[frozenset[str], Mapping[tuple[str, int], int]]:
    xids: dict[tuple[str, int], int] = {}
    for gpu in reading.gpus:
        named: Details = {"gpu": str(gpu.identity.index), "uuid": gpu.identity.uuid, "pci": gpu.identity.pci_bus_id}
        was_lost = gpu.identity.uuid in before.lost
        if not gpu.up and not was_lost:
            new_events.append((GPU_LOST, "", {**named, "reason": gpu.down_reason}))
        elif gpu.up and was_lost:
            new_events.append((GPU_BACK, "", named))
        for code, count in gpu.xid.counts.items():
            key = (gpu.identity.uuid, code)
            xids[key] = count
            new = count - before.xids.get(key, 0)
            if new > 0:
                new_events.append((GPU_XID, "", {**named, "xid": str(code), "count": str(new)}))
    present = {gpu.identity.uuid for gpu in reading.gpus}
    lost = {gpu.identity.uuid for gpu in reading.gpus if not gpu.up} | (before.lost - present)
    return frozenset(lost), xids


def _allocations(
    before: DetectorState, reading: AllocationReading, new_events: _NewEvents
) -> Mapping[AllocationKey, tuple[str, Details]]:
    now = {_key(allocation): allocation for allocation in reading.allocations}
    for key, allocation in now.items():
        if key not in before.held:
            new_events.append((ALLOCATION_SEEN, allocation.account.user, _details(allocation)))
    for key, (user, details) in before.held.items():
        if key not in now:
            new_events.append((ALLOCATION_GONE, user, details))
    if now.keys() == before.held.keys():
        return before.held
    return {key: before.held.get(key) or (a.account.user, _details(a)) for key, a in now.items()}


def _key(allocation: Allocation) -> AllocationKey:
    return allocation.workload_id, _slot(allocation)


def _slot(allocation: Allocation) -> str:
    """A container that may use every GPU causes one event, not one for each GPU."""
    return ANY_SLOT if allocation.is_access_only else allocation.slot.name


def _details(allocation: Allocation) -> Details:
    return {
        "slot": _slot(allocation),
        "workload": allocation.workload,
        "workload_id": allocation.workload_id,
        "owner": qualified_name(allocation.account.namespace, allocation.account.owner),
        "interface": allocation.interface,
        "managed": "yes" if allocation.managed else "no",
    }


def _quotas(
    before: DetectorState, quotas: Mapping[str, HoldingQuota], reading: AllocationReading, new_events: _NewEvents
) -> frozenset[str]:
    exceeded = set(before.exceeded & quotas.keys())
    for state in quota_states(quotas, reading):
        if state.exceeded is None or state.exceeded == (state.user in exceeded):
            continue
        (exceeded.add if state.exceeded else exceeded.discard)(state.user)
        details = {"used": f"{state.used:g}", "limit": f"{state.limit:g}"}
        new_events.append((QUOTA_EXCEEDED if state.exceeded else QUOTA_KEPT, state.user, details))
    return frozenset(exceeded)


def _turns(before: DetectorState, reading: SharingReading, new_events: _NewEvents) -> frozenset[str]:
    revoked = {client.client_id: client for client in reading.clients if client.revoked}
    for id, client in revoked.items():
        if id not in before.revoked:
            details = {
                "client": id,
                "name": client.name,
                "pod": client.pod,
                "namespace": client.namespace,
                "uuid": client.gpu_uuid,
            }
            new_events.append((TURN_REVOKED, "", details))
    return frozenset(revoked)


def _leases(
    before: DetectorState, reading: LeasesReading, new_events: _NewEvents
) -> tuple[frozenset[str], frozenset[str]]:
    """A trespasser concerns the user whose lease it is. A process that is on a GPU on and off is reported once."""
    users = {lease.request.id: lease.request.user for lease in reading.leases}
    trespassers = set()
    for trespasser in reading.trespassers:
        details = _trespasser(trespasser)
        process = str(details["process"])
        trespassers.add(process)
        if process not in before.trespassers:
            new_events.append((LEASE_TRESPASSER, users.get(trespasser.lease_id, ""), details))
    for reservation in reading.no_shows:
        if reservation.id not in before.released:
            details = {"reservation": reservation.id, "gpus": str(reservation.gpus), "reason": "not used"}
            new_events.append((RESERVATION_RELEASED, reservation.user, details))
    current = {lease_process for lease_process in before.trespassers if lease_process.partition("/")[0] in users}
    return frozenset(trespassers | current), frozenset(
        reservation.id for reservation in reading.no_shows
    ) | before.released


def _trespasser(trespasser: Trespasser) -> Details:
    return {
        "lease": trespasser.lease_id,
        "slot": trespasser.slot,
        "process": f"{trespasser.lease_id}/{trespasser.pid}/{trespasser.key.start_ticks if trespasser.key else ''}",
        "name": trespasser.process_name,
        "by": trespasser.user,
    }


def _compare_pauses(
    before: DetectorState, reading: LeasesReading, new_events: _NewEvents
) -> Mapping[str, tuple[str, Details]]:
    """A pause concerns the trespasser's user. One that ended with the agent is reported by the next agent."""
    now = {}
    for trespasser in reading.trespassers:
        details = _trespasser(trespasser)
        if trespasser.paused:
            now[str(details["process"])] = (trespasser.user, details)
    new_events.extend((TRESPASSER_PAUSED, *now[process]) for process in now if process not in before.paused)
    new_events.extend((TRESPASSER_RESUMED, *row) for process, row in before.paused.items() if process not in now)
    return before.paused if now.keys() == before.paused.keys() else now


def _mps(before: DetectorState, reading: MpsReading, new_events: _NewEvents) -> frozenset[str]:
    """Each event of the daemons once."""
    for event in reading.events:
        if event.id not in before.mps:
            details: Details = {"gpu": event.gpu, "uuid": event.gpu_uuid, "sentence": event.sentence}
            new_events.append((_MPS[event.kind], event.user, details))
    return frozenset(event.id for event in reading.events)


def _parking(before: DetectorState, reading: ParkingReading, new_events: _NewEvents) -> frozenset[str]:
    """Each event of parking once."""
    for event in reading.events:
        if event.id not in before.parking:
            details: Details = {
                "name": event.name,
                "program": event.key,
                "uuid": event.gpu_uuid,
                "bytes": str(event.bytes),
                "seconds": f"{event.duration_s:.1f}",
                "sentence": event.sentence,
                **({"reason": event.why} if event.why else {}),
            }
            new_events.append((_PARKING[event.kind], event.user, details))
    return frozenset(event.id for event in reading.events)


def _idle(before: DetectorState, reading: IdleReading, new_events: _NewEvents) -> frozenset[str]:
    """Each event of the escalation once, oldest first."""
    new_events += [
        (event.type, event.user, event.details) for event in reversed(reading.events) if event.id not in before.idle
    ]
    return frozenset(event.id for event in reading.events)


# Our own event log: one JSON line for event event, in DS01's format, written off the event loop.
#
# A daemon thread reads the existing log and appends new events. If the disk fails, the last events stay in memory.
# A log that has grown long is renamed; one older log is kept.

_KEPT = 1000
_MAX_BYTES = 16 << 20
_MAX_UNWRITTEN = 10_000

log = logging.getLogger(__name__)


def read_events(path: Path) -> Iterator[Event]:
    """All events of the older log and the log, oldest first. Bad lines are skipped."""
    for file in (older(path), path):
        try:
            with open(file, "rb", opener=open_without_waiting) as lines:
                for line in lines:
                    event = parse_line(line)
                    if isinstance(event, Event):
                        yield event
        except OSError:
            continue


def older(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


class EventLog:
    """`detector_state` is None until the log was read; `record` may be called from the event loop."""

    def __init__(self, path: Path, max_bytes: int = _MAX_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._unwritten: deque[Event] = deque(maxlen=_MAX_UNWRITTEN)
        self._recent: deque[Event] = deque(maxlen=_KEPT)
        self._numbered = Numbering()
        self._reading = EventLogReading(())
        self._thread = WorkerThread("event-log")
        self.detector_state: DetectorState | None = None
        self.writing = True

    def start(self) -> None:
        self._thread.submit(self._read)

    def record(self, events: list[Event]) -> None:
        if events:
            self._thread.submit(lambda: self._add(events))

    def reading(self) -> EventLogReading:
        return self._reading

    def close(self, timeout_s: float) -> bool:
        """False if the events were not written in time."""
        self._thread.submit(self._write)
        return self._thread.close(timeout_s)

    def _read(self) -> None:
        state = state_after(self._remember(read_events(self._path)))
        self._publish()
        self.detector_state = state

    def _add(self, events: list[Event]) -> None:
        self._unwritten.extend(self._remember(events))
        self._publish()
        self._write()

    def _remember(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in self._numbered(events):
            self._recent.appendleft(event)
            yield event

    def _publish(self) -> None:
        self._reading = EventLogReading(tuple(self._recent))

    def _write(self) -> None:
        if not self._unwritten:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._append(b"".join(map(format_line, self._unwritten)))
        except OSError as error:
            if self.writing:
                log.error("event log %s: %s; the last events are kept in memory", self._path, error.strerror)
            self.writing = False
        else:
            self._unwritten.clear()
            self.writing = True

    def _append(self, lines: bytes) -> None:
        """One write. It starts on a new line, also after a crash in the middle of one."""
        descriptor = open_state_file(self._path, os.O_RDWR | os.O_APPEND)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                lines = b"\n" + lines
            if os.write(descriptor, lines) < len(lines):
                # The disk is full. A partial line would be read as damaged, and its event written again later.
                os.ftruncate(descriptor, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)
        if size + len(lines) > self._max_bytes:
            os.replace(self._path, older(self._path))
