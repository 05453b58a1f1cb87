"""What the agent passes to the lease service with each snapshot."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpucommons.leases.policy.values import LeasableSlot, UserFacts
from gpucommons.model.process_identity import ProcessKey


class GpuProgram(NamedTuple):
    """A process on a slot. `names` are the user and the owner that it is attributed to."""

    slot_uuid: str
    pid: int
    key: ProcessKey | None
    uid: int | None
    names: frozenset[str]
    process_name: str


@dataclass(frozen=True, slots=True)
class LeaseFacts:
    """`slots` is None while the driver does not answer. `read_s` is when the slots began to be read.

    `off` is why no lease is given. `seen` are the leases in the snapshot: all others are billed in full. `rooms_s` is
    when requests are expected to have the room that parking makes for them.
    """

    slots: tuple[LeasableSlot, ...] | None
    read_s: float
    users: UserFacts = field(default_factory=UserFacts)
    programs: tuple[GpuProgram, ...] = ()
    off: str = ""
    seen: frozenset[str] = frozenset()
    rooms_s: Mapping[str, float] = field(default_factory=dict)
