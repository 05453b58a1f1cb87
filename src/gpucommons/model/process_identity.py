"""The identity of a process: its key, its pids in each namespace, its user, and what its cgroup says.

How it was started (command line, sessions, ancestors) is known beyond what attribution needs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from gpucommons.base.user_namespace import UserNamespace


class ProcessKey(NamedTuple):
    """Identifies a process until the next reboot. The start time is in clock ticks since boot."""

    pid: int
    start_ticks: int


class ProcessRow(NamedTuple):
    """One process. A NamedTuple, not a dataclass: a node has hundreds, and each pass creates them again."""

    key: ProcessKey
    name: str
    cpu_seconds: float
    rss_bytes: int
    parent_pid: int = 0
    state: str = ""


class TreeActivity(NamedTuple):
    """What the processes of each tree did. A tree is a process and all that descend from it; it is named by its pid.

    `on_core`: a process of it kept a CPU core busy since the last pass, or waited for one. `on_disk`: a process of it
    waited for a disk at this pass (uninterruptible sleep).
    """

    on_core: frozenset[int]
    on_disk: frozenset[int]


class ProcessTable(NamedTuple):
    """Every process of one pass by pid, and the busiest ones, which get their own series.

    `trees` is None where it is not known, such as in the first pass.
    """

    by_pid: Mapping[int, ProcessRow]
    busiest: tuple[ProcessKey, ...]
    trees: TreeActivity | None = None


@dataclass(frozen=True, slots=True)
class CgroupIdentity:
    """What the cgroup path of one process shows. None is unknown; `note` is why.

    `enclosing` are the containers around `container_id`, innermost first: Docker inside a container, or a Kubernetes
    node that is itself a container. `delegated` means that the path leads through a tree that user `uid` can write
    (rootless containers): that user can choose the names below it. `unit` is of the system's manager only.
    `scope` is the innermost systemd unit of a process in no container or job, login sessions and units of a user's own
    manager included.
    """

    runtime: str | None = None
    container_id: str | None = None
    pod_uid: str | None = None
    qos: str | None = None
    unit: str | None = None
    job: str | None = None
    uid: int | None = None
    note: str | None = None
    enclosing: tuple[str, ...] = ()
    delegated: bool = False
    scope: str | None = None


@dataclass(frozen=True, slots=True)
class ProcessDetails:
    """The files of one process in procfs. Only its `stat` is parsed: `key`, `name` and the POSIX session.

    `holds_gpu` is whether it has the device file of a GPU open; None if that was not or could not be checked.
    `ancestors` are its parent, the parent of that, and so on, as far as they can be seen. `user_namespace` is None
    where it is ours, or not known.
    """

    key: ProcessKey
    name: str
    status: str
    cgroup: str
    holds_gpu: bool | None = None
    session_id: int | None = None
    ancestors: tuple[ProcessKey, ...] = ()
    user_namespace: UserNamespace | None = None


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process as it was when first seen. `namespaced_pids` are its pids from our namespace to its own.

    `uid` is the user that started it: in a user namespace that a user made, that user. `session_id` is None where the
    session's first process is outside our pid namespace. `user_namespace` is None where it is ours, or not known.
    """

    key: ProcessKey
    name: str
    uid: int | None
    namespaced_pids: tuple[int, ...] = ()
    cgroup: CgroupIdentity = field(default_factory=CgroupIdentity)
    session_id: int | None = None
    ancestors: tuple[ProcessKey, ...] = ()
    user_namespace: UserNamespace | None = None


class PidFacts(NamedTuple):
    """What a procfs shows about its pid namespace. None if it could not be read."""

    procfs: str
    own_status: str | None
    own_namespace: str | None
    first_namespace: str | None
    first_is_there: bool
    second_name: str | None


class PidScope(StrEnum):
    """Which pids our procfs shows: all of the host, those of one namespace, those of our user, or none."""

    HOST = "host"
    NAMESPACE = "namespace"
    OWN_USER = "own_user"
    NONE = "none"


class PidView(NamedTuple):
    """Which processes our procfs shows. `sentence` is for people: what is hidden, why, and what to do."""

    scope: PidScope
    sentence: str


class ProcessContext(NamedTuple):
    """None or empty is unknown.

    `scope` is the innermost systemd unit in the process's cgroup path, login sessions (session-4.scope) and units of
    a user's own manager included. `session_id` is the POSIX session (setsid), in the agent's pid namespace.
    `ancestors` are those that it had when it was first seen on a GPU, its parent first.
    """

    command_line: tuple[str, ...] = ()
    scope: str | None = None
    session_id: int | None = None
    ancestors: tuple[ProcessKey, ...] = ()


class CommandLineReading(NamedTuple):
    """The command lines of the processes on GPUs, each cut to a bounded length."""

    by_key: Mapping[ProcessKey, tuple[str, ...]] = {}
