"""Which program is parked next and which is brought back next. Pure.

1. A program is brought back only where NVML shows the room for it, for what leases were promised and do not use yet,
   and for a reserve, in a reading that is younger than the last move on that device: a restore that runs out of memory
   strands the program for good.
2. One restore at a time on a device. The program that has waited longest comes first; no later one passes it.
3. One program is parked at a time on the node: the next one is decided with the host memory that is then left.
4. A program is parked if its owner asks, or if it was idle for `idle_after_s` and either `eager` is set or another
   program, lease or client waits for its room, and parking makes that room. A program that waits to be brought back
   comes before leases and clients; one that made room for them comes after them.
5. A program that was brought back stays for `min_residence_s`, unless its owner asks.
6. With `oversubscribe`, programs that do not fit together take turns: where idle programs do not make the room for one
   that waits, a working one does, once it has had its turn (turns.py). Host memory has to hold both at once, because
   that is how they change places later.
7. A program that cannot come back, or that host memory or its container cannot hold, is refused.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from gpucommons.parking.turns import most_served_first, turn_end_s
from gpucommons.parking.values import (
    GIB,
    DeviceRoom,
    ParkPlan,
    ParkProgram,
    ParkRefusal,
    ParkSituation,
    ParkStage,
    ParkTerms,
    RoomNeed,
    WhyNot,
)

# How long a program that made room waits for those that waited before it to take the room.
_YIELDS_S: Final = 30.0


def plan(terms: ParkTerms, situation: ParkSituation) -> ParkPlan:
    wake, waits = _wakes(terms, situation)
    refused = {
        program.key: refusal
        for program in _held(situation)
        if program.asked and (refusal := refusal_of(terms, situation, program)) is not None
    }
    return ParkPlan(tuple(_parks(terms, situation, wake)), wake, waits, refused, _claims(terms, situation))


def refusal_of(terms: ParkTerms, situation: ParkSituation, program: ParkProgram) -> ParkRefusal | None:
    """Why this program cannot be parked now; None where it can."""
    if program.obstacle is not None:
        return program.obstacle
    if situation.host is None:
        return ParkRefusal(WhyNot.HOST_MEMORY, "the memory of the host could not be read")
    budget = situation.host.budget_bytes(terms.host_reserve_percent)
    if program.bytes > budget:
        return ParkRefusal(
            WhyNot.HOST_MEMORY,
            f"it needs {_gib(program.bytes)} of host memory, {_gib(budget)} can be used; "
            "parking.host_reserve_percent keeps the rest free",
        )
    room = program.container_room_bytes
    if room is not None and program.bytes > room:
        return ParkRefusal(
            WhyNot.CONTAINER_MEMORY,
            f"it needs {_gib(program.bytes)} of host memory, the memory limit of its container leaves {_gib(room)}",
        )
    return None


# Bringing back


def _wakes(terms: ParkTerms, situation: ParkSituation) -> tuple[tuple[str, ...], Mapping[str, str]]:
    taken = {device for program in situation.programs if program.stage is ParkStage.WAKING for device in program.memory}
    wake: list[str] = []
    waits: dict[str, str] = {}
    for program in waiters(situation):
        if not taken.isdisjoint(program.memory):
            waits[program.key] = "another program is brought back first"
        elif (obstacle := _no_room(terms, situation, program)) is not None:
            waits[program.key] = obstacle
        else:
            wake.append(program.key)
        taken.update(program.memory)
    return tuple(wake), waits


def waiters(situation: ParkSituation) -> list[ParkProgram]:
    """Those that wait to be brought back, the longest first."""
    found = [
        (program.wakes_since_s, program.key, program)
        for program in situation.programs
        if program.stage is ParkStage.PARKED and program.wakes_since_s is not None
    ]
    return [program for _, _, program in sorted(found, key=lambda row: row[:2])]


def _no_room(terms: ParkTerms, situation: ParkSituation, program: ParkProgram) -> str | None:
    for device, needed in program.memory.items():
        room = fresh_room(situation, device)
        if room is None:
            return "the free memory of its GPU is not known yet"
        before = sum(need.bytes or 0 for need in needs_before(terms, situation, program) if device in need.devices)
        claimed = situation.claims.promised.get(device, 0) + before
        if room.free_bytes < needed + claimed + terms.gpu_reserve_bytes:
            others = f", {_gib(claimed)} for leases and clients that come first" if claimed else ""
            return (
                f"it needs {_gib(needed)}{others} and a reserve of {_gib(terms.gpu_reserve_bytes)}, "
                f"{_gib(room.free_bytes)} is free"
            )
    return None


def needs_before(terms: ParkTerms, situation: ParkSituation, program: ParkProgram) -> list[RoomNeed]:
    """Those for which the program may have made room. Host memory could hold them as well, when it is their turn."""
    if not program.for_turn or situation.now_s - program.settled_s > _YIELDS_S or situation.host is None:
        return []
    before_s = program.settled_s if program.wakes_since_s is None else program.wakes_since_s
    budget = situation.host.budget_bytes(terms.host_reserve_percent)
    return [need for need in situation.claims.needs if need.since_s < before_s and (need.bytes or 0) <= budget]


def _claims(terms: ParkTerms, situation: ParkSituation) -> Mapping[str, frozenset[str]]:
    """For which programs room is kept: a lease must not take what was made for another."""
    making = {device for one in situation.programs if one.stage is ParkStage.PARKING for device in one.memory}
    return {
        program.key: frozenset(need.id for need in needs_before(terms, situation, program))
        for program in waiters(situation)
        if not making.isdisjoint(program.memory) or _fits(terms, situation, program)
    }


def _fits(terms: ParkTerms, situation: ParkSituation, program: ParkProgram) -> bool:
    rooms = {device: fresh_room(situation, device) for device in program.memory}
    return all(
        room is None or room.free_bytes >= program.memory[device] + terms.gpu_reserve_bytes
        for device, room in rooms.items()
    )


def fresh_room(situation: ParkSituation, device: str) -> DeviceRoom | None:
    """None where the room is not known, or was read before the last move on this device ended."""
    room = situation.rooms.get(device)
    settled = (program.settled_s for program in situation.programs if device in program.memory)
    return None if room is None or room.as_of_s <= max(settled, default=float("-inf")) else room


# Parking


def _parks(terms: ParkTerms, situation: ParkSituation, waking: Iterable[str]) -> Iterator[str]:
    if any(program.stage is ParkStage.PARKING for program in situation.programs):
        return
    asked = [program for program in _held(situation) if program.asked]
    candidates = [*asked, *_chosen(terms, situation, frozenset(waking))]
    for program in candidates:
        if refusal_of(terms, situation, program) is None:
            yield program.key
            return


def _held(situation: ParkSituation) -> list[ParkProgram]:
    return [program for program in situation.programs if program.stage is ParkStage.HELD]


def _chosen(terms: ParkTerms, situation: ParkSituation, waking: frozenset[str]) -> Iterator[ParkProgram]:
    """Idle programs to be parked, the first first."""
    idle = sorted(
        (program for program in _held(situation) if _is_idle(terms, situation, program)),
        key=lambda program: (-program.idle_s, program.key),
    )
    if terms.eager:
        yield from idle
        return
    for need in needs_in_order(situation, waking):
        found = list(_for_need(terms, situation, need, idle))
        if not found and terms.oversubscribe and need.bytes is not None:
            others = (program for program in most_served_first(situation) if program not in idle)
            served = [program for program in others if _had_its_turn(terms, situation, program, need)]
            found = list(_for_need(terms, situation, need, [*idle, *served]))
        yield from found


def _had_its_turn(terms: ParkTerms, situation: ParkSituation, program: ParkProgram, need: RoomNeed) -> bool:
    return can_take_turns(terms, situation, program, need) and (
        situation.now_s >= turn_end_s(terms, situation, program, need)
    )


def can_take_turns(terms: ParkTerms, situation: ParkSituation, program: ParkProgram, need: RoomNeed) -> bool:
    """Whether the program may make room for the one that waits, and could come back in its place."""
    if refusal_of(terms, situation, program) is not None or situation.host is None:
        return False
    in_host = any(one.key == need.id and one.stage is ParkStage.PARKED for one in situation.programs)
    comes_bytes = 0 if in_host else need.bytes or 0
    return program.bytes + comes_bytes <= situation.host.budget_bytes(terms.host_reserve_percent)


def _is_idle(terms: ParkTerms, situation: ParkSituation, program: ParkProgram) -> bool:
    since_s = program.resident_since_s
    return (
        terms.idle_after_s > 0
        and program.idle_s >= terms.idle_after_s
        and (since_s is None or situation.now_s - since_s >= terms.min_residence_s)
        and refusal_of(terms, situation, program) is None
    )


def needs_in_order(situation: ParkSituation, waking: frozenset[str]) -> Iterator[RoomNeed]:
    """Programs that wait to be brought back, then the others, each in the order of waiting."""
    for program in waiters(situation):
        if program.key not in waking:
            for device, needed in program.memory.items():
                yield RoomNeed((device,), needed, program.wakes_since_s or 0.0, id=program.key)
    yield from sorted(situation.claims.needs, key=lambda need: need.since_s)


def _for_need(
    terms: ParkTerms, situation: ParkSituation, need: RoomNeed, idle: list[ParkProgram]
) -> Iterator[ParkProgram]:
    """What has to be parked for one need: on the devices where the least has to be moved; nothing if it cannot help."""
    options: list[tuple[int, str, list[ParkProgram]]] = []
    for device in need.devices:
        found = _to_empty(situation, device, idle) if need.bytes is None else None
        if need.bytes is not None:
            found = _to_free(terms, situation, device, need.bytes, idle)
        if found is not None:
            options.append((sum(program.bytes for program in found), device, found))
    options.sort(key=lambda option: option[:2])
    if len(options) >= need.number:
        for _, _, programs in options[: need.number]:
            yield from programs


def _to_free(
    terms: ParkTerms, situation: ParkSituation, device: str, needed: int, idle: list[ParkProgram]
) -> list[ParkProgram] | None:
    """None where it cannot be done or is not known; the longest idle programs first."""
    room = fresh_room(situation, device)
    if room is None:
        return None
    missing = needed + terms.gpu_reserve_bytes - room.free_bytes
    found: list[ParkProgram] = []
    for program in idle:
        if missing > 0 and device in program.memory:
            found.append(program)
            missing -= program.memory[device]
    return found if missing <= 0 else None


def _to_empty(situation: ParkSituation, device: str, idle: list[ParkProgram]) -> list[ParkProgram] | None:
    """None where a program that cannot be parked is on the device, or one is being brought back."""
    staying = {ParkStage.HELD, ParkStage.WAKING}
    there = [program for program in situation.programs if device in program.memory and program.stage in staying]
    return there if all(program in idle for program in there) else None


def _gib(amount: int) -> str:
    return f"{amount / GIB:.1f} GiB"
