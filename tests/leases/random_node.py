"""A node with random users: drives a LeaseQueue and checks after each step what must always hold."""

import random
from dataclasses import dataclass, field, replace

from gpucommons.config.accounts import LeasesSettings
from gpucommons.leases.policy.plan import fits
from gpucommons.leases.policy.queue import LeaseQueue, SettledLeases
from gpucommons.leases.policy.values import LeasableSlot, LeaseRefused, SlotUse, UserFacts
from gpucommons.model.leases import Lease, LeaseRequest, Reservation

GIB = 2**30
SETTINGS = LeasesSettings(pass_limit_s=600.0, share_limit=3, no_show_after_s=300.0)


def whole(number: int, **changes: object) -> LeasableSlot:
    slot = LeasableSlot(f"GPU-{number}", str(number), total_bytes=140 * GIB, free_bytes=140 * GIB)
    return slot._replace(**changes)  # type: ignore[arg-type]


def mig(gpu: int, number: int) -> LeasableSlot:
    size = 16 * GIB
    return LeasableSlot(f"MIG-{gpu}-{number}", f"{gpu}.{number}", SlotUse.FREE, 1 / 7, True, size, size)


@dataclass
class RandomNode:
    dice: random.Random
    settings: LeasesSettings = SETTINGS
    gpus: int = 4
    # Of the requests that share. Both kinds meet where leases.mps was changed while leases were held.
    mps_part: float = 0.6
    now_s: float = 1000.0
    read_s: float = 1000.0
    queue: LeaseQueue = field(init=False)
    slots: dict[str, LeasableSlot] = field(init=False)
    alive: set[str] = field(default_factory=set)
    refused: int = 0
    granted: int = 0
    no_shows: int = 0

    def __post_init__(self) -> None:
        self.queue = LeaseQueue(self.settings)
        self.slots = {slot.uuid: slot for slot in (*map(whole, range(self.gpus)), mig(9, 0), mig(9, 1))}
        self.read()

    def step(self) -> None:
        actions = (
            *((self.arrive,) * 5),
            *((self.leave,) * 5),
            *((self.wait,) * 4),
            *((self.read,) * 3),
            *(self.die, self.reserve, self.unreserve, self.change_use, self.lose, self.restart),
        )
        self.dice.choice(actions)()
        self.settle()

    def arrive(self) -> None:
        dice = self.dice
        uid = dice.randrange(5)
        request = LeaseRequest(
            uid,
            f"user{uid}",
            self.now_s,
            dice.choice((1, 1, 1, 2, 3, self.gpus, self.gpus + 1)),
            dice.choice((None, None, 10 * GIB, 80 * GIB)),
            dice.random() < 0.3,
            dice.choice((None, None, 60.0, 1200.0)),
        )
        if request.share and dice.random() < self.mps_part:
            request = replace(
                request,
                gpus=dice.choice((1, 1, 1, 2)),
                mps=dice.choice(("per_user", "per_user", "all_users")),
                sm_percent=dice.choice((None, 30, 80)),
            )
        try:
            self.alive.add(self.queue.add(request).id)
        except LeaseRefused:
            self.refused += 1

    def leave(self) -> None:
        self._end(clean=True)

    def die(self) -> None:
        self._end(clean=False)

    def _end(self, clean: bool) -> None:
        if self.alive:
            id = self.dice.choice(sorted(self.alive))
            self.alive.remove(id)
            self.queue.end(id, self.now_s, clean)
            assert id not in self.queue.leases
            assert id not in self.queue.waiting

    def wait(self) -> None:
        self.now_s += self.dice.choice((0.1, 1.0, 30.0, 200.0, 700.0))

    def read(self) -> None:
        self.read_s = self.now_s
        self.queue.update_slots(self.slots.values(), self.now_s, UserFacts())

    def reserve(self) -> None:
        uid = self.dice.randrange(5)
        from_s = self.now_s + self.dice.choice((0.0, 100.0, 2000.0))
        try:
            self.queue.reserve(uid, f"user{uid}", self.dice.randint(1, 3), from_s, from_s + 1500.0, self.now_s)
        except LeaseRefused:
            self.refused += 1

    def unreserve(self) -> None:
        if self.queue.reservations:
            self.queue.unreserve(self.dice.choice(sorted(self.queue.reservations)))

    def change_use(self) -> None:
        """A program outside of leases starts on a slot, or ends."""
        slot = self.slots[self.dice.choice(sorted(self.slots))]
        use = self.dice.choice((SlotUse.FREE, SlotUse.FREE, SlotUse.USED, SlotUse.ALLOCATED))
        if slot.use is not SlotUse.LOST:
            self.slots[slot.uuid] = slot._replace(use=use, in_turns=use is SlotUse.USED and self.dice.random() < 0.5)
        self.read()

    def lose(self) -> None:
        """A GPU is lost, or one comes back."""
        lost = [slot for slot in self.slots.values() if slot.use is SlotUse.LOST]
        slot = lost[0] if lost else self.slots[self.dice.choice(sorted(self.slots))]
        self.slots[slot.uuid] = slot._replace(use=SlotUse.FREE if lost else SlotUse.LOST)
        self.read()

    def restart(self) -> None:
        """The agent starts again from its record. Most clients come back, some have died meanwhile."""
        before = self.queue.record()
        self.queue = LeaseQueue(self.settings, (), before, self.now_s)
        assert self.queue.record() == before
        self.settle()
        self.read()
        for id in sorted(self.alive):
            if self.dice.random() < 0.9:
                assert self.queue.resume(id) is not None
            elif self.dice.random() < 0.5:
                self.alive.remove(id)

    def settle(self) -> SettledLeases:
        before = dict(self.queue.leases)
        overdue = self._overdue()
        was_reserved = tuple(self.queue.reservations.values())
        settled = self.queue.settle(self.now_s)
        self.alive -= set(settled.dropped)
        self.granted += len(settled.grants)
        self.no_shows += len(settled.no_shows)
        self._check_slots()
        self._check_capacity()
        assert set(before) | {lease.request.id for lease in settled.grants} == set(self.queue.leases) | set(
            settled.dropped
        ) & set(before)
        for lease in settled.grants:
            self._check_grant(lease, overdue, was_reserved)
        return settled

    def _overdue(self) -> list[LeaseRequest]:
        """An absent client cannot be served: slots are kept for it, and others may take those that it does not need."""
        since_s = self.queue._eligible_s
        return [
            request
            for request in self.queue.waiting.values()
            if self.now_s - since_s.get(request.id, self.now_s) >= self.settings.pass_limit_s
            and not self.queue.is_absent(request.id)
        ]

    def _check_slots(self) -> None:
        """No slot has two leases, unless both accept to share."""
        on_slot: dict[str, list[LeaseRequest]] = {}
        for lease in self.queue.leases.values():
            assert len(set(lease.slots)) == lease.request.gpus
            for uuid in lease.slots:
                on_slot.setdefault(uuid, []).append(lease.request)
        for requests in on_slot.values():
            assert len(requests) == 1 or all(request.share for request in requests)
            assert len(requests) <= self.settings.share_limit
            assert len({request.mps for request in requests}) == 1, "a lease under MPS next to one without it"
            assert sum(request.sm_percent or 0 for request in requests) <= 100

    def _check_capacity(self) -> None:
        """Every client has a lease or waits, and nothing is held for others."""
        assert not set(self.queue.leases) & set(self.queue.waiting)
        known = set(self.queue.leases) | set(self.queue.waiting)
        assert self.alive <= known
        assert all(self.queue.is_absent(id) for id in known - self.alive)

    def _check_grant(self, lease: Lease, overdue: list[LeaseRequest], reserved: tuple[Reservation, ...]) -> None:
        request = lease.request
        limit_s = float("inf") if request.limit_s is None else request.limit_s
        for uuid in lease.slots:
            slot = self.slots[uuid]
            assert slot.use in ((SlotUse.FREE, SlotUse.USED) if request.share else (SlotUse.FREE,))
            assert fits(request, slot)
            assert not (request.mps and (slot.in_turns or slot.is_mig or request.gpus > 1))
            for each in self.queue.reservations.values():
                if uuid in each.slots and each.uid != request.uid:
                    assert self.now_s + limit_s <= each.from_s
        for other in self.queue.waiting.values():
            assert other.uid != request.uid or other.number > request.number, "not first come, first served"
        for other in overdue:
            if other.number < request.number and other.id in self.queue.waiting:
                self._check_not_passed(other, lease)

    def _check_not_passed(self, waiting: LeaseRequest, lease: Lease) -> None:
        """It was passed for as long as the bound allows: a later request gets no slot that it could use."""
        if sum(fits(waiting, slot) for slot in self.slots.values()) < waiting.gpus:
            return
        for uuid in lease.slots:
            reserved = any(uuid in each.slots and each.uid != waiting.uid for each in self.queue.reservations.values())
            joins = waiting.share or (self.slots[uuid].use is SlotUse.FREE and not self._had_others(uuid, lease))
            free = fits(waiting, self.slots[uuid]) and joins and self._has_memory(waiting, uuid, lease)
            free = free and self._may_mix(waiting, uuid, lease)
            assert reserved or not free, f"request {waiting} was passed by {lease}"

    def _had_others(self, uuid: str, lease: Lease) -> bool:
        return any(uuid in other.slots for other in self.queue.leases.values() if other is not lease)

    def _may_mix(self, waiting: LeaseRequest, uuid: str, lease: Lease) -> bool:
        others = [each.request for each in self.queue.leases.values() if uuid in each.slots and each is not lease]
        alike = all(other.mps == waiting.mps for other in others)
        threads = (waiting.sm_percent or 0) + sum(other.sm_percent or 0 for other in others) <= 100
        return alike and threads and not (waiting.mps and self.slots[uuid].in_turns)

    def _has_memory(self, waiting: LeaseRequest, uuid: str, lease: Lease) -> bool:
        if not waiting.share or waiting.memory_bytes is None:
            return True
        others = [other for other in self.queue.leases.values() if uuid in other.slots and other is not lease]
        promised = sum(other.request.memory_bytes or 0 for other in others)
        return waiting.memory_bytes <= (self.slots[uuid].total_bytes or 0) - promised
