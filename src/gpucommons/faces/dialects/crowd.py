"""The limit of series per user: the first clients of a user have series of their own, the others share one per GPU.

A user can connect many clients under any names. The shared series has the pod `overflow` and holds the sums of its
clients, so that totals stay the same. The user of a client is the uid that the kernel reports.
"""

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from gpucommons.model.sharing import ClientSharing

MOST_OF_USER: Final = 512
OVERFLOW: Final = "overflow"

T = TypeVar("T")


def within_limit(rows: Iterable[T], uid_of: Callable[[T], int], most: int = MOST_OF_USER) -> tuple[list[T], list[T]]:
    """The first rows of each user, and the rest."""
    counts: dict[int, int] = {}
    own: list[T] = []
    rest: list[T] = []
    for row in rows:
        uid = uid_of(row)
        counts[uid] = count = counts.get(uid, 0) + 1
        (own if count <= most else rest).append(row)
    return own, rest


def overflow_by_gpu(clients: Iterable[ClientSharing]) -> dict[str, list[ClientSharing]]:
    by_gpu: dict[str, list[ClientSharing]] = {}
    for client in clients:
        by_gpu.setdefault(client.gpu_uuid, []).append(client)
    return by_gpu
