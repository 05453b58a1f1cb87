"""gpucommons_attribution_*: self-checks of attribution, and whether it sees the processes of the host."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.process_identity import PidScope
from gpucommons.model.snapshot import Snapshot

_GPU = ("gpu", "uuid")

ERROR_MEMORY = gauge(
    "gpucommons_attribution_error_bytes",
    "Difference between attributed plus unattributed memory and the used memory of a GPU; not 0 means a bug.",
    *_GPU,
)
ERROR_SM = gauge(
    "gpucommons_attribution_error_sm_ratio",
    "Difference between attributed plus unattributed SM time and the SM time of a GPU; not 0 means a bug.",
    *_GPU,
)
SEES_HOST = gauge(
    "gpucommons_attribution_sees_host_processes",
    "Visibility of processes in procfs: 1 if every process of the host, 0 if a container or hidepid hides some.",
)

CATALOGUE = (ERROR_MEMORY, ERROR_SM, SEES_HOST)

_MILLION = 1_000_000


def collect(snapshot: Snapshot) -> Iterator[Family]:
    attribution = snapshot.readings.attribution
    if attribution is None:
        return
    yield SEES_HOST.value(int(attribution.view.scope is PidScope.HOST))
    gpus = [((str(account.gpu_index), account.gpu_uuid), account) for account in attribution.accounts]
    yield ERROR_MEMORY.of((labels, a.memory_error_bytes) for labels, a in gpus if a.memory_used_bytes is not None)
    yield ERROR_SM.of((labels, a.sm_error_millionths / _MILLION) for labels, a in gpus if a.sm_millionths is not None)
