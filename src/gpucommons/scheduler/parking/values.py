"""What the planner of parking decides about: programs, room on GPUs, host memory, needs. Pure values.

Times are of the monotonic clock. A device is a GPU or a MIG device, by UUID.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from gpucommons.model.host import GIB, HostMemory
from gpucommons.model.process_identity import ProcessKey


class ParkStage(StrEnum):
    """`RESIDENT`: its memory is on the GPU. `STRANDED`: a restore failed; the process can only be ended."""

    RESIDENT = "resident"
    PARKING = "parking"
    PARKED = "parked"
    WAKING = "waking"
    STRANDED = "stranded"


class WhyNot(StrEnum):
    """Why a program is not parked, in one word for metrics."""

    MANAGED_MEMORY = "managed_memory"
    SEVERAL_GPUS = "several_gpus"
    MEMORY_UNKNOWN = "memory_unknown"
    LEFT_ALONE = "left_alone"
    HOST_MEMORY = "host_memory"
    CONTAINER_MEMORY = "container_memory"
    GPU_MEMORY = "gpu_memory"
    NOT_LOCKED = "not_locked"
    FAILED = "failed"
    UNAVAILABLE = "unavailable"
    PART_PARKED = "part_parked"
    STOPPED = "stopped"
    MIG = "mig"
    SHARED_MEMORY = "shared_memory"


class ParkRefusal(NamedTuple):
    why: WhyNot
    sentence: str


class ParkTerms(NamedTuple):
    """`idle_after_s`: 0 means that no program is parked on its own. `gpu_reserve_bytes` stays free after a restore."""

    idle_after_s: float = 0.0
    eager: bool = False
    oversubscribe: bool = False
    host_reserve_percent: float = 10.0
    min_residence_s: float = 120.0
    gpu_reserve_bytes: int = GIB


@dataclass(frozen=True, slots=True)
class PlannedProgram:
    """One program. `memory` is what it holds on each device, or held before it was parked.

    `settled_s` is when its stage began, `seen_since_s` when it was first seen on the GPU. `resident_since_s` is when it
    was last brought back; None: never. `in_turns`: it takes turns with others, which use its time while it is away.
    `was_in_turns`: it did so lately, and is expected to do so again. `uses_gpu`: it used the GPU lately, or waits for
    its turn to. `idle_s` is for how long neither its GPU nor its CPU was used, 0 where that is not known. `obstacle` is
    why it cannot be parked. `container_room_bytes` is what the memory limits of its cgroups leave, infinite where there
    is none; None: not known. `asked`: a person requested to park it. `wakes_since_s` is since when it waits to be
    brought back; None: it does not. `for_turn`: it was parked while it worked, for the turn of another. `made_for` is
    the need for which it made room; empty: none. `touched`: it waits because its user uses it or asked for it.
    `is_young`: it came to its GPU a few minutes ago. `is_latency`: it is of class latency, and is parked only if its
    owner asks. `is_background`: it is of class background, and makes room for programs of other classes while it works.
    `is_over_share`: its job holds more GPU memory than goes with its shards. `processes` are those on the GPU. `owner`
    is its owner, `moved_for` that of the newcomer for which it was parked; empty: none.
    """

    key: str
    stage: ParkStage
    memory: Mapping[str, int]
    settled_s: float = 0.0
    resident_since_s: float | None = None
    seen_since_s: float = float("-inf")
    in_turns: bool = False
    was_in_turns: bool = False
    uses_gpu: bool = True
    idle_s: float = 0.0
    obstacle: ParkRefusal | None = None
    container_room_bytes: float | None = math.inf
    asked: bool = False
    wakes_since_s: float | None = None
    for_turn: bool = False
    made_for: str = ""
    touched: bool = True
    is_young: bool = False
    is_latency: bool = False
    is_background: bool = False
    is_over_share: bool = False
    processes: frozenset[ProcessKey] = frozenset()
    owner: str = ""
    moved_for: str = ""

    @property
    def bytes(self) -> int:
        return sum(self.memory.values())

    @property
    def on_gpu_since_s(self) -> float:
        return self.seen_since_s if self.resident_since_s is None else self.resident_since_s


class DeviceRoom(NamedTuple):
    """The free memory of a device by NVML, and when that was read."""

    free_bytes: int
    as_of_s: float


_NOTHING_KEPT: Final[Mapping[str, int]] = {}


class RoomNeed(NamedTuple):
    """A lease or an nvshare client waits for `number` of these devices, or a parked program for its own.

    `bytes` is the memory that it needs on each; None: it needs the device for itself, without any program on it. `id`
    is the request for a lease, the name of the client or the key of the program. `kept` is free memory of each device
    that it cannot have: a lease does not get what other leases declared, whether they use it or not. `idle_after_s`:
    programs that were idle for so long, and those of class background, make room for it as far as they can; None: those
    of `ParkTerms`, if they make all of the room. Such a need has one device. `spared` are keys of programs that
    make none. `of_background`: it is that of a program of class background, for which no other one makes room while it
    works.
    """

    devices: tuple[str, ...]
    bytes: int | None
    since_s: float
    number: int = 1
    id: str = ""
    kept: Mapping[str, int] = _NOTHING_KEPT
    idle_after_s: float | None = None
    spared: frozenset[str] = frozenset()
    of_background: bool = False


class RoomClaims(NamedTuple):
    """`needs` wait for room. `promised` is the memory of each device that leases have and do not use yet."""

    needs: tuple[RoomNeed, ...] = ()
    promised: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class ParkSituation:
    """`programs` are all that are known, also those that cannot be parked. A device without a room was not read.

    `attained_s` is how much of a device's time each program or need has had (turns.py). `settling` are devices on which
    a program starts, so that none comes back to them that its user does not use.
    """

    programs: tuple[PlannedProgram, ...]
    rooms: Mapping[str, DeviceRoom]
    host: HostMemory | None
    claims: RoomClaims = field(default_factory=RoomClaims)
    now_s: float = 0.0
    attained_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    settling: frozenset[str] = frozenset()

    @property
    def resident(self) -> list[PlannedProgram]:
        """The programs on GPUs."""
        return [program for program in self.programs if program.stage is ParkStage.RESIDENT]

    def fresh_room(self, device: str) -> DeviceRoom | None:
        """None where the room is not known, or was read before the last move on this device ended."""
        room = self.rooms.get(device)
        settled = (program.settled_s for program in self.programs if device in program.memory)
        return None if room is None or room.as_of_s <= max(settled, default=float("-inf")) else room

    def host_budget(self, terms: ParkTerms) -> int:
        """How much host memory programs may take; 0 where it could not be read."""
        return 0 if self.host is None else self.host.budget_bytes(terms.host_reserve_percent)


class ParkPlan(NamedTuple):
    """Keys of programs. `waits` says why a program that should wake does not yet; `refused` why one is not parked.

    `made_for` is the need for which a program of `park` makes room. `claims` has the programs whose room is kept from
    leases, with the needs from which it is not.
    """

    park: tuple[str, ...] = ()
    wake: tuple[str, ...] = ()
    waits: Mapping[str, str] = {}
    refused: Mapping[str, ParkRefusal] = {}
    claims: Mapping[str, frozenset[str]] = {}
    made_for: Mapping[str, str] = {}
