"""What happened on this node lately: GPUs lost and back, XIDs, allocations, quotas. Newest first."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """`id` is unique among the entries that are kept. An empty `user` means that it concerns nobody in particular."""

    id: str
    wall_s: float
    type: str
    user: str = ""
    source: str = ""
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JournalReading:
    entries: tuple[JournalEntry, ...]
