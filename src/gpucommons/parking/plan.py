"""Which program is parked next and which is brought back next. Pure.

1. A program is brought back only where NVML shows the room for it, for what leases were promised and do not use yet,
   and for a reserve, in a reading that is younger than the last move on that device: a restore that runs out of memory
   strands the program for good.
2. One restore at a time on a device. The program that has waited longest comes first; no later one passes it, unless
   host memory cannot hold the programs that would have to make room for it: those that pass give host memory back.
3. One program is parked at a time on the node: the next one is decided with the host memory that is then left.
4. A program is parked if its owner asks, or if it was idle for `idle_after_s` and either `eager` is set or another
   program, lease or client waits for its room, and parking makes that room. A program that waits to be brought back
   comes before leases and clients; one that made room for one of them comes after it.
5. A program that was brought back stays for `min_residence_s`, unless its owner asks.
6. With `oversubscribe`, programs that do not fit together take turns: where idle programs do not make the room for one
   that waits, a working one does, once it has had its turn (turns.py). A lease has to wait where those that are parked
   could not come back in turns then, within host memory (making_room.py).
7. Room that is made for one is kept from the others (kept.py).
8. A program that cannot come back, or that host memory or its container cannot hold, is refused (refusals.py).
"""

from collections.abc import Iterable, Iterator, Mapping

from gpucommons.parking.kept import kept_rooms
from gpucommons.parking.making_room import can_have_room, can_take_turns, room_for, room_in_turn
from gpucommons.parking.needs import needs_before, needs_in_order, waiters
from gpucommons.parking.refusals import gib_text, refusal_of
from gpucommons.parking.turns import most_served_first, turn_end_s
from gpucommons.parking.values import ParkPlan, ParkProgram, ParkSituation, ParkStage, ParkTerms, RoomNeed


def plan(terms: ParkTerms, situation: ParkSituation) -> ParkPlan:
    wake, waits = _wakes(terms, situation)
    refused = {
        program.key: refusal
        for program in situation.held
        if program.asked and (refusal := refusal_of(terms, situation, program)) is not None
    }
    parks = dict(_parks(terms, situation, wake))
    made_for = {key: need for key, need in parks.items() if need}
    return ParkPlan(tuple(parks), wake, waits, refused, kept_rooms(terms, situation), made_for)


def _wakes(terms: ParkTerms, situation: ParkSituation) -> tuple[tuple[str, ...], Mapping[str, str]]:
    taken = {device for program in situation.programs if program.stage is ParkStage.WAKING for device in program.memory}
    wake: list[str] = []
    waits: dict[str, str] = {}
    for program in waiters(situation):
        if not taken.isdisjoint(program.memory):
            waits[program.key] = "another program is brought back first"
        elif (obstacle := _no_room(terms, situation, program)) is not None:
            waits[program.key] = obstacle
            if terms.oversubscribe and not can_have_room(terms, situation, program):
                # Those that come back meanwhile give host memory back.
                waits[program.key] += "; host memory cannot hold the programs that would have to make room"
                continue
        else:
            wake.append(program.key)
        taken.update(program.memory)
    return tuple(wake), waits


def _no_room(terms: ParkTerms, situation: ParkSituation, program: ParkProgram) -> str | None:
    for device, needed in program.memory.items():
        room = situation.fresh_room(device)
        if room is None:
            return "the free memory of its GPU is not known yet"
        before = sum(need.bytes or 0 for need in needs_before(situation, program) if device in need.devices)
        claimed = situation.claims.promised.get(device, 0) + before
        if room.free_bytes < needed + claimed + terms.gpu_reserve_bytes:
            others = f", {gib_text(claimed)} for leases and clients that come first" if claimed else ""
            return (
                f"it needs {gib_text(needed)}{others} and a reserve of {gib_text(terms.gpu_reserve_bytes)}, "
                f"{gib_text(room.free_bytes)} is free"
            )
    return None


def _parks(terms: ParkTerms, situation: ParkSituation, waking: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The program that is parked now, and the need for which it is."""
    if any(program.stage is ParkStage.PARKING for program in situation.programs):
        return
    asked = [(program, "") for program in situation.held if program.asked]
    for program, need in (*asked, *_chosen(terms, situation, frozenset(waking))):
        if refusal_of(terms, situation, program) is None:
            yield program.key, need
            return


def _chosen(terms: ParkTerms, situation: ParkSituation, waking: frozenset[str]) -> Iterator[tuple[ParkProgram, str]]:
    """Programs to be parked, the first first, each with the need for which it makes room."""
    idle = sorted(
        (program for program in situation.held if _is_idle(terms, situation, program)),
        key=lambda program: (-program.idle_s, program.key),
    )
    if terms.eager:
        yield from ((program, "") for program in idle)
        return
    for need in needs_in_order(situation, waking):
        found = list(room_for(terms, situation, need, idle, situation.host_budget(terms)))
        if not found and terms.oversubscribe and need.bytes is not None:
            others = (program for program in most_served_first(situation) if program not in idle)
            served = [program for program in others if _had_its_turn(terms, situation, program, need)]
            found = room_in_turn(terms, situation, need, idle, served)
        yield from ((program, need.id) for program in found)


def _had_its_turn(terms: ParkTerms, situation: ParkSituation, program: ParkProgram, need: RoomNeed) -> bool:
    return can_take_turns(terms, situation, program, need) and (
        situation.now_s >= turn_end_s(terms, situation, program, need)
    )


def _is_idle(terms: ParkTerms, situation: ParkSituation, program: ParkProgram) -> bool:
    since_s = program.resident_since_s
    return (
        terms.idle_after_s > 0
        and program.idle_s >= terms.idle_after_s
        and (since_s is None or situation.now_s - since_s >= terms.min_residence_s)
        and refusal_of(terms, situation, program) is None
    )
