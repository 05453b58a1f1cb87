"""The people of a node at an instant: their names, groups, CPU and memory by their slices, SSH sessions."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class UserSlice:
    """What a user's processes use on the host. The CPU seconds never go back while the agent runs."""

    user: str
    group: str
    cpu_seconds: float | None
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class UsersReading:
    """`group_of` is the one group that a user is billed under; `members` are all people of each group.

    `ssh_sessions` is None where the system keeps no record of them. `container_uids` tells as whom the
    first process of each running container runs.
    """

    names: Mapping[int, str] = field(default_factory=dict)
    group_of: Mapping[str, str] = field(default_factory=dict)
    members: Mapping[str, frozenset[str]] = field(default_factory=dict)
    slices: tuple[UserSlice, ...] = ()
    ssh_sessions: Mapping[str, int] | None = None
    container_uids: Mapping[str, int] = field(default_factory=dict)
