"""Which room on a GPU is kept for programs that come back: a lease must not take what was made for another. Pure."""

from collections.abc import Iterator, Mapping

from gpucommons.parking.making_room import can_take_turns_after
from gpucommons.parking.needs import made_room_for, needs_before, waiters
from gpucommons.parking.values import ParkProgram, ParkSituation, ParkStage, ParkTerms


def kept_rooms(terms: ParkTerms, situation: ParkSituation) -> Mapping[str, frozenset[str]]:
    """Which room is kept: a lease must not take what was made for another.

    Where programs take turns, one of them always waits. A lease may then have the room that is free, if those that are
    parked can still come back in turns.
    """
    moving = [program for program in situation.programs if program.stage is ParkStage.PARKING]
    making = {device for program in moving for device in program.memory}
    found = {program.key: frozenset({program.made_for}) for program in moving if program.made_for}
    for program in situation.programs:
        if program.stage is ParkStage.PARKED and program.wakes_since_s is None and made_room_for(situation, program):
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
            can_take_turns_after(terms, situation, need, [], device)
            for device in program.memory
            if device in need.devices
        ):
            yield need.id


def _fits(terms: ParkTerms, situation: ParkSituation, program: ParkProgram) -> bool:
    rooms = {device: situation.fresh_room(device) for device in program.memory}
    return all(
        room is None or room.free_bytes >= program.memory[device] + terms.gpu_reserve_bytes
        for device, room in rooms.items()
    )
