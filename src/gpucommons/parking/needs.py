"""What waits for room on a GPU, and in which order. Pure."""

import math
from collections.abc import Iterator
from typing import Final

from gpucommons.parking.values import ParkProgram, ParkSituation, ParkStage, RoomNeed

# How long a program that made room for another waits for that one to take the room.
_YIELDS_S: Final = 30.0


def waiters(situation: ParkSituation) -> list[ParkProgram]:
    """Those that wait to be brought back, the longest first."""
    found = [
        (program.wakes_since_s, program.key, program)
        for program in situation.programs
        if program.stage is ParkStage.PARKED and program.wakes_since_s is not None
    ]
    return [program for _, _, program in sorted(found, key=lambda row: row[:2])]


def needs_in_order(situation: ParkSituation, waking: frozenset[str]) -> Iterator[RoomNeed]:
    """Programs that wait to be brought back, then the others, each in the order of waiting."""
    for program in waiters(situation):
        if program.key not in waking:
            for device, needed in program.memory.items():
                yield RoomNeed((device,), needed, program.wakes_since_s or 0.0, id=program.key)
    yield from sorted(situation.claims.needs, key=lambda need: need.since_s)


def needs_before(situation: ParkSituation, program: ParkProgram) -> list[RoomNeed]:
    """Those that come before a program that waits: the one for which it made room, unless its user goes on."""
    return made_room_for(situation, program) if program.for_turn else []


def made_room_for(situation: ParkSituation, program: ParkProgram) -> list[RoomNeed]:
    """The need for which the program made room, as long as that waits; it has some time to take the room."""
    makers = [one for one in situation.programs if one.made_for == program.made_for != ""]
    moving = any(one.stage is ParkStage.PARKING for one in makers)
    if not moving and situation.now_s - max((one.settled_s for one in makers), default=-math.inf) > _YIELDS_S:
        return []
    return [need for need in situation.claims.needs if need.id == program.made_for]


def is_parked(situation: ParkSituation, need: RoomNeed) -> bool:
    return any(one.key == need.id and one.stage is ParkStage.PARKED for one in situation.programs)
