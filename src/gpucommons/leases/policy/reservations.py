"""Which slots a reservation keeps, and when it is released because it is not used. Pure.

A reserved slot is not leased to other users beyond the start of the reservation. A lease that was given before the
reservation was made may still be there at its start; the reservation then moves to a slot that is free, if any.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpucommons.leases.policy.values import LeasableSlot, LeaseRefused, SlotUse
from gpucommons.model.leases import Lease, LeaseRequest, Reservation


def assign(
    reservations: Iterable[Reservation], slots: Mapping[str, LeasableSlot], leases: Iterable[Lease]
) -> tuple[Reservation, ...]:
    """The reservations with their slots, earliest first. One has fewer slots than GPUs if not enough GPUs work."""
    on_slot: dict[str, list[Lease]] = {}
    for lease in leases:
        for uuid in lease.slots:
            on_slot.setdefault(uuid, []).append(lease)
    reservable = _reservable(slots)
    done: list[Reservation] = []
    for each in sorted(reservations, key=lambda each: (each.from_s, each.id)):
        taken = {uuid for other in done if _overlap(each, other) for uuid in other.slots}
        free = [uuid for uuid in reservable if uuid not in taken]
        best = sorted(free, key=lambda uuid: _rank(each, slots[uuid], on_slot.get(uuid, [])))
        done.append(replace(each, slots=tuple(sorted(best[: each.gpus], key=reservable.index))))
    return tuple(done)


def _reservable(slots: Mapping[str, LeasableSlot]) -> list[str]:
    """Whole GPUs; the MIG devices where there is no whole GPU."""
    working = [slot for slot in slots.values() if slot.use is not SlotUse.LOST]
    return [slot.uuid for slot in working if not slot.is_mig] or [slot.uuid for slot in working]


def _rank(reservation: Reservation, slot: LeasableSlot, leases: list[Lease]) -> tuple[bool, bool]:
    """Slots that are clear at its start first, of these the ones that it has."""
    clear = slot.use is SlotUse.FREE and all(_is_over(lease, reservation) for lease in leases)
    return not clear, slot.uuid not in reservation.slots


def _is_over(lease: Lease, reservation: Reservation) -> bool:
    limit_s = lease.request.limit_s
    own = lease.request.uid == reservation.uid
    return own or (limit_s is not None and lease.since_s + limit_s <= reservation.from_s)


def _overlap(one: Reservation, other: Reservation) -> bool:
    return one.from_s < other.until_s and other.from_s < one.until_s


def check_room(new: Reservation, others: Iterable[Reservation], slots: Mapping[str, LeasableSlot]) -> None:
    """Raises LeaseRefused if the new reservation and those of the same time need more slots than there are."""
    reservable = len(_reservable(slots))
    if new.gpus > reservable:
        raise LeaseRefused(f"{new.gpus} GPUs requested, {reservable} can be reserved on this node; request fewer")
    if any(len(each.slots) < each.gpus for each in assign((*others, new), slots, ())):
        raise LeaseRefused(
            f"{new.gpus} GPUs requested, fewer are left in that time: other reservations overlap; "
            "see 'gpucommons reservations', or choose another time"
        )


def used(
    reservation: Reservation, leases: Iterable[Lease], waiting: Iterable[LeaseRequest], now_s: float
) -> Reservation:
    """With the time of its last use: its owner has a lease on one of its slots, or waits for one."""
    if not reservation.is_active(now_s):
        return reservation
    own = any(lease.request.uid == reservation.uid and set(lease.slots) & set(reservation.slots) for lease in leases)
    if own or any(request.uid == reservation.uid for request in waiting):
        return replace(reservation, used_s=now_s)
    return reservation


def is_no_show(reservation: Reservation, no_show_after_s: float, now_s: float) -> bool:
    last_s = reservation.from_s if reservation.used_s is None else max(reservation.from_s, reservation.used_s)
    return reservation.is_active(now_s) and now_s - last_s >= no_show_after_s
