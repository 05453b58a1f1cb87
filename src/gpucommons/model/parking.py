"""Parked programs at an instant: those whose GPU memory is in host memory, or on its way there or back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gpucommons.model.process_identity import ProcessKey

# The causes of parking: see ParkedProgram.
IDLE: Final = "idle"
ASKED: Final = "asked"
TURN: Final = "turn"
EARLIER_AGENT: Final = "left by an earlier agent"


class ParkedProgram(NamedTuple):
    """`stage` is parking, parked, waking or stranded; `since_wall_s` is when the program was last on the GPU.

    `gpu_bytes` is what it held there, `host_bytes` the part of it that is in host memory. `cause` is why it was parked:
    idle, asked, turn (of another program, with oversubscribe), or left by an earlier agent. `waits` says why it is not
    brought back yet, empty where it need not be. `remaining_s` is until the move ends, or until it is back while it
    waits, and `rate_bytes_s` how fast it moves: estimates; None: not known. `name` and `waits` are printable.
    `comes_after` are the requests for leases from which its room on the GPU is not kept; None: it is kept from none.
    `ancestors` are those of a program that an earlier agent left: its key does not name the lease that started it.
    """

    key: str
    name: str
    user: str
    uid: int | None
    stage: str
    gpu_uuid: str
    pids: tuple[int, ...]
    gpu_bytes: int
    host_bytes: int
    since_wall_s: float
    cause: str
    waits: str = ""
    rate_bytes_s: float | None = None
    remaining_s: float | None = None
    comes_after: frozenset[str] | None = None
    ancestors: tuple[ProcessKey, ...] = ()


class ParkEvent(NamedTuple):
    """`kind` is parked, woken, refused or stranded. `why` is the reason of a refusal in one word."""

    id: str
    kind: str
    wall_s: float
    key: str
    name: str
    user: str
    uid: int | None
    gpu_uuid: str
    bytes: int
    duration_s: float
    sentence: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class ParkingReading:
    """`unavailable` is why nothing can be parked, empty where it can. `events` are the latest, in order.

    `parks` and `wakes` are counted since the agent started, `refusals` by reason. `expected_rooms` is when a request
    for a lease is expected to have its room, by wall clock.
    """

    idle_after_s: float = 0.0
    eager: bool = False
    unavailable: str = ""
    programs: tuple[ParkedProgram, ...] = ()
    events: tuple[ParkEvent, ...] = ()
    parks: int = 0
    wakes: int = 0
    refusals: Mapping[str, int] = field(default_factory=dict)
    expected_rooms: Mapping[str, float] = field(default_factory=dict)
