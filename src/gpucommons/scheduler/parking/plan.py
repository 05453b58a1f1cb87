"""Which program is parked next and which is brought back next. Pure.

1. A program is brought back only where NVML shows the room for it, for what leases were promised and do not use yet,
   and for a reserve, in a reading that is younger than the last move on that device: a restore that runs out of
   memory strands the program for good.
2. One restore at a time on a device. The program that has waited longest comes first; no later one passes it, unless
   the programs that would have to make room for it have to stay, or host memory cannot hold them: those that pass give
   host memory back.
3. One program is parked at a time on the node: the next one is decided with the host memory that is then left. For a
   program that is held until it has room, four are: the driver copies the memory of each in a thread of its own, and
   four of them are 2.5 times as fast as one.
4. A program is parked if its owner asks, or if it was idle for `idle_after_s` and either `eager` is set or another
   program, lease or client waits for its room, and parking makes that room. A program that waits to be brought back
   comes before leases and clients; one that made room for one of them comes after it. For programs that have just
   started (arrivals.py) a shorter idle time counts.
5. A program of class background makes room for those of other classes while it works, after idle ones. It comes back
   as soon as there is room, after all others that wait, and not next to a program of another class that may still grow.
6. Jobs that hold more memory than goes with their shards make room before all others.
7. A program that was brought back stays for `min_residence_s`, and one of class latency stays, unless its owner asks.

The parts below answer in this order: why a program cannot be parked; what waits for room; which programs make room;
which room is kept for programs that come back; the plan; and, for people, when those that wait will have room.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from gpucommons.model.host import GIB
from gpucommons.scheduler.parking.turns import (
    IN_BYTES_S,
    OUT_BYTES_S,
    can_change_places,
    most_served_first,
    programs_at_work,
    turn_end_s,
)
from gpucommons.scheduler.parking.values import (
    ParkPlan,
    ParkRefusal,
    ParkSituation,
    ParkStage,
    ParkTerms,
    PlannedProgram,
    RoomNeed,
    WhyNot,
)


def refusal_of(terms: ParkTerms, situation: ParkSituation, program: PlannedProgram) -> ParkRefusal | None:
    """Why this program cannot be parked now; None where it can."""
    if program.obstacle is not None:
        return program.obstacle
    if not all(_would_fit(terms, situation, program, device) for device in program.memory):
        return ParkRefusal(
            WhyNot.GPU_MEMORY,
            f"it could not come back: it fills its GPU, and {gib_text(terms.gpu_reserve_bytes)} has to stay free",
        )
    if situation.host is None:
        return ParkRefusal(WhyNot.HOST_MEMORY, "the memory of the host could not be read")
    budget = situation.host.budget_bytes(terms.host_reserve_percent)
    if program.bytes > budget:
        return ParkRefusal(
            WhyNot.HOST_MEMORY,
            f"it needs {gib_text(program.bytes)} of host memory, {gib_text(budget)} can be used; "
            "parking.host_reserve_percent keeps the rest free",
        )
    room = program.container_room_bytes
    if room is None:
        return ParkRefusal(
            WhyNot.CONTAINER_MEMORY,
            "the memory limit of its container is not known: the agent does not see that cgroup; "
            "an agent in a container needs the host's /sys/fs/cgroup mounted",
        )
    if program.bytes > room:
        return ParkRefusal(
            WhyNot.CONTAINER_MEMORY,
            f"it needs {gib_text(program.bytes)} of host memory, "
            f"the memory limit of its container leaves {gib_text(room)}",
        )
    return None


def _would_fit(terms: ParkTerms, situation: ParkSituation, program: PlannedProgram, device: str) -> bool:
    """Whether it fits again with the reserve, once all others have left; also where that is not known."""
    room = situation.rooms.get(device)
    if room is None:
        return True
    on_gpu = (other for other in situation.programs if other.stage is not ParkStage.PARKED and other.key != program.key)
    others = sum(other.memory.get(device, 0) for other in on_gpu)
    return room.free_bytes + others >= terms.gpu_reserve_bytes


def gib_text(amount: float) -> str:
    return f"{amount / GIB:.1f} GiB"


# What waits for room on a GPU, and in which order. Pure.

# How many programs are parked at once for one that is held.
_MAX_AT_ONCE: Final = 4
# How long a program that made room for another waits for that one to take the room.
_YIELDS_S: Final = 30.0


def waiters(situation: ParkSituation) -> list[PlannedProgram]:
    """Those that wait to be brought back, the longest first; after them those of class background."""
    waiting = [
        (program.is_background, program.wakes_since_s, program.key, program)
        for program in situation.programs
        if program.stage is ParkStage.PARKED and program.wakes_since_s is not None
    ]
    return [program for *_, program in sorted(waiting, key=lambda row: row[:3])]


def needs_in_order(situation: ParkSituation, waking: frozenset[str]) -> list[RoomNeed]:
    """Programs that wait to be brought back, then the others, each in the order of waiting; then the same of class
    background."""
    of_programs = [
        RoomNeed((device,), needed, program.wakes_since_s or 0.0, id=program.key, of_background=program.is_background)
        for program in waiters(situation)
        if program.key not in waking
        for device, needed in program.memory.items()
    ]
    needs = [*of_programs, *sorted(situation.claims.needs, key=lambda need: need.since_s)]
    return sorted(needs, key=lambda need: need.of_background)


def needs_before(situation: ParkSituation, program: PlannedProgram) -> list[RoomNeed]:
    """Those that come before a program that waits: the one for which it made room, unless its user goes on."""
    return needs_of_maker(situation, program) if program.for_turn else []


def needs_of_maker(situation: ParkSituation, program: PlannedProgram) -> list[RoomNeed]:
    """The need for which the program made room, as long as that waits; it has some time to take the room."""
    makers = [maker for maker in situation.programs if maker.made_for == program.made_for != ""]
    moving = any(maker.stage is ParkStage.PARKING for maker in makers)
    if not moving and situation.now_s - max((maker.settled_s for maker in makers), default=-math.inf) > _YIELDS_S:
        return []
    return [need for need in situation.claims.needs if need.id == program.made_for]


def is_parked(situation: ParkSituation, need: RoomNeed) -> bool:
    return any(program.key == need.id and program.stage is ParkStage.PARKED for program in situation.programs)


# Which programs make room on a GPU for one that needs it: idle ones, those of class background, or those that have had
# their turn. Pure.
#
# Host memory has to hold all of them, and programs that take turns have to be able to change places later.


def room_for(
    terms: ParkTerms, situation: ParkSituation, need: RoomNeed, others: list[PlannedProgram], host_bytes: int
) -> Iterator[PlannedProgram]:
    """What has to be parked for one need: on the devices where the least has to be moved; nothing if it cannot help.

    `others` may be parked, in this order, and host memory has so much room for them.
    """
    options: list[tuple[int, str, list[PlannedProgram]]] = []
    for device in need.devices:
        if need.bytes is None:
            leaving = _to_empty(situation, device, others)
        else:
            needed = need.bytes + need.kept.get(device, 0)
            leaving = _to_free(terms, situation, device, needed, others, host_bytes)
        if leaving is not None:
            options.append((sum(program.bytes for program in leaving), device, leaving))
    options.sort(key=lambda option: option[:2])
    least = options[: need.number]
    if len(least) == need.number and sum(moved for moved, _, _ in least) <= host_bytes:
        for _, _, programs in least:
            yield from programs


def _to_free(
    terms: ParkTerms, situation: ParkSituation, device: str, needed: int, others: list[PlannedProgram], host_bytes: int
) -> list[PlannedProgram] | None:
    """None where it cannot be done or is not known."""
    room = situation.fresh_room(device)
    if room is None:
        return None
    missing = needed + terms.gpu_reserve_bytes - room.free_bytes
    leaving: list[PlannedProgram] = []
    for program in others:
        if missing > 0 and device in program.memory and program.bytes <= host_bytes:
            leaving.append(program)
            missing -= program.memory[device]
            host_bytes -= program.bytes
    for program in tuple(leaving):
        # A later one may have made so much room that this one can stay.
        if missing + program.memory[device] <= 0:
            leaving.remove(program)
            missing += program.memory[device]
    return leaving if missing <= 0 else None


def _to_empty(situation: ParkSituation, device: str, others: list[PlannedProgram]) -> list[PlannedProgram] | None:
    """None where a program that cannot be parked is on the device, or one is being brought back."""
    staying = {ParkStage.RESIDENT, ParkStage.WAKING}
    there = [program for program in situation.programs if device in program.memory and program.stage in staying]
    return there if all(program in others for program in there) else None


def room_in_turn(
    terms: ParkTerms, situation: ParkSituation, need: RoomNeed, idle: list[PlannedProgram], served: list[PlannedProgram]
) -> list[PlannedProgram]:
    """What makes room for one need, so that all that are parked then can still come back in turns.

    A lease has to wait where that is not possible. For a program that waits, the first choice is taken then: it waits
    for the others in the same way.
    """
    host_bytes = _turn_budget(terms, situation, need)
    choices = []
    for at in range(len(served)):
        leaving = list(room_for(terms, situation, need, [*idle, *served[at:], *served[:at]], host_bytes))
        devices = {device for program in leaving for device in program.memory}
        if leaving and all(can_take_turns_after(terms, situation, need, leaving, device) for device in devices):
            return leaving
        choices.append(leaving)
    return choices[0] if choices and is_parked(situation, need) else []


def can_take_turns_after(
    terms: ParkTerms, situation: ParkSituation, need: RoomNeed, leaving: list[PlannedProgram], device: str
) -> bool:
    """Whether all that are parked can come back in turns, once these have left for the one that waits."""
    room = situation.fresh_room(device)
    there = [program for program in situation.programs if device in program.memory and program.key != need.id]
    parked = [program.bytes for program in there if program in leaving or program.stage is ParkStage.PARKED]
    staying = [
        program.bytes
        for program in there
        if program.stage is ParkStage.RESIDENT
        and program not in leaving
        and program.obstacle is None
        and not program.is_latency
    ]
    needed = need.bytes or 0
    left = sum(program.bytes for program in leaving)
    free = (0 if room is None else room.free_bytes) - situation.claims.promised.get(device, 0)
    free += left - needed - terms.gpu_reserve_bytes
    host = situation.host_budget(terms) - left + (needed if is_parked(situation, need) else 0)
    return can_change_places(parked, [*staying, needed], free, host)


def can_take_turns(terms: ParkTerms, situation: ParkSituation, program: PlannedProgram, need: RoomNeed) -> bool:
    """Whether the program may make room for the one that waits, and could come back in its place."""
    return (
        (program.is_background or not need.of_background)
        and _may_leave(terms, situation, program)
        and program.bytes <= _turn_budget(terms, situation, need)
    )


def _may_leave(terms: ParkTerms, situation: ParkSituation, program: PlannedProgram) -> bool:
    """Whether the program may be parked although its owner did not ask for it."""
    return not program.is_latency and refusal_of(terms, situation, program) is None


def _turn_budget(terms: ParkTerms, situation: ParkSituation, need: RoomNeed) -> int:
    """The host memory for programs that make room: one that comes into their place has to be parked for them later."""
    return situation.host_budget(terms) - (0 if is_parked(situation, need) else need.bytes or 0)


def can_have_room(terms: ParkTerms, situation: ParkSituation, program: PlannedProgram) -> bool:
    """Whether others could make room for it now, if they had had their turns; or are about to."""
    if any(
        other.stage is ParkStage.PARKING and not other.memory.keys().isdisjoint(program.memory)
        for other in situation.programs
    ):
        return True
    others = [
        other
        for other in situation.resident
        if (other.is_background or not program.is_background) and _may_leave(terms, situation, other)
    ]
    host = situation.host_budget(terms)
    return all(
        _to_free(terms, situation, device, needed, others, host) is not None
        for device, needed in program.memory.items()
    )


def kept_rooms(terms: ParkTerms, situation: ParkSituation) -> Mapping[str, frozenset[str]]:
    """Which room is kept: a lease must not take what was made for another.

    Where programs take turns, one of them always waits. A lease may then have the room that is free, if those that are
    parked can still come back in turns.
    """
    moving = [program for program in situation.programs if program.stage is ParkStage.PARKING]
    making = {device for program in moving for device in program.memory}
    kept = {program.key: frozenset({program.made_for}) for program in moving if program.made_for}
    for program in situation.programs:
        if program.stage is ParkStage.PARKED and program.wakes_since_s is None and needs_of_maker(situation, program):
            kept[program.key] = frozenset({program.made_for})
    for program in waiters(situation):
        before = {need.id for need in needs_before(situation, program)}
        is_next = not making.isdisjoint(program.memory) or _fits(terms, situation, program)
        if terms.oversubscribe and not is_next:
            before |= set(_harmless(terms, situation, program))
        if (terms.oversubscribe and not program.is_background) or is_next:
            kept[program.key] = frozenset(before)
    return kept


def _harmless(terms: ParkTerms, situation: ParkSituation, program: PlannedProgram) -> Iterator[str]:
    for need in situation.claims.needs:
        if need.bytes is not None and all(
            can_take_turns_after(terms, situation, need, [], device)
            for device in program.memory
            if device in need.devices
        ):
            yield need.id


def _fits(terms: ParkTerms, situation: ParkSituation, program: PlannedProgram) -> bool:
    rooms = {device: situation.fresh_room(device) for device in program.memory}
    return all(
        room is None or room.free_bytes >= program.memory[device] + terms.gpu_reserve_bytes
        for device, room in rooms.items()
    )


def plan(terms: ParkTerms, situation: ParkSituation) -> ParkPlan:
    wake, waits = _wakes(terms, situation)
    refused = {
        program.key: refusal
        for program in situation.resident
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
        if not program.touched and not situation.settling.isdisjoint(program.memory):
            waits[program.key] = "a program starts on its GPU; it comes back after that, or when it is used"
            continue
        if program.is_background and not program.touched and _may_others_grow(situation, program):
            waits[program.key] = "a program of another class has just started on its GPU, and may need more memory"
            continue
        if not taken.isdisjoint(program.memory):
            waits[program.key] = "another program is brought back first"
        elif (obstacle := _no_room(terms, situation, program)) is not None:
            waits[program.key] = obstacle
            if terms.oversubscribe and not can_have_room(terms, situation, program):
                # Those that come back meanwhile give host memory back.
                waits[program.key] += "; the programs there have to stay, or host memory cannot hold them"
                continue
        else:
            wake.append(program.key)
        taken.update(program.memory)
    return tuple(wake), waits


def _may_others_grow(situation: ParkSituation, program: PlannedProgram) -> bool:
    """Whether a young program of another class is on a device of this one."""
    return any(
        other.is_young and not other.is_background and not other.memory.keys().isdisjoint(program.memory)
        for other in situation.resident
    )


def _no_room(terms: ParkTerms, situation: ParkSituation, program: PlannedProgram) -> str | None:
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
    moving = [program for program in situation.programs if program.stage is ParkStage.PARKING]
    held = {need.id for need in situation.claims.needs if need.idle_after_s is not None}
    if len(moving) >= _MAX_AT_ONCE or any(program.made_for not in held for program in moving):
        return
    asked = [(program, "") for program in situation.resident if program.asked and not moving]
    # What moves may not be in host memory yet, and may be charged to the same container.
    moving_bytes = sum(program.bytes for program in moving)
    for program, need in (*asked, *_choose(terms, situation, frozenset(waking))):
        room_bytes = min(situation.host_budget(terms), program.container_room_bytes or 0)
        if moving and (need not in held or program.bytes > room_bytes - moving_bytes):
            return
        if refusal_of(terms, situation, program) is None:
            yield program.key, need
            return


def _choose(terms: ParkTerms, situation: ParkSituation, waking: frozenset[str]) -> Iterator[tuple[PlannedProgram, str]]:
    """Programs to be parked, the first first, each with the need for which it makes room."""
    if terms.eager:
        yield from ((program, "") for program in idle_for(terms, situation, terms.idle_after_s))
    for need in needs_in_order(situation, waking):
        if need.idle_after_s is not None:
            yield from ((program, need.id) for program in _as_much_as_possible(terms, situation, need))
            continue
        yielding = yielding_programs(terms, situation, terms.idle_after_s, of_background=need.of_background)
        leaving = list(room_for(terms, situation, need, yielding, situation.host_budget(terms)))
        if not leaving and terms.oversubscribe and need.bytes is not None:
            others = (program for program in most_served_first(situation) if program not in yielding)
            served = [program for program in others if _had_its_turn(terms, situation, program, need)]
            leaving = room_in_turn(terms, situation, need, yielding, served)
        yield from ((program, need.id) for program in leaving)


def _as_much_as_possible(terms: ParkTerms, situation: ParkSituation, need: RoomNeed) -> list[PlannedProgram]:
    """Programs that make room for a need that goes on without all of it; none where it has its room."""
    (device,) = need.devices
    room = situation.rooms.get(device)
    if room is None:
        return []
    coming = sum(program.memory.get(device, 0) for program in situation.programs if program.stage is ParkStage.PARKING)
    missing = (need.bytes or 0) + need.kept.get(device, 0) - room.free_bytes - coming
    host_bytes = situation.host_budget(terms)
    leaving: list[PlannedProgram] = []
    for program in yielding_programs(terms, situation, need.idle_after_s or 0.0, of_background=need.of_background):
        if missing > 0 and device in program.memory and program.key not in need.spared and program.bytes <= host_bytes:
            leaving.append(program)
            missing -= program.memory[device]
            host_bytes -= program.bytes
    return leaving


def can_make_room(terms: ParkTerms, situation: ParkSituation, need: RoomNeed) -> bool:
    """Whether a program can be parked for this need of one that has just started."""
    return bool(_as_much_as_possible(terms, situation, need))


def yielding_programs(
    terms: ParkTerms, situation: ParkSituation, idle_after_s: float, *, of_background: bool
) -> list[PlannedProgram]:
    """The programs that make room for another: idle ones, then those of class background at work, unless it is of that
    class, too. Of these the ones with least to do go first, then the largest."""
    idle = idle_for(terms, situation, idle_after_s)
    if of_background:
        return idle
    at_work = (
        program
        for program in situation.resident
        if program.is_background
        and program not in idle
        and _has_stayed(terms, situation, program)
        and _may_leave(terms, situation, program)
    )
    return [*idle, *sorted(at_work, key=_park_order)]


def _park_order(program: PlannedProgram) -> tuple[bool, float, int, str]:
    return not program.is_over_share, -program.idle_s, -program.bytes, program.key


def idle_for(terms: ParkTerms, situation: ParkSituation, idle_after_s: float) -> list[PlannedProgram]:
    """The programs that were idle for so long and can be parked.

    Jobs with more memory than their shards come first, then the longest idle, then the largest.
    """
    idle = (program for program in situation.resident if _is_idle(terms, situation, program, idle_after_s))
    return sorted(idle, key=_park_order)


def _had_its_turn(terms: ParkTerms, situation: ParkSituation, program: PlannedProgram, need: RoomNeed) -> bool:
    return can_take_turns(terms, situation, program, need) and (
        situation.now_s >= turn_end_s(terms, situation, program, need)
    )


def _is_idle(terms: ParkTerms, situation: ParkSituation, program: PlannedProgram, idle_after_s: float) -> bool:
    return (
        idle_after_s > 0
        and program.idle_s >= idle_after_s
        and _has_stayed(terms, situation, program)
        and _may_leave(terms, situation, program)
    )


def _has_stayed(terms: ParkTerms, situation: ParkSituation, program: PlannedProgram) -> bool:
    """Whether it was not brought back lately."""
    since_s = program.resident_since_s
    return since_s is None or situation.now_s - since_s >= terms.min_residence_s


# When those that wait for room on a GPU will have it, as far as the long turns of oversubscription show. Pure.
#
# An estimate for people: programs may end, grow or become idle before. Nothing is decided by it.

# Within this time it is measured whether programs run together or in short turns.
_MEASURED_S: Final = 30.0


@dataclass(slots=True)
class _Device:
    """`free_bytes` at `at_s`, once the programs that are not in `staying` any more are parked.

    `known_until_s`: turns that last longer may be shorter, because it is still measured how the programs share it.
    """

    free_bytes: int
    at_s: float
    staying: list[PlannedProgram]
    known_until_s: float


def expected_rooms(terms: ParkTerms, situation: ParkSituation) -> Mapping[str, float]:
    """The monotonic time at which each has its memory, by the id of the need; left out where it is not known."""
    if not terms.oversubscribe:
        return {}
    # While a program is brought back, how much of the room it has taken is not known.
    changing = {
        device for program in situation.programs if program.stage is ParkStage.WAKING for device in program.memory
    }
    devices = {device: _device(terms, situation, device) for device in situation.rooms.keys() - changing}
    parked = {program.key for program in situation.programs if program.stage is ParkStage.PARKED}
    served_at_s: dict[str, float] = {}
    first = {need.id for program in waiters(situation) for need in needs_before(situation, program)}
    for need in sorted(needs_in_order(situation, frozenset()), key=lambda need: need.id not in first):
        options = [
            (served.at_s, device, served)
            for device in need.devices
            if device in devices and (served := _serve(terms, situation, need, devices[device], device)) is not None
        ]
        if need.number != 1 or not options:
            # What it waits for is not known. It comes before later ones on these devices, so theirs is not either.
            for device in need.devices:
                devices.pop(device, None)
            continue
        _, device, served = min(options, key=lambda option: option[:2])
        if need.id in parked:
            served.at_s += (need.bytes or 0) / IN_BYTES_S
        devices[device] = served
        if need.id:
            served_at_s[need.id] = served.at_s
    return served_at_s


def _device(terms: ParkTerms, situation: ParkSituation, device: str) -> _Device:
    promised = situation.claims.promised.get(device, 0)
    free = situation.rooms[device].free_bytes - terms.gpu_reserve_bytes - promised
    at_s = situation.now_s
    for program in situation.programs:
        if device in program.memory and program.stage is ParkStage.PARKING:
            at_s = max(at_s, program.settled_s + program.bytes / OUT_BYTES_S)
            free += program.memory[device]
    there = [program for program in most_served_first(situation) if device in program.memory]
    # One that is alone while another moves takes no turns for these seconds.
    in_turns = any(program.in_turns or program.was_in_turns for program in there)
    newest_s = max((program.on_gpu_since_s for program in there), default=-math.inf)
    is_measured = in_turns or programs_at_work(situation, device) < 2 or situation.now_s - newest_s >= _MEASURED_S
    known_until_s = math.inf if is_measured else newest_s + _MEASURED_S
    return _Device(free, at_s, [replace(program, in_turns=in_turns) for program in there], known_until_s)


def _serve(terms: ParkTerms, situation: ParkSituation, need: RoomNeed, at: _Device, device: str) -> _Device | None:
    """The device once this need has its room; None where parking does not make it, or its time is not known."""
    if need.bytes is None:
        return None
    free, at_s, staying = at.free_bytes - need.bytes, at.at_s, list(at.staying)
    for leaves in at.staying:
        if free < 0 and can_take_turns(terms, situation, leaves, need):
            ends_s = turn_end_s(terms, situation, leaves, need)
            if ends_s > at.known_until_s:
                return None
            at_s = max(at_s, ends_s) + leaves.bytes / OUT_BYTES_S
            free += leaves.memory[device]
            staying.remove(leaves)
    return None if free < 0 else _Device(free, at_s, staying, at.known_until_s)
