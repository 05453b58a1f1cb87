"""The long turns of programs that do not fit into a GPU together: which one makes room, and when. Pure.

1. Moving costs at most a tenth of the GPU's time: a program stays for nine times as long as moving it and the one that
   takes its place.
2. Programs that take short turns with others cost the GPU nothing while they are moved, because the others use their
   time. They stay for `min_residence_s`.
3. The program that has had most of the GPU's time makes room, once it is ahead of the one that waits: in short turns by
   half of the time that moving takes, otherwise at all.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from gpucommons.parking.attained import programs_at_work
from gpucommons.parking.values import ParkProgram, ParkSituation, ParkTerms, RoomNeed

# As measured on an H200.
OUT_BYTES_S: Final = 2e9
IN_BYTES_S: Final = 5e9
_MOVING_RATIO: Final = 0.1
_LEAD_RATIO: Final = 0.5
# Their number doubles the work of a check; with more programs than this there is nearly always a way.
_MOST_STAYING: Final = 10


def most_served_first(situation: ParkSituation) -> list[ParkProgram]:
    """The programs on GPUs, in the order in which they make room."""
    return sorted(situation.held, key=lambda one: (-_attained_s(situation, one), one.on_gpu_since_s, one.key))


def turn_end_s(terms: ParkTerms, situation: ParkSituation, program: ParkProgram, need: RoomNeed) -> float:
    """When the turn of a program ends, if nothing changes until then."""
    moving_s = program.bytes / OUT_BYTES_S + (need.bytes or 0) / IN_BYTES_S
    stays_s = 0.0 if program.in_turns else moving_s * (1 - _MOVING_RATIO) / _MOVING_RATIO
    may_end_s = program.on_gpu_since_s + max(terms.min_residence_s, stays_s)
    lead_s = moving_s * _LEAD_RATIO if program.in_turns else 0.0
    missing_s = max((lead_s - ahead_s for ahead_s in _ahead_s(situation, program, need)), default=0.0)
    if missing_s <= 0:
        return may_end_s
    at_work = max(programs_at_work(situation, device) for device in program.memory)
    return max(may_end_s, situation.now_s + missing_s * at_work)


def _attained_s(situation: ParkSituation, program: ParkProgram) -> float:
    return max((situation.attained_s.get(device, {}).get(program.key, 0.0) for device in program.memory), default=0.0)


def _ahead_s(situation: ParkSituation, program: ParkProgram, need: RoomNeed) -> list[float]:
    """How much more than the one that waits the program has had, on each device that they have in common."""
    found = (situation.attained_s.get(device, {}) for device in program.memory if device in need.devices)
    return [attained_s.get(program.key, 0.0) - attained_s.get(need.id, 0.0) for attained_s in found]


def can_change_places(parked: Iterable[int], staying: Sequence[int], free_bytes: int, host_bytes: int) -> bool:
    """Whether each parked program could take the place of some that stay. All are sizes in bytes.

    Those that make room are in host memory together with all that are parked: it has `host_bytes` left for them.
    """
    sums = {0}
    for size in staying[:_MOST_STAYING]:
        sums |= {before + size for before in sums}
    return all(any(size - free_bytes <= moved <= host_bytes for moved in sums) for size in parked)
