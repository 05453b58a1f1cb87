"""Who one process is: its key, its pids in each namespace, its user, and what its cgroup says of it."""

from dataclasses import dataclass, field
from enum import StrEnum

from gpucommons.model.processes import ProcessKey


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
class ProcessIdentity:
    """One process as it was when first seen. `namespaced_pids` runs from our view of it to its own."""

    key: ProcessKey
    name: str
    uid: int | None
    namespaced_pids: tuple[int, ...] = ()
    cgroup: CgroupIdentity = field(default_factory=CgroupIdentity)


class PidViewKind(StrEnum):
    HOST = "host"
    NAMESPACE = "namespace"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class PidView:
    """Whose pids our procfs shows. The driver counts in the host's; `sentence` says it in plain words."""

    kind: PidViewKind
    sentence: str
