"""When those that wait for room on a GPU will have it, as far as the long turns of oversubscription show. Pure.

An estimate for people: programs may end, grow or become idle before. Nothing is decided by it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from gpucommons.parking.attained import programs_at_work
from gpucommons.parking.making_room import can_take_turns
from gpucommons.parking.needs import needs_before, needs_in_order, waiters
from gpucommons.parking.turns import IN_BYTES_S, OUT_BYTES_S, most_served_first, turn_end_s
from gpucommons.parking.values import ParkProgram, ParkSituation, ParkStage, ParkTerms, RoomNeed

# Within this time it is measured whether programs run together or in short turns.
_MEASURED_S: Final = 30.0


@dataclass(slots=True)
class _Device:
    """`free_bytes` at `at_s`, once the programs that are not in `staying` any more are parked.

    `known_until_s`: turns that last longer may be shorter, because it is still measured how the programs share it.
    """

    free_bytes: int
    at_s: float
    staying: list[ParkProgram]
    known_until_s: float


def expected_rooms(terms: ParkTerms, situation: ParkSituation) -> Mapping[str, float]:
    """The monotonic time at which each has its memory, by the id of the need; left out where it is not known."""
    if not terms.oversubscribe:
        return {}
    # While a program is brought back, how much of the room it has taken is not known.
    changing = {device for one in situation.programs if one.stage is ParkStage.WAKING for device in one.memory}
    devices = {device: _device(terms, situation, device) for device in situation.rooms.keys() - changing}
    parked = {program.key for program in situation.programs if program.stage is ParkStage.PARKED}
    found: dict[str, float] = {}
    first = {need.id for program in waiters(situation) for need in needs_before(situation, program)}
    for need in sorted(needs_in_order(situation, frozenset()), key=lambda need: need.id not in first):
        options = [
            (served.at_s, device, served)
            for device in need.devices
            if device in devices and (served := _served(terms, situation, need, devices[device], device)) is not None
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
            found[need.id] = served.at_s
    return found


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


def _served(terms: ParkTerms, situation: ParkSituation, need: RoomNeed, at: _Device, device: str) -> _Device | None:
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
