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


class LeaseUse(NamedTuple):
    """What was billed to a lease: GPU-seconds, those in which its programs used the GPU, and so on.

    `judged_s` are the GPU-seconds of which it is known whether the GPU was used.
    """

    gpu_s: float
    active_s: float
    judged_s: float
    sm_s: float
    joules: float
    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class LeaseFacts:
    """`slots` is None while the driver does not answer. `read_s` is when the slots began to be read.

    `off` is why no lease is given. `seen` are the leases in the snapshot; `used` is what was billed to each so far.
    """

    slots: tuple[LeasableSlot, ...] | None
    read_s: float
    users: UserFacts = field(default_factory=UserFacts)
    programs: tuple[GpuProgram, ...] = ()
    off: str = ""
    seen: frozenset[str] = frozenset()
    used: Mapping[str, LeaseUse] = field(default_factory=dict)
