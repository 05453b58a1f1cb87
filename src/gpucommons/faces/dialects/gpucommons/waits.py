"""gpucommons_sharing_client_wait_*: who waits for a turn, for how long already, and why."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.snapshot import Snapshot

WAIT = gauge(
    "gpucommons_sharing_client_wait_seconds",
    "How long a client that asked for a turn has been waiting, and for what: turn, memory, quota, demand, solo, ready.",
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
        ((row.namespace, row.pod, row.client_id, row.gpu_uuid, wait.why), wait.waited_s) for row, wait in waiting
    )
