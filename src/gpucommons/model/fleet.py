"""The slots of all nodes at one instant, their accounts of a month, and what a job used on each of its nodes.

All as a Prometheus that scrapes them has it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Self

from gpucommons.base.periods import Period
from gpucommons.model.accounts import NOTHING, Amounts


class FleetState(StrEnum):
    """The states of a slot, in the order in which a fleet is listed. SILENT: its node does not answer."""

    FREE = "free"
    HELD_IDLE = "held_idle"
    RESERVED = "reserved"
    UNKNOWN = "unknown"
    BUSY = "busy"
    LOST = "lost"
    SILENT = "silent"


class FleetNode(NamedTuple):
    """One agent. `instance` is the target that is scraped and identifies it; `name` is for people.

    `page_url` is None where no safe address can be made. `last_seen_wall_s` is when its last snapshot was taken, None
    if that was too long ago to know. `waiting` are requests for a lease, None where it gives none. `problems` is the
    number of problems of each kind that it has.
    """

    instance: str
    name: str
    page_url: str | None
    answers: bool
    last_seen_wall_s: float | None
    simulated: str = ""
    waiting: int | None = None
    problems: Mapping[str, int] = {}


class FleetSlot(NamedTuple):
    """`node` is the node's instance. `waiting`, `paused` and `parked` count clients of its GPU.

    `hidden_holders` counts those that the viewer may not see.
    """

    node: str
    slot: str
    uuid: str
    gpu_uuid: str
    gpu_index: int | None
    model: str
    profile: str
    state: FleetState
    holders: tuple[str, ...] = ()
    hidden_holders: int = 0
    since_wall_s: float | None = None
    idle_s: float | None = None
    utilization_ratio: float | None = None
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    waiting: int = 0
    paused: int = 0
    parked: int = 0


class FleetView(NamedTuple):
    """`nodes` are in the order of their names; `slots` are free ones first."""

    time_wall_s: float
    nodes: tuple[FleetNode, ...]
    slots: tuple[FleetSlot, ...]


class JobRun(NamedTuple):
    """What the batch system says of a job: its run time, and its GPUs; None: not known."""

    seconds: int
    gpus: int | None


@dataclass(slots=True)
class NodeUse:
    """What a job used on one node. None is not known. `total_time` is CPU time, as jobstats names it; both in seconds.

    `gpus` has, by slot: gpu_utilization, a ratio; gpu_used_memory, the highest, and gpu_total_memory in bytes.
    """

    cpus: float | None = None
    total_time: float | None = None
    used_memory: float | None = None
    total_memory: float | None = None
    run_time: float | None = None
    gpus: dict[str, dict[str, float]] = field(default_factory=dict)


class FleetBy(StrEnum):
    """What the rows of the accounts of a fleet are."""

    USER = "user"
    GROUP = "group"
    MONTH = "month"


class FleetBilled(NamedTuple):
    """What all nodes billed under one name. `costs` is by currency, as far as nodes have prices.

    `unpriced_s` is held time without a price on nodes that have prices. Memory is not part of the amounts.
    """

    amounts: Amounts = NOTHING
    costs: Mapping[str, float] = {}
    unpriced_s: float = 0.0

    def plus(self, other: Self) -> "FleetBilled":
        currencies = dict.fromkeys((*self.costs, *other.costs))
        return FleetBilled(
            self.amounts.plus(other.amounts),
            {name: self.costs.get(name, 0.0) + other.costs.get(name, 0.0) for name in currencies},
            self.unpriced_s + other.unpriced_s,
        )


class FleetMonth(NamedTuple):
    """A calendar month of all nodes, by user and group."""

    name: str
    period: Period
    rows: Mapping[tuple[str, str], FleetBilled]
