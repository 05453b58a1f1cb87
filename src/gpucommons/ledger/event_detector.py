"""What happened between two snapshots: GPUs lost and back, XIDs, allocations, quotas, revoked turns. Pure.

`DetectorState` is all that is remembered of the past. It can be told from the log of what happened before, so that
a restart neither repeats nor misses anything.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpucommons.model.accounts import HoldingQuota
from gpucommons.model.allocations import Allocation, AllocationReading
from gpucommons.model.events import Event
from gpucommons.model.gpu import GpuReading
from gpucommons.model.sharing import SharingReading
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.quotas import quota_states

SOURCE = "gpucommons"
GPU_LOST, GPU_BACK, GPU_XID = "gpu.lost", "gpu.back", "gpu.xid"
ALLOCATION_SEEN, ALLOCATION_GONE = "allocation.seen", "allocation.gone"
QUOTA_EXCEEDED, QUOTA_KEPT = "quota.exceeded", "quota.kept"
TURN_REVOKED = "turn.revoked"
ANY_SLOT = "any"
TYPES = (
    GPU_LOST,
    GPU_BACK,
    GPU_XID,
    ALLOCATION_SEEN,
    ALLOCATION_GONE,
    QUOTA_EXCEEDED,
    QUOTA_KEPT,
    TURN_REVOKED,
)

# Which workload on which slot.
AllocationKey = tuple[str, str]
Details = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class DetectorState:
    """How things stood. `held` has what is told of each allocation when it goes."""

    lost: frozenset[str] = frozenset()
    held: Mapping[AllocationKey, tuple[str, Details]] = field(default_factory=dict)
    exceeded: frozenset[str] = frozenset()
    xids: Mapping[tuple[str, int], int] = field(default_factory=dict)
    revoked: frozenset[str] = frozenset()


def state_after(events: Iterable[Event]) -> DetectorState:
    """How things stood when the last of these events was written."""
    lost: set[str] = set()
    exceeded: set[str] = set()
    held: dict[AllocationKey, tuple[str, Details]] = {}
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
    return DetectorState(frozenset(lost), held, frozenset(exceeded))


def detect_events(
    before: DetectorState, snapshot: Snapshot, quotas: Mapping[str, HoldingQuota]
) -> tuple[DetectorState, list[Event]]:
    """The events since `before`, and how things stand now. What could not be read stands as it stood."""
    readings, wall_s = snapshot.readings, snapshot.wall_s
    told: list[tuple[str, str, Details]] = []
    lost, xids = before.lost, before.xids
    if readings.gpus is not None:
        lost, xids = _gpus(before, readings.gpus, told)
    held, exceeded = before.held, before.exceeded
    if readings.allocations is not None and readings.allocations.complete and readings.gpus is not None:
        held = _allocations(before, readings.allocations, told)
        exceeded = _quotas(before, quotas, readings.allocations, told)
    revoked = before.revoked
    if readings.sharing is not None:
        revoked = _turns(before, readings.sharing, told)
    events = [Event(wall_s, type, user, SOURCE, details) for type, user, details in told]
    return DetectorState(lost, held, exceeded, xids, revoked), events


_Told = list[tuple[str, str, Details]]


def _gpus(
    before: DetectorState, reading: GpuReading, told: _Told
) -> tuple[frozenset[str], Mapping[tuple[str, int], int]]:
    xids: dict[tuple[str, int], int] = {}
    for gpu in reading.gpus:
        named: Details = {"gpu": str(gpu.identity.index), "uuid": gpu.identity.uuid, "pci": gpu.identity.pci_bus_id}
        was_lost = gpu.identity.uuid in before.lost
        if not gpu.up and not was_lost:
            told.append((GPU_LOST, "", {**named, "reason": gpu.down_reason}))
        elif gpu.up and was_lost:
            told.append((GPU_BACK, "", named))
        for code, count in gpu.xid.counts.items():
            key = (gpu.identity.uuid, code)
            xids[key] = count
            new = count - before.xids.get(key, 0)
            if new > 0:
                told.append((GPU_XID, "", {**named, "xid": str(code), "count": str(new)}))
    present = {gpu.identity.uuid for gpu in reading.gpus}
    lost = {gpu.identity.uuid for gpu in reading.gpus if not gpu.up} | (before.lost - present)
    return frozenset(lost), xids


def _allocations(
    before: DetectorState, reading: AllocationReading, told: _Told
) -> Mapping[AllocationKey, tuple[str, Details]]:
    now = {_key(allocation): allocation for allocation in reading.allocations}
    for key, allocation in now.items():
        if key not in before.held:
            told.append((ALLOCATION_SEEN, allocation.account.user, _details(allocation)))
    for key, (user, details) in before.held.items():
        if key not in now:
            told.append((ALLOCATION_GONE, user, details))
    if now.keys() == before.held.keys():
        return before.held
    return {key: before.held.get(key) or (a.account.user, _details(a)) for key, a in now.items()}


def _key(allocation: Allocation) -> AllocationKey:
    return allocation.workload_id, _slot(allocation)


def _slot(allocation: Allocation) -> str:
    """A container that may use every GPU is one thing that happened, not one for each GPU."""
    return ANY_SLOT if allocation.is_access_only else allocation.slot.name


def _details(allocation: Allocation) -> Details:
    return {
        "slot": _slot(allocation),
        "workload": allocation.workload,
        "workload_id": allocation.workload_id,
        "owner": allocation.account.owner,
        "interface": allocation.interface,
        "managed": "yes" if allocation.managed else "no",
    }


def _quotas(
    before: DetectorState, quotas: Mapping[str, HoldingQuota], reading: AllocationReading, told: _Told
) -> frozenset[str]:
    exceeded = set(before.exceeded & quotas.keys())
    for state in quota_states(quotas, reading):
        if state.exceeded and state.user not in exceeded:
            exceeded.add(state.user)
            told.append((QUOTA_EXCEEDED, state.user, {"used": f"{state.used:g}", "limit": f"{state.limit:g}"}))
        elif state.exceeded is False and state.user in exceeded:
            exceeded.discard(state.user)
            told.append((QUOTA_KEPT, state.user, {"used": f"{state.used:g}", "limit": f"{state.limit:g}"}))
    return frozenset(exceeded)


def _turns(before: DetectorState, reading: SharingReading, told: _Told) -> frozenset[str]:
    revoked = {client.client_id: client for client in reading.clients if client.revoked}
    for id, client in revoked.items():
        if id not in before.revoked:
            told.append(
                (
                    TURN_REVOKED,
                    "",
                    {"client": id, "pod": client.pod, "namespace": client.namespace, "uuid": client.gpu_uuid},
                )
            )
    return frozenset(revoked)


def matching(events: Iterable[Event], since_s: float | None, type: str | None, user: str | None) -> Iterator[Event]:
    """Those that a person asked for. A type may name a family: `gpu` is `gpu.lost` and all its kind."""
    for event in events:
        if since_s is not None and event.wall_s < since_s:
            continue
        if type is not None and event.type != type and not event.type.startswith(f"{type}."):
            continue
        if user is not None and event.user != user:
            continue
        yield event
