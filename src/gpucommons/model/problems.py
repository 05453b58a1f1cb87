"""A problem of the node: what kinds there are, and how grave one is. rules/problems.py judges which there are now."""

from enum import IntEnum, StrEnum
from typing import Final, NamedTuple


class HealthLevel(IntEnum):
    OK = 0
    WARNING = 1
    CRITICAL = 2
    LOST = 3


class ProblemKind(StrEnum):
    """In the order in which problems of the same level are listed."""

    DRIVER = "driver"
    GPU_LOST = "gpu_lost"
    GPU_MISSING = "gpu_missing"
    GPU_FAULT = "gpu_fault"
    ECC = "ecc"
    OVERHEATING = "overheating"
    SLOWED = "slowed"
    NVLINK_DOWN = "nvlink_down"
    XID = "xid"
    LEDGER = "ledger"
    SOURCE_FAILING = "source_failing"
    TRESPASSER = "trespasser"
    OUTSIDE_ALLOCATION = "outside_allocation"
    OVER_MEMORY_SHARE = "over_memory_share"
    MPS = "mps"
    CHANNEL_FAILING = "channel_failing"
    ALERT = "alert"
    OVER_QUOTA = "over_quota"
    HELD_IDLE = "held_idle"


# A GPU with one of these, if it is critical, should get no new work.
FAULT_KINDS: Final = frozenset({ProblemKind.GPU_LOST, ProblemKind.GPU_FAULT, ProblemKind.ECC})


class Problem(NamedTuple):
    """`key` identifies it while it lasts. `since_wall_s` is None where its beginning is not known."""

    key: str
    kind: ProblemKind
    level: HealthLevel
    sentence: str
    remedy: str
    gpu_uuid: str | None = None
    gpu_index: int | None = None
    since_wall_s: float | None = None
