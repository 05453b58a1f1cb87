"""Which programs make room on a GPU for one that needs it: idle ones, or those that have had their turn. Pure.

Host memory has to hold all of them, and programs that take turns have to be able to change places later.
"""

from collections.abc import Iterator

from gpucommons.parking.needs import is_parked
from gpucommons.parking.refusals import refusal_of
from gpucommons.parking.turns import can_change_places
from gpucommons.parking.values import ParkProgram, ParkSituation, ParkStage, ParkTerms, RoomNeed


def room_for(
    terms: ParkTerms, situation: ParkSituation, need: RoomNeed, others: list[ParkProgram], host_bytes: int
) -> Iterator[ParkProgram]:
    """What has to be parked for one need: on the devices where the least has to be moved; nothing if it cannot help.

    `others` may be parked, in this order, and host memory has so much room for them.
    """
    options: list[tuple[int, str, list[ParkProgram]]] = []
    for device in need.devices:
        if need.bytes is None:
            found = _to_empty(situation, device, others)
        else:
            needed = need.bytes + need.kept.get(device, 0)
            found = _to_free(terms, situation, device, needed, others, host_bytes)
        if found is not None:
            options.append((sum(program.bytes for program in found), device, found))
    options.sort(key=lambda option: option[:2])
    least = options[: need.number]
    if len(least) == need.number and sum(moved for moved, _, _ in least) <= host_bytes:
        for _, _, programs in least:
            yield from programs


def _to_free(
    terms: ParkTerms, situation: ParkSituation, device: str, needed: int, others: list[ParkProgram], host_bytes: int
) -> list[ParkProgram] | None:
    """None where it cannot be done or is not known."""
    room = situation.fresh_room(device)
    if room is None:
        return None
    missing = needed + terms.gpu_reserve_bytes - room.free_bytes
    found: list[ParkProgram] = []
    for program in others:
        if missing > 0 and device in program.memory and program.bytes <= host_bytes:
            found.append(program)
            missing -= program.memory[device]
            host_bytes -= program.bytes
    for program in tuple(found):
        # A later one may have made so much room that this one can stay.
        if missing + program.memory[device] <= 0:
            found.remove(program)
            missing += program.memory[device]
    return found if missing <= 0 else None


def _to_empty(situation: ParkSituation, device: str, others: list[ParkProgram]) -> list[ParkProgram] | None:
    """None where a program that cannot be parked is on the device, or one is being brought back."""
    staying = {ParkStage.HELD, ParkStage.WAKING}
    there = [program for program in situation.programs if device in program.memory and program.stage in staying]
    return there if all(program in others for program in there) else None


def room_in_turn(
    terms: ParkTerms, situation: ParkSituation, need: RoomNeed, idle: list[ParkProgram], served: list[ParkProgram]
) -> list[ParkProgram]:
    """What makes room for one need, so that all that are parked then can still come back in turns.

    A lease has to wait where that is not possible. For a program that waits, the first choice is taken then: it waits
    for the others in the same way.
    """
    host_bytes = _turn_budget(terms, situation, need)
    choices = []
    for at in range(len(served)):
        found = list(room_for(terms, situation, need, [*idle, *served[at:], *served[:at]], host_bytes))
        devices = {device for program in found for device in program.memory}
        if found and all(can_take_turns_after(terms, situation, need, found, device) for device in devices):
            return found
        choices.append(found)
    return choices[0] if choices and is_parked(situation, need) else []


def can_take_turns_after(
    terms: ParkTerms, situation: ParkSituation, need: RoomNeed, leaving: list[ParkProgram], device: str
) -> bool:
    """Whether all that are parked can come back in turns, once these have left for the one that waits."""
    room = situation.fresh_room(device)
    there = [program for program in situation.programs if device in program.memory and program.key != need.id]
    parked = [program.bytes for program in there if program in leaving or program.stage is ParkStage.PARKED]
    staying = [
        one.bytes for one in there if one.stage is ParkStage.HELD and one not in leaving and one.obstacle is None
    ]
    needed = need.bytes or 0
    left = sum(program.bytes for program in leaving)
    free = (0 if room is None else room.free_bytes) - situation.claims.promised.get(device, 0)
    free += left - needed - terms.gpu_reserve_bytes
    host = situation.host_budget(terms) - left + (needed if is_parked(situation, need) else 0)
    return can_change_places(parked, [*staying, needed], free, host)


def can_take_turns(terms: ParkTerms, situation: ParkSituation, program: ParkProgram, need: RoomNeed) -> bool:
    """Whether the program may make room for the one that waits, and could come back in its place."""
    refusal = refusal_of(terms, situation, program)
    return refusal is None and program.bytes <= _turn_budget(terms, situation, need)


def _turn_budget(terms: ParkTerms, situation: ParkSituation, need: RoomNeed) -> int:
    """The host memory for programs that make room: one that comes into their place has to be parked for them later."""
    return situation.host_budget(terms) - (0 if is_parked(situation, need) else need.bytes or 0)


def can_have_room(terms: ParkTerms, situation: ParkSituation, program: ParkProgram) -> bool:
    """Whether others could make room for it now, if they had had their turns; or are about to."""
    if any(
        one.stage is ParkStage.PARKING and not one.memory.keys().isdisjoint(program.memory)
        for one in situation.programs
    ):
        return True
    others = [one for one in situation.held if refusal_of(terms, situation, one) is None]
    host = situation.host_budget(terms)
    return all(
        _to_free(terms, situation, device, needed, others, host) is not None
        for device, needed in program.memory.items()
    )
