"""The long turns of programs that do not fit into a GPU together: which one makes room, and when. Pure.

Moving memory costs seconds, so that these turns are minutes long. The program that has had most of the GPU's time
makes room; a move costs at most a tenth of that time.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from gpucommons.scheduler.parking.values import ParkSituation, ParkStage, ParkTerms, PlannedProgram, RoomNeed

# How much of a GPU's time each program has had since others wait for room on it. Pure.
#
# Programs at work on a device share its time evenly. A program that only holds room there is charged as much as each of
# them; one that is parked or moved is not charged. A program or request that comes later begins with the least that
# another has had, so that it does not make up for the time before it came.


def attained_seconds(before: ParkSituation | None, now: ParkSituation) -> Mapping[str, Mapping[str, float]]:
    """By device, then by the key of the program or the id of the need. `before` is the situation at the last step."""
    devices = {device for program in now.programs for device in program.memory}
    return {device: _on_device(before, now, device) for device in devices}


def programs_at_work(situation: ParkSituation, device: str) -> int:
    """Between how many programs the time of a device is divided; at least one."""
    return max(1, sum(program.uses_gpu for program in _resident(situation, device)))


def _on_device(before: ParkSituation | None, now: ParkSituation, device: str) -> Mapping[str, float]:
    competing = set(_competing(now, device))
    recorded_s: dict[str, float] = {}
    if before is not None:
        charge_s = (now.now_s - before.now_s) / programs_at_work(before, device)
        charged = {program.key for program in _resident(before, device)}
        for key, attained_s in before.attained_s.get(device, {}).items():
            if key in competing:
                recorded_s[key] = attained_s + (charge_s if key in charged else 0.0)
    least_s = min(recorded_s.values(), default=0.0)
    return dict.fromkeys(competing, least_s) | recorded_s


def _resident(situation: ParkSituation, device: str) -> Iterator[PlannedProgram]:
    return (
        program for program in situation.programs if program.stage is ParkStage.RESIDENT and device in program.memory
    )


def _competing(situation: ParkSituation, device: str) -> Iterator[str]:
    """The programs that are on the device or wait to be, and the requests that wait for room there."""
    for program in situation.programs:
        if device in program.memory and (
            program.stage is not ParkStage.PARKED or program.wakes_since_s is not None or program.for_turn
        ):
            yield program.key
    yield from (need.id for need in situation.claims.needs if device in need.devices)


# The long turns of programs that do not fit into a GPU together: which one makes room, and when. Pure.
#
# 1. Moving costs at most a tenth of the GPU's time: a program stays for nine times as long as moving it and the one
#    that takes its place.
# 2. Programs that take short turns with others cost the GPU nothing while they are moved, because the others use their
#    time. They stay for `min_residence_s`.
# 3. A program of class background makes room for those of other classes once it has stayed for `min_residence_s`.
# 4. The program that has had most of the GPU's time makes room, once it is ahead of the one that waits: in short turns
#    by half of the time that moving takes, otherwise at all. A job that holds more memory than goes with its shards
#    makes room first, and need not be ahead.

# As measured on an H200.
OUT_BYTES_S: Final = 2e9
IN_BYTES_S: Final = 5e9
_MOVING_RATIO: Final = 0.1
_LEAD_RATIO: Final = 0.5
# Their number doubles the work of a check; with more programs than this there is nearly always a way.
_MAX_STAYING: Final = 10


def most_served_first(situation: ParkSituation) -> list[PlannedProgram]:
    """The programs on GPUs, in the order in which they make room."""
    return sorted(
        situation.resident,
        key=lambda program: (
            not program.is_over_share,
            -_attained_s(situation, program),
            program.on_gpu_since_s,
            program.key,
        ),
    )


def turn_end_s(terms: ParkTerms, situation: ParkSituation, program: PlannedProgram, need: RoomNeed) -> float:
    """When the turn of a program ends, if nothing changes until then."""
    moving_s = program.bytes / OUT_BYTES_S + (need.bytes or 0) / IN_BYTES_S
    if program.is_background and not need.of_background:
        return program.resident_since_s + terms.min_residence_s if program.resident_since_s is not None else -math.inf
    stays_s = 0.0 if program.in_turns else moving_s * (1 - _MOVING_RATIO) / _MOVING_RATIO
    may_end_s = program.on_gpu_since_s + max(terms.min_residence_s, stays_s)
    lead_s = moving_s * _LEAD_RATIO if program.in_turns else 0.0
    missing_s = max((lead_s - ahead_s for ahead_s in _ahead_s(situation, program, need)), default=0.0)
    if missing_s <= 0 or program.is_over_share:
        return may_end_s
    at_work = max(programs_at_work(situation, device) for device in program.memory)
    return max(may_end_s, situation.now_s + missing_s * at_work)


def _attained_s(situation: ParkSituation, program: PlannedProgram) -> float:
    return max((situation.attained_s.get(device, {}).get(program.key, 0.0) for device in program.memory), default=0.0)


def _ahead_s(situation: ParkSituation, program: PlannedProgram, need: RoomNeed) -> list[float]:
    """How much more than the one that waits the program has had, on each device that they have in common."""
    attained = (situation.attained_s.get(device, {}) for device in program.memory if device in need.devices)
    return [attained_s.get(program.key, 0.0) - attained_s.get(need.id, 0.0) for attained_s in attained]


def can_change_places(parked: Iterable[int], staying: Sequence[int], free_bytes: int, host_bytes: int) -> bool:
    """Whether each parked program could take the place of some that stay. All are sizes in bytes.

    Those that make room are in host memory together with all that are parked: it has `host_bytes` left for them.
    """
    sums = {0}
    for size in staying[:_MAX_STAYING]:
        sums |= {before + size for before in sums}
    return all(any(size - free_bytes <= moved <= host_bytes for moved in sums) for size in parked)
