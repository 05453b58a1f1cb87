"""The values of the lease policy that no face shows: slots and the terms of the node. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class SlotUse(StrEnum):
    """How a slot is used outside of leases.

    USED: by programs that were not allocated it; a request that accepts to share may join them. ALLOCATED: by DS01,
    Kubernetes or Slurm. LOST: the GPU does not answer.
    """

    FREE = "free"
    USED = "used"
    ALLOCATED = "allocated"
    LOST = "lost"


class KeptRoom(NamedTuple):
    """Memory that a parked program is about to take. `after` are the requests that come before it."""

    bytes: int
    after: frozenset[str] = frozenset()


class LeasableSlot(NamedTuple):
    """A whole GPU or a MIG device as the last snapshot shows it. `gpus` is its part of a GPU, 1 for a whole one.

    `in_turns`: programs take turns on it or are parked, so that one of them may be paused.
    `used` is what the programs of each lease use of it, by the lease's id, and `parked` what they have in host memory.
    `kept` is room for programs that are brought back. `model` is the GPU's product name.
    """

    uuid: str
    name: str
    use: SlotUse = SlotUse.FREE
    gpus: float = 1.0
    is_mig: bool = False
    total_bytes: int | None = None
    free_bytes: int | None = None
    in_turns: bool = False
    used: Mapping[str, int] = {}
    parked: Mapping[str, int] = {}
    kept: tuple[KeptRoom, ...] = ()
    model: str = ""

    def kept_bytes(self, request_id: str) -> int:
        """What this request must leave free."""
        return sum(room.bytes for room in self.kept if request_id not in room.after)


class UserFacts(NamedTuple):
    """Members of each group, and the GPU-hours of each user in the last 30 days; None: not known."""

    members: Mapping[str, frozenset[str]] = {}
    hours: Mapping[str, float] | None = None


class LeaseRefused(Exception):
    """A request that cannot be carried out. One line: what was requested, why not, and what to do."""


class LeaseUnknown(LeaseRefused):
    """The lease, request or reservation that is meant is not known, or is another user's."""


class LeaseBusy(LeaseRefused):
    """It could be carried out later."""
