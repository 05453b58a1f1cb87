"""gpucommons_owner_*, gpucommons_gpu_unattributed_*: whose each part of a GPU is, and what is nobody's and why."""

from collections.abc import Callable, Iterable, Iterator

from gpucommons.faces.exposition.families import Family, Metric, Point, gauge
from gpucommons.model.ownership import Attribution, OwnerShare, Portion, Unattributed
from gpucommons.model.process_identity import PidScope
from gpucommons.model.snapshot import Snapshot

_OWNER = ("gpu", "uuid", "kind", "owner", "namespace", "basis")
_BASIS = "; basis tells whether the driver measured it or it is a share of what it measured of the GPU."

OWNER_MEMORY = gauge(
    "gpucommons_owner_gpu_memory_bytes",
    "Memory of a GPU that an owner's processes use" + _BASIS,
    *_OWNER,
    optional=("namespace",),
)
OWNER_SM = gauge(
    "gpucommons_owner_gpu_sm_ratio",
    "Share of a GPU's SM time that an owner's processes use, 0 to 1" + _BASIS,
    *_OWNER,
    optional=("namespace",),
)
OWNER_POWER = gauge(
    "gpucommons_owner_gpu_power_watts",
    "Power of a GPU that is due to an owner: by SM time, the idle draw shared by all who are on it" + _BASIS,
    *_OWNER,
    optional=("namespace",),
)
OWNER_PROCESSES = gauge(
    "gpucommons_owner_gpu_processes",
    "Processes that an owner has on a GPU.",
    *_OWNER[:-1],
    optional=("namespace",),
)
REST_MEMORY = gauge(
    "gpucommons_gpu_unattributed_bytes",
    "Used memory of a GPU that has no owner, by reason; with the owners' it sums to what the driver says is used.",
    "gpu",
    "uuid",
    "reason",
)
REST_SM = gauge(
    "gpucommons_gpu_unattributed_sm_ratio",
    "SM time of a GPU that has no owner, by reason; with the owners' it sums to the GPU's own.",
    "gpu",
    "uuid",
    "reason",
)
REST_POWER = gauge(
    "gpucommons_gpu_unattributed_power_watts",
    "Power of a GPU that has no owner, by reason; with the owners' it sums to the GPU's own.",
    "gpu",
    "uuid",
    "reason",
)
ERROR_MEMORY = gauge(
    "gpucommons_attribution_error_bytes",
    "Self-check: owners' and unattributed memory less what the driver says is used. Other than 0 is a fault.",
    "gpu",
    "uuid",
)
ERROR_SM = gauge(
    "gpucommons_attribution_error_sm_ratio",
    "Self-check: owners' and unattributed SM time less the GPU's own. Other than 0 is a fault.",
    "gpu",
    "uuid",
)
SEES_HOST = gauge(
    "gpucommons_attribution_sees_host_processes",
    "1 if our procfs shows every process of the host; 0 if a container or hidepid hides some.",
)
RATIO_OK = gauge(
    "gpucommons_vgpu_allocation_ratio_ok",
    "1 if the file of allocation ratios is good; 0 if it is not and the last good value is used.",
)

CATALOGUE = (
    OWNER_MEMORY,
    OWNER_SM,
    OWNER_POWER,
    OWNER_PROCESSES,
    REST_MEMORY,
    REST_SM,
    REST_POWER,
    ERROR_MEMORY,
    ERROR_SM,
    SEES_HOST,
    RATIO_OK,
)

_MILLION, _THOUSAND = 1_000_000, 1000


def collect(snapshot: Snapshot) -> Iterator[Family]:
    ratio = snapshot.readings.allocation_ratio
    yield RATIO_OK.value(None if ratio is None else int(not ratio.problem))
    attribution = snapshot.readings.attribution
    if attribution is None:
        return
    yield SEES_HOST.value(int(attribution.view.scope is PidScope.HOST))
    yield from _owners(attribution)
    yield from _rest(attribution)
    yield ERROR_MEMORY.of(
        ((str(a.gpu_index), a.gpu_uuid), a.memory_error_bytes)
        for a in attribution.accounts
        if a.memory_used_bytes is not None
    )
    yield ERROR_SM.of(
        ((str(a.gpu_index), a.gpu_uuid), a.sm_error_millionths / _MILLION)
        for a in attribution.accounts
        if a.sm_millionths is not None
    )


def _owners(attribution: Attribution) -> Iterator[Family]:
    rows = attribution.owners
    yield _parts(OWNER_MEMORY, ((row, row.memory) for row in rows), 1)
    yield _parts(OWNER_SM, ((row, row.sm) for row in rows), _MILLION)
    yield _parts(OWNER_POWER, ((row, row.power) for row in rows), _THOUSAND)
    yield OWNER_PROCESSES.of(_summed((_labels(row), row.processes) for row in rows))


def _rest(attribution: Attribution) -> Iterator[Family]:
    rows = attribution.unattributed
    yield _reasons(REST_MEMORY, rows, lambda row: row.memory_bytes, 1)
    yield _reasons(REST_SM, rows, lambda row: row.sm_millionths, _MILLION)
    yield _reasons(REST_POWER, rows, lambda row: row.power_milliwatts, _THOUSAND)


def _parts(metric: Metric, rows: Iterable[tuple[OwnerShare, Portion | None]], unit: int) -> Family:
    known = ((row, part) for row, part in rows if part is not None)
    sums = _summed(((*_labels(row), part.basis), part.amount) for row, part in known)
    return metric.of((labels, amount / unit) for labels, amount in sums)


def _reasons(
    metric: Metric, rows: Iterable[Unattributed], amount: Callable[[Unattributed], int | None], unit: int
) -> Family:
    return metric.of(
        ((str(row.gpu_index), row.gpu_uuid, row.reason), value / unit)
        for row in rows
        if (value := amount(row)) is not None
    )


def _labels(row: OwnerShare) -> tuple[str, ...]:
    return str(row.gpu_index), row.gpu_uuid, row.owner.kind, row.owner.name, row.owner.namespace


def _summed(points: Iterable[Point]) -> Iterable[Point]:
    """Two owners may bear one name (two uids, a pod that was made anew): they share the series."""
    sums: dict[tuple[str, ...], float] = {}
    for labels, value in points:
        sums[labels] = sums.get(labels, 0) + value
    return sums.items()
