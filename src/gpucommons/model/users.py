"""The users of a node at an instant: names, groups, CPU and memory of their slices, SSH sessions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class UserSlice(NamedTuple):
    """CPU and memory of a user's processes. The CPU seconds never decrease while the agent runs."""

    user: str
    group: str
    cpu_seconds: float | None
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class UsersReading:
    """`group_of` is the group that a user is billed under; `members` are all users of each group.

    `ssh_sessions` is None if the system has neither utmp nor logind. `container_uids` is the uid of the first process
    of each running container.
    """

    names: Mapping[int, str] = field(default_factory=dict)
    group_of: Mapping[str, str] = field(default_factory=dict)
    members: Mapping[str, frozenset[str]] = field(default_factory=dict)
    slices: tuple[UserSlice, ...] = ()
    ssh_sessions: Mapping[str, int] | None = None
    container_uids: Mapping[str, int] = field(default_factory=dict)
