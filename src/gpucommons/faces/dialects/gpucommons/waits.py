"""gpucommons_sharing_client_wait_*: how long each client has waited for a turn, and why."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.snapshot import Snapshot

WAIT = gauge(
    "gpucommons_sharing_client_wait_seconds",
    "Time that a client has waited for its turn so far, by reason: turn, memory, quota, demand, solo or ready.",
    "namespace",
    "pod",
    "client_id",
    "uuid",
    "why",
)

CATALOGUE = (WAIT,)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    sharing = snapshot.readings.sharing
    if sharing is None:
        return
    waiting = ((row, row.wait) for row in sharing.clients if row.wait is not None)
    yield WAIT.of(
        ((row.namespace, row.pod, row.client_id, row.gpu_uuid, wait.reason), wait.waited_s) for row, wait in waiting
    )
