"""Leases, waiting requests and reservations. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

from gpucommons.base.text import memory_text
from gpucommons.faces.documents.schema import (
    FLAG,
    INTEGER,
    INTEGER_OR_NULL,
    NUMBER,
    NUMBER_OR_NULL,
    TEXT,
    TEXT_OR_NULL,
    Record,
    by_key,
    describe,
    list_of,
    one_of,
    or_null,
    record,
)
from gpucommons.faces.documents.values import Json, round_value
from gpucommons.model.leases import (
    Lease,
    LeaseQuotaUse,
    LeaseRequest,
    LeasesReading,
    LeaseWait,
    Reservation,
    SlotBlocker,
    Trespasser,
    WaitCause,
)
from gpucommons.model.snapshot import Snapshot


class _Named(NamedTuple):
    """A lease or a reservation, with the names of its slots."""

    lease: Lease
    slots: list[str]
    trespassers: list[Trespasser]


class _Reserved(NamedTuple):
    reservation: Reservation
    slots: list[str]
    is_active: bool
    held: tuple[SlotBlocker, ...] = ()


_MEMORY_TEXT = describe(TEXT, "memory_bytes in the unit in which it was asked for; empty: it was not")
_TRESPASSER = Record[Trespasser](
    slot=(TEXT, lambda trespasser: trespasser.slot),
    pid=(INTEGER, lambda trespasser: trespasser.pid),
    user=(TEXT, lambda trespasser: trespasser.user),
    process=(TEXT, lambda trespasser: trespasser.process_name),
    paused=(FLAG, lambda trespasser: trespasser.paused),
    not_paused_because=(TEXT, lambda trespasser: trespasser.spared),
)
_LEASE = Record[_Named](
    user=(TEXT, lambda named: named.lease.request.user),
    name=(TEXT, lambda named: named.lease.request.name),
    slots=(list_of(TEXT), lambda named: named.slots),
    slot_uuids=(list_of(TEXT), lambda named: list(named.lease.slots)),
    shared=(FLAG, lambda named: named.lease.request.share),
    memory_bytes=(INTEGER_OR_NULL, lambda named: named.lease.request.memory_bytes),
    memory_text=(_MEMORY_TEXT, lambda named: _memory_text(named.lease.request)),
    mps=(FLAG, lambda named: bool(named.lease.request.mps)),
    sm_percent=(INTEGER_OR_NULL, lambda named: named.lease.request.sm_percent),
    sharing_class=(describe(TEXT, "as requested; empty: not given"), lambda named: named.lease.request.sharing_class),
    since_unix_s=(NUMBER, lambda named: round(named.lease.since_s, 3)),
    waited_s=(
        describe(NUMBER, "in line, before it began"),
        lambda named: round(max(0.0, named.lease.since_s - named.lease.request.arrived_s), 3),
    ),
    ends_unix_s=(NUMBER_OR_NULL, lambda named: _end_s(named.lease)),
    trespassers=(
        list_of(_TRESPASSER.schema),
        lambda named: [_TRESPASSER.build(trespasser) for trespasser in named.trespassers],
    ),
)
_BLOCKER = Record[SlotBlocker](
    slot=(TEXT, lambda blocker: blocker.slot),
    users=(list_of(TEXT), lambda blocker: list(blocker.users)),
    idle_s=(NUMBER_OR_NULL, lambda blocker: round_value(blocker.idle_s, 0)),
    leased=(FLAG, lambda blocker: blocker.leased),
    sentence=(TEXT, lambda blocker: blocker.sentence),
)
_REQUEST = Record[tuple[LeaseRequest, LeaseWait]](
    position=(INTEGER, lambda pair: pair[1].position),
    user=(TEXT, lambda pair: pair[0].user),
    name=(TEXT, lambda pair: pair[0].name),
    gpus=(INTEGER, lambda pair: pair[0].gpus),
    memory_bytes=(INTEGER_OR_NULL, lambda pair: pair[0].memory_bytes),
    memory_text=(_MEMORY_TEXT, lambda pair: _memory_text(pair[0])),
    shared=(FLAG, lambda pair: pair[0].share),
    mps=(FLAG, lambda pair: bool(pair[0].mps)),
    sm_percent=(INTEGER_OR_NULL, lambda pair: pair[0].sm_percent),
    since_unix_s=(NUMBER, lambda pair: round(pair[0].arrived_s, 3)),
    expected_start_unix_s=(NUMBER_OR_NULL, lambda pair: round_value(pair[1].expected_start_s, 0)),
    cause=(one_of(*WaitCause), lambda pair: pair[1].cause.value),
    sentence=(TEXT, lambda pair: pair[1].sentence),
    model=(describe(TEXT, "part of the product name of the GPU that is asked for; empty: any"), lambda p: p[0].model),
    gpu=(describe(TEXT, "name or UUID of the GPU or MIG device that is asked for; empty: any"), lambda p: p[0].slot),
    whole=(describe(FLAG, "no MIG device"), lambda pair: pair[0].whole),
    blockers=(
        describe(list_of(_BLOCKER.schema), "slots that could serve it and are held, the longest idle first"),
        lambda pair: [_BLOCKER.build(blocker) for blocker in pair[1].blockers],
    ),
)
_RESERVATION = Record[_Reserved](
    user=(TEXT, lambda named: named.reservation.user),
    gpus=(INTEGER, lambda named: named.reservation.gpus),
    slots=(list_of(TEXT), lambda named: named.slots),
    from_unix_s=(NUMBER, lambda named: round(named.reservation.from_s, 3)),
    until_unix_s=(NUMBER, lambda named: round(named.reservation.until_s, 3)),
    active=(FLAG, lambda named: named.is_active),
    held=(
        describe(list_of(_BLOCKER.schema), "where it is in force: its slots that other users still hold"),
        lambda named: [_BLOCKER.build(blocker) for blocker in named.held],
    ),
)
_QUOTA = Record[LeaseQuotaUse](
    whose=(TEXT, lambda use: use.whose),
    gpus=(NUMBER_OR_NULL, lambda use: use.gpus),
    held_gpus=(NUMBER, lambda use: round_value(use.held_gpus, 6)),
    gpu_hours=(NUMBER_OR_NULL, lambda use: use.hours),
    used_gpu_hours=(NUMBER_OR_NULL, lambda use: round_value(use.used_hours, 2)),
    sentence=(TEXT, lambda use: use.sentence),
)
SCHEMA = or_null(
    record(
        off=TEXT_OR_NULL,
        leases=by_key(_LEASE.schema, "id of the lease"),
        waiting=by_key(_REQUEST.schema, "id of the request"),
        reservations=by_key(_RESERVATION.schema, "id of the reservation"),
        quotas=by_key(list_of(_QUOTA.schema), "user: its quotas of leases; * is any other user"),
    )
)


def queue(snapshot: Snapshot) -> Json:
    """Null where the agent gives no leases."""
    reading = snapshot.readings.leases
    return None if reading is None else queue_document(reading, snapshot.wall_s)


def queue_document(reading: LeasesReading, now_s: float) -> dict[str, Json]:
    """`off` is why leases are not given now; null where they are."""
    return {
        "off": reading.off_reason or None,
        "leases": {lease.request.id: _LEASE.build(_name_lease(lease, reading)) for lease in reading.leases},
        "waiting": {pair[0].id: _REQUEST.build(pair) for pair in reading.waiting},
        "reservations": {
            reservation.id: _RESERVATION.build(
                _Reserved(
                    reservation,
                    _names(reservation.slots, reading),
                    reservation.is_active(now_s),
                    reading.held_reservations.get(reservation.id, ()),
                )
            )
            for reservation in reading.reservations
        },
        "quotas": {user: [_QUOTA.build(use) for use in uses] for user, uses in reading.quotas.items()},
    }


def _name_lease(lease: Lease, reading: LeasesReading) -> _Named:
    trespassers = [trespasser for trespasser in reading.trespassers if trespasser.lease_id == lease.request.id]
    return _Named(lease, _names(lease.slots, reading), trespassers)


def _names(uuids: Iterable[str], reading: LeasesReading) -> list[str]:
    return [reading.slots.get(uuid, uuid) for uuid in uuids]


def _memory_text(request: LeaseRequest) -> str:
    return "" if request.memory_bytes is None else memory_text(request.memory_bytes)


def _end_s(lease: Lease) -> float | None:
    limit_s = lease.request.limit_s
    return None if limit_s is None else round(lease.since_s + limit_s, 3)
