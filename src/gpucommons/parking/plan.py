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

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from gpucommons.parking.turns import can_change_places, most_served_first, turn_end_s
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

# How long a program that made room for another waits for that one to take the room.
_YIELDS_S: Final = 30.0


def plan(terms: ParkTerms, situation: ParkSituation) -> ParkPlan:
    wake, waits = _wakes(terms, situation)
    refused = {
        program.key: refusal
        for program in _held(situation)
        if program.asked and (refusal := refusal_of(terms, situation, program)) is not None
    }
    parks = dict(_parks(terms, situation, wake))
    made_for = {key: need for key, need in parks.items() if need}
    return ParkPlan(tuple(parks), wake, waits, refused, _claims(terms, situation), made_for)


def refusal_of(terms: ParkTerms, situation: ParkSituation, program: ParkProgram) -> ParkRefusal | None:
    """Why this program cannot be parked now; None where it can."""
    if program.obstacle is not None:
        return program.obstacle
    if not all(_would_fit(terms, situation, program, device) for device in program.memory):
        return ParkRefusal(
            WhyNot.GPU_MEMORY,
            f"it could not come back: it fills its GPU, and {_gib(terms.gpu_reserve_bytes)} has to stay free",
        )
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


def _would_fit(terms: ParkTerms, situation: ParkSituation, program: ParkProgram, device: str) -> bool:
    """Whether it fits again with the reserve, once all others have left; also where that is not known."""
    room = situation.rooms.get(device)
    if room is None:
        return True
    on_gpu = (one for one in situation.programs if one.stage is not ParkStage.PARKED and one.key != program.key)
    others = sum(one.memory.get(device, 0) for one in on_gpu)
    return room.free_bytes + others >= terms.gpu_reserve_bytes


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
            if terms.oversubscribe and not _can_have_room(terms, situation, program):
                # Those that come back meanwhile give host memory back.
                waits[program.key] += "; host memory cannot hold the programs that would have to make room"
                continue
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
        before = sum(need.bytes or 0 for need in needs_before(situation, program) if device in need.devices)
        claimed = situation.claims.promised.get(device, 0) + before
        if room.free_bytes < needed + claimed + terms.gpu_reserve_bytes:
            others = f", {_gib(claimed)} for leases and clients that come first" if claimed else ""
            return (
                f"it needs {_gib(needed)}{others} and a reserve of {_gib(terms.gpu_reserve_bytes)}, "
                f"{_gib(room.free_bytes)} is free"
            )
    return None


def _can_have_room(terms: ParkTerms, situation: ParkSituation, program: ParkProgram) -> bool:
    """Whether others could make room for it now, if they had had their turns; or are about to."""
    if any(
        one.stage is ParkStage.PARKING and not one.memory.keys().isdisjoint(program.memory)
        for one in situation.programs
    ):
        return True
    others = [one for one in _held(situation) if refusal_of(terms, situation, one) is None]
    host = _host_budget(terms, situation)
    return all(
        _to_free(terms, situation, device, needed, others, host) is not None
        for device, needed in program.memory.items()
    )


def needs_before(situation: ParkSituation, program: ParkProgram) -> list[RoomNeed]:
    """Those that come before a program that waits: the one for which it made room, unless its user goes on."""
    return _made_room_for(situation, program) if program.for_turn else []


def _made_room_for(situation: ParkSituation, program: ParkProgram) -> list[RoomNeed]:
    """The need for which the program made room, as long as that waits; it has some time to take the room."""
    makers = [one for one in situation.programs if one.made_for == program.made_for != ""]
    moving = any(one.stage is ParkStage.PARKING for one in makers)
    if not moving and situation.now_s - max((one.settled_s for one in makers), default=-math.inf) > _YIELDS_S:
        return []
    return [need for need in situation.claims.needs if need.id == program.made_for]


def _claims(terms: ParkTerms, situation: ParkSituation) -> Mapping[str, frozenset[str]]:
    """Which room is kept: a lease must not take what was made for another.

    Where programs take turns, one of them always waits. A lease may then have the room that is free, if those that are
    parked can still come back in turns.
    """
    moving = [program for program in situation.programs if program.stage is ParkStage.PARKING]
    making = {device for program in moving for device in program.memory}
    found = {program.key: frozenset({program.made_for}) for program in moving if program.made_for}
    for program in situation.programs:
        if program.stage is ParkStage.PARKED and program.wakes_since_s is None and _made_room_for(situation, program):
            found[program.key] = frozenset({program.made_for})
    for program in waiters(situation):
        before = {need.id for need in needs_before(situation, program)}
        is_next = not making.isdisjoint(program.memory) or _fits(terms, situation, program)
        if terms.oversubscribe and not is_next:
            before |= set(_harmless(terms, situation, program))
        if terms.oversubscribe or is_next:
            found[program.key] = frozenset(before)
    return found


def _harmless(terms: ParkTerms, situation: ParkSituation, program: ParkProgram) -> Iterator[str]:
    for need in situation.claims.needs:
        if need.bytes is not None and all(
            _can_take_turns_after(terms, situation, need, [], device)
            for device in program.memory
            if device in need.devices
        ):
            yield need.id


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


def _parks(terms: ParkTerms, situation: ParkSituation, waking: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The program that is parked now, and the need for which it is."""
    if any(program.stage is ParkStage.PARKING for program in situation.programs):
        return
    asked = [(program, "") for program in _held(situation) if program.asked]
    for program, need in (*asked, *_chosen(terms, situation, frozenset(waking))):
        if refusal_of(terms, situation, program) is None:
            yield program.key, need
            return


def _held(situation: ParkSituation) -> list[ParkProgram]:
    return [program for program in situation.programs if program.stage is ParkStage.HELD]


def _chosen(terms: ParkTerms, situation: ParkSituation, waking: frozenset[str]) -> Iterator[tuple[ParkProgram, str]]:
    """Programs to be parked, the first first, each with the need for which it makes room."""
    idle = sorted(
        (program for program in _held(situation) if _is_idle(terms, situation, program)),
        key=lambda program: (-program.idle_s, program.key),
    )
    if terms.eager:
        yield from ((program, "") for program in idle)
        return
    for need in needs_in_order(situation, waking):
        found = list(_for_need(terms, situation, need, idle, _host_budget(terms, situation)))
        if not found and terms.oversubscribe and need.bytes is not None:
            others = (program for program in most_served_first(situation) if program not in idle)
            served = [program for program in others if _had_its_turn(terms, situation, program, need)]
            found = _for_turn(terms, situation, need, idle, served)
        yield from ((program, need.id) for program in found)


def _for_turn(
    terms: ParkTerms, situation: ParkSituation, need: RoomNeed, idle: list[ParkProgram], served: list[ParkProgram]
) -> list[ParkProgram]:
    """What makes room for one need, so that all that are parked then can still come back in turns.

    A lease has to wait where that is not possible. For a program that waits, the first choice is taken then: it waits
    for the others in the same way.
    """
    host_bytes = _turn_budget(terms, situation, need)
    choices = []
    for at in range(len(served)):
        found = list(_for_need(terms, situation, need, [*idle, *served[at:], *served[:at]], host_bytes))
        device = next((device for program in found for device in program.memory), "")
        if found and _can_take_turns_after(terms, situation, need, found, device):
            return found
        choices.append(found)
    return choices[0] if choices and _is_parked(situation, need) else []


def _can_take_turns_after(
    terms: ParkTerms, situation: ParkSituation, need: RoomNeed, leaving: list[ParkProgram], device: str
) -> bool:
    """Whether all that are parked can come back in turns, once these have left for the one that waits."""
    room = fresh_room(situation, device)
    there = [program for program in situation.programs if device in program.memory and program.key != need.id]
    parked = [program.bytes for program in there if program in leaving or program.stage is ParkStage.PARKED]
    staying = [
        one.bytes for one in there if one.stage is ParkStage.HELD and one not in leaving and one.obstacle is None
    ]
    needed = need.bytes or 0
    left = sum(program.bytes for program in leaving)
    free = (0 if room is None else room.free_bytes) + left - needed - terms.gpu_reserve_bytes
    host = _host_budget(terms, situation) - left + (needed if _is_parked(situation, need) else 0)
    return can_change_places(parked, [*staying, needed], free, host)


def _is_parked(situation: ParkSituation, need: RoomNeed) -> bool:
    return any(one.key == need.id and one.stage is ParkStage.PARKED for one in situation.programs)


def _had_its_turn(terms: ParkTerms, situation: ParkSituation, program: ParkProgram, need: RoomNeed) -> bool:
    return can_take_turns(terms, situation, program, need) and (
        situation.now_s >= turn_end_s(terms, situation, program, need)
    )


def can_take_turns(terms: ParkTerms, situation: ParkSituation, program: ParkProgram, need: RoomNeed) -> bool:
    """Whether the program may make room for the one that waits, and could come back in its place."""
    refusal = refusal_of(terms, situation, program)
    return refusal is None and program.bytes <= _turn_budget(terms, situation, need)


def _turn_budget(terms: ParkTerms, situation: ParkSituation, need: RoomNeed) -> int:
    """The host memory for programs that make room: one that comes into their place has to be parked for them later."""
    return _host_budget(terms, situation) - (0 if _is_parked(situation, need) else need.bytes or 0)


def _host_budget(terms: ParkTerms, situation: ParkSituation) -> int:
    return 0 if situation.host is None else situation.host.budget_bytes(terms.host_reserve_percent)


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
    terms: ParkTerms, situation: ParkSituation, need: RoomNeed, others: list[ParkProgram], host_bytes: int
) -> Iterator[ParkProgram]:
    """What has to be parked for one need: on the devices where the least has to be moved; nothing if it cannot help.

    `others` may be parked, in this order, and host memory has so much room for them.
    """
    options: list[tuple[int, str, list[ParkProgram]]] = []
    for device in need.devices:
        found = _to_empty(situation, device, others) if need.bytes is None else None
        if need.bytes is not None:
            found = _to_free(terms, situation, device, need.bytes, others, host_bytes)
        if found is not None and sum(program.bytes for program in found) <= host_bytes:
            options.append((sum(program.bytes for program in found), device, found))
    options.sort(key=lambda option: option[:2])
    if len(options) >= need.number:
        for _, _, programs in options[: need.number]:
            yield from programs


def _to_free(
    terms: ParkTerms, situation: ParkSituation, device: str, needed: int, others: list[ParkProgram], host_bytes: int
) -> list[ParkProgram] | None:
    """None where it cannot be done or is not known."""
    room = fresh_room(situation, device)
    if room is None:
        return None
    missing = needed + terms.gpu_reserve_bytes - room.free_bytes
    found: list[ParkProgram] = []
    for program in others:
        if missing > 0 and device in program.memory and program.bytes <= host_bytes:
            found.append(program)
            missing -= program.memory[device]
            host_bytes -= program.bytes
    return found if missing <= 0 else None


def _to_empty(situation: ParkSituation, device: str, others: list[ParkProgram]) -> list[ParkProgram] | None:
    """None where a program that cannot be parked is on the device, or one is being brought back."""
    staying = {ParkStage.HELD, ParkStage.WAKING}
    there = [program for program in situation.programs if device in program.memory and program.stage in staying]
    return there if all(program in others for program in there) else None


def _gib(amount: int) -> str:
    return f"{amount / GIB:.1f} GiB"
