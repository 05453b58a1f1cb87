"""The state of each slot at an instant: free, held and used, held and idle, reserved, or lost."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from gpucommons.model.allocations import Allocation
from gpucommons.model.usage import Slot


class SlotState(StrEnum):
    """FREE: no workload holds it. HELD_IDLE: held, and no holder uses it. BUSY: held, and used or not known to be idle.
    RESERVED: a reservation is in force, and no workload holds it. LOST: its GPU no longer answers. UNKNOWN: no holder
    is known, and there may be one."""

    FREE = "free"
    HELD_IDLE = "held_idle"
    BUSY = "busy"
    RESERVED = "reserved"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """`why` is a sentence for LOST and UNKNOWN. `hidden_holders` counts those that the viewer may not see.

    `since_wall_s` is when it was last taken, freed or lost; None if that was before the agent started and is not known.
    `idle_s` is how long its holders have not used it, as far as the agent has seen; None unless it is HELD_IDLE.
    """

    slot: Slot
    gpu_index: int
    profile: str
    state: SlotState
    why: str = ""
    holders: tuple[Allocation, ...] = ()
    hidden_holders: int = 0
    since_wall_s: float | None = None
    idle_s: float | None = None
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None


class SlotsReading(NamedTuple):
    slots: tuple[SlotStatus, ...]
