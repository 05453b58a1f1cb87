"""How many series an owner has, and which families are made again: bounds on what many clients cost.

A user can connect many clients under any names, and start many processes. Most of them wait and do not change.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Final, Generic, TypeVar, TypeVarTuple

from gpucommons.faces.exposition.families import Family
from gpucommons.model.ownership import ProcessShare
from gpucommons.model.sharing import ClientSharing

# The limit of series per owner: its first clients and processes have their own series, the others share one per GPU.
#
# A user can connect many clients under any names, and start many processes. The shared series has the pod or pid
# `overflow` and holds the sums, so that totals stay the same. The owner of a client is the uid that the kernel reports;
# that of a process is what attribution found.

MAX_OF_OWNER: Final = 512
OVERFLOW: Final = "overflow"

T = TypeVar("T")


def within_limit(rows: Iterable[T], uid_of: Callable[[T], int]) -> tuple[list[T], list[T]]:
    """The first rows of each user, and the rest."""
    all_rows = list(rows)
    if len(all_rows) <= MAX_OF_OWNER:
        return all_rows, []
    counts: dict[int, int] = {}
    own: list[T] = []
    rest: list[T] = []
    for row in all_rows:
        uid = uid_of(row)
        counts[uid] = count = counts.get(uid, 0) + 1
        (own if count <= MAX_OF_OWNER else rest).append(row)
    return own, rest


@lru_cache(maxsize=8 * MAX_OF_OWNER)
def client_labels(namespace: str, pod: str, client_id: str, gpu_uuid: str) -> tuple[str, str, str, str]:
    """The same tuple for the same client in each snapshot: the renderer compares the labels of all series each time."""
    return namespace, pod, client_id, gpu_uuid


@lru_cache(maxsize=8 * MAX_OF_OWNER)
def named_labels(namespace: str, pod: str, client_id: str, gpu_uuid: str, name: str) -> tuple[str, str, str, str, str]:
    """As `client_labels`, with the client's name for people."""
    return namespace, pod, client_id, gpu_uuid, name


@lru_cache(maxsize=8 * MAX_OF_OWNER)
def pid_label(pid: int) -> str:
    """The same string for a process on each of its GPUs: with many of both, the strings take megabytes."""
    return str(pid)


def overflow_by_gpu(clients: Iterable[ClientSharing]) -> dict[str, list[ClientSharing]]:
    by_gpu: dict[str, list[ClientSharing]] = {}
    for client in clients:
        by_gpu.setdefault(client.gpu_uuid, []).append(client)
    return by_gpu


def processes_beyond_limit(shares: Sequence[ProcessShare]) -> Mapping[str, AbstractSet[int]]:
    """The pids without series of their own, by GPU. An owner has as many series on each GPU that it uses."""
    if len(shares) <= MAX_OF_OWNER:
        return {}
    by_owner: dict[tuple[str, str], dict[str, list[int]]] = {}
    # The shares of a process on several GPUs have the same Owner: its identity is faster to look up.
    by_identity: dict[int, dict[str, list[int]]] = {}
    for share in shares:
        owner = share.owner
        pids_by_gpu = by_identity.get(id(owner))
        if pids_by_gpu is None:
            pids_by_gpu = by_owner.setdefault(("", "") if owner is None else (owner.kind, owner.id), {})
            by_identity[id(owner)] = pids_by_gpu
        pids_by_gpu.setdefault(share.place.gpu_uuid, []).append(share.pid)
    beyond: dict[str, set[int]] = {}
    for gpus in by_owner.values():
        if sum(map(len, gpus.values())) > MAX_OF_OWNER:
            on_gpu = max(1, MAX_OF_OWNER // len(gpus))
            for uuid, pids in gpus.items():
                beyond.setdefault(uuid, set()).update(pids[on_gpu:])
    return beyond


# Families that are made again only when their rows have changed. Most of a crowd of clients waits and does not change.
#
# The same Family objects in the next snapshot mean that the renderer keeps their bytes, too.

Rows = TypeVarTuple("Rows")


class KeptFamilies(Generic[*Rows]):
    """`make` is pure. Comparing rows ends at the first that differs, so that changing rows cost little more."""

    def __init__(self, make: Callable[[*Rows], Iterable[Family]]) -> None:
        self._make = make
        self._rows: tuple[*Rows] | None = None
        self._families: tuple[Family, ...] = ()

    def __call__(self, *rows: *Rows) -> tuple[Family, ...]:
        if rows != self._rows:
            self._families = tuple(self._make(*rows))
            self._rows = rows
        return self._families
