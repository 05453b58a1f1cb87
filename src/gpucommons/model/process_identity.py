"""Who one process is: its key, its pids in each namespace, its user, and what its cgroup says of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class ProcessKey(NamedTuple):
    """Who a process is for as long as the machine is up. The start time is in clock ticks since boot."""

    pid: int
    start_ticks: int


class ProcessRow(NamedTuple):
    """One process. A NamedTuple, not a dataclass: a node has hundreds and each pass makes them anew."""

    key: ProcessKey
    name: str
    cpu_seconds: float
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessTable:
    """Every process seen in one pass, by pid, and the ones worth a series each."""

    by_pid: Mapping[int, ProcessRow]
    busiest: tuple[ProcessKey, ...]


@dataclass(frozen=True, slots=True)
class CgroupIdentity:
    """What the cgroup path of one process tells. None is unknown; `note` says what could not be told.

    `enclosing` holds the containers around `container_id`, innermost first: Docker inside a container,
    a Kubernetes node that is itself a container. `delegated` means that the path runs through a tree
    which user `uid` may write (rootless containers): names further in are that user's own claims.
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


@dataclass(frozen=True, slots=True)
class ProcessDetails:
    """What procfs holds of one process, unread: whoever hands this over has parsed only `key` and `name`.

    `holds_gpu` tells whether it has a GPU's device file open; None where nobody looked or could look.
    """

    key: ProcessKey
    name: str
    status: str
    cgroup: str
    holds_gpu: bool | None = None


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process as it was when first seen. `namespaced_pids` runs from our view of it to its own."""

    key: ProcessKey
    name: str
    uid: int | None
    namespaced_pids: tuple[int, ...] = ()
    cgroup: CgroupIdentity = field(default_factory=CgroupIdentity)


@dataclass(frozen=True, slots=True)
class PidFacts:
    """What a procfs shows of its pid namespace. None where it could not be read."""

    procfs: str
    own_status: str | None
    own_namespace: str | None
    first_namespace: str | None
    first_is_there: bool
    second_name: str | None


class PidScope(StrEnum):
    """Whose pids our procfs shows: all of the host's, one namespace's, only our user's, or none."""

    HOST = "host"
    NAMESPACE = "namespace"
    OWN_USER = "own_user"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class PidView:
    """What our procfs lets us see. `sentence` is for a person: what is hidden, why, what to do."""

    scope: PidScope
    sentence: str
