"""What each owner uses of each GPU, what has no owner and why, and how attribution works.

Owners and remainder of a GPU sum to what the device reports.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from gpucommons.faces.exposition.families import Family, Metric, counter, gauge, sum_points
from gpucommons.model.accounts import Amounts
from gpucommons.model.ownership import OwnerShare, Portion, Unattributed
from gpucommons.model.process_identity import PidScope
from gpucommons.model.snapshot import Snapshot

# gpucommons_owner_*: each owner's current part of each GPU, and the totals that the ledger keeps.

_OWNER = ("kind", "owner", "namespace")
_OWNER_ON_GPU = ("gpu", "uuid", *_OWNER)
_BASIS = "; basis is measured (by the driver, for the processes) or apportioned (from the value of the GPU)."
_DURABLE = ", as written to the ledger; survives restarts."


def _owner_gauge(what: str, help: str) -> Metric:
    return gauge(f"gpucommons_owner_gpu_{what}", help + _BASIS, *_OWNER_ON_GPU, "basis", optional=("namespace",))


def _owner_counter(what: str, help: str) -> Metric:
    return counter(f"gpucommons_owner_{what}_total", help + _DURABLE, *_OWNER, optional=("namespace",))


MEMORY = _owner_gauge("memory_bytes", "GPU memory that an owner's processes use")
SM = _owner_gauge("sm_ratio", "Share of a GPU's SM time that an owner's processes use, 0 to 1")
POWER = _owner_gauge(
    "power_watts", "GPU power due to an owner, by SM time, with the idle draw divided among the owners on the GPU"
)
PROCESSES = gauge(
    "gpucommons_owner_gpu_processes", "Processes of an owner on a GPU.", *_OWNER_ON_GPU, optional=("namespace",)
)

# Amounts of the ledger in base units, by what metrics call them.
AMOUNTS: Mapping[str, Callable[[Amounts], float]] = {
    "held_gpu_seconds": lambda amounts: amounts.held_ns / 1e9,
    "active_gpu_seconds": lambda amounts: amounts.active_ns / 1e9,
    "idle_gpu_seconds": lambda amounts: amounts.idle_ns / 1e9,
    "gpu_equivalent_seconds": lambda amounts: amounts.equivalent_ns / 1e9,
    "sm_gpu_seconds": lambda amounts: amounts.sm_ns / 1e9,
    "memory_byte_seconds": lambda amounts: amounts.memory_kib_s * 1024,
    "energy_joules": lambda amounts: amounts.energy_uj / 1e6,
}
_TOTALS = tuple(
    (_owner_counter(what, help), AMOUNTS[what])
    for what, help in (
        ("held_gpu_seconds", "Time for which an owner held a GPU or MIG device, divided among sharers"),
        ("active_gpu_seconds", "Part of the held time in which the owner's processes used the GPU"),
        ("idle_gpu_seconds", "Part of the held time in which the owner did not use the GPU"),
        ("gpu_equivalent_seconds", "Held time, weighted by the held fraction of the GPU"),
        ("sm_gpu_seconds", "Held time, weighted by the owner's SM utilization"),
        ("memory_byte_seconds", "GPU memory that an owner used, integrated over time"),
        ("energy_joules", "GPU energy due to an owner"),
    )
)

OWNERS_CATALOGUE = (MEMORY, SM, POWER, PROCESSES, *(metric for metric, _ in _TOTALS))

_OWNER_MILLION, _THOUSAND = 1_000_000, 1000


def collect_owners(snapshot: Snapshot) -> Iterator[Family]:
    attribution, ledger = snapshot.readings.attribution, snapshot.readings.ledger
    if attribution is not None:
        rows = attribution.owners
        yield _parts(MEMORY, ((row, row.memory) for row in rows), 1)
        yield _parts(SM, ((row, row.sm) for row in rows), _OWNER_MILLION)
        yield _parts(POWER, ((row, row.power) for row in rows), _THOUSAND)
        yield PROCESSES.of(sum_points((_labels(row), row.processes) for row in rows))
    if ledger is not None:
        totals = ledger.totals or {}
        for metric, amount in _TOTALS:
            yield metric.of((tuple(key), amount(amounts)) for key, amounts in totals.items())


def _parts(metric: Metric, rows: Iterable[tuple[OwnerShare, Portion | None]], unit: int) -> Family:
    """Two owners may have the same name (two uids, a recreated pod): they share a series."""
    measured = ((row, part) for row, part in rows if part is not None)
    sums = sum_points(((*_labels(row), part.basis), part.amount) for row, part in measured)
    return metric.of((labels, amount / unit) for labels, amount in sums)


def _labels(row: OwnerShare) -> tuple[str, ...]:
    return str(row.gpu_index), row.gpu_uuid, row.owner.kind, row.owner.name, row.owner.namespace


# gpucommons_gpu_unattributed_*: the use of each GPU that has no known owner, by reason.


def _gauge(what: str, help: str) -> Metric:
    return gauge(f"gpucommons_gpu_unattributed_{what}", help, "gpu", "uuid", "reason")


_VALUES: tuple[tuple[Metric, Callable[[Unattributed], int | None], int], ...] = (
    (
        _gauge("bytes", "Used GPU memory without an owner, by reason; owners' memory plus this is the used memory."),
        lambda row: row.memory_bytes,
        1,
    ),
    (
        _gauge("sm_ratio", "SM time of a GPU without an owner, by reason; owners' time plus this is the GPU's."),
        lambda row: row.sm_millionths,
        1_000_000,
    ),
    (
        _gauge("power_watts", "Power of a GPU without an owner, by reason; owners' power plus this is the GPU's."),
        lambda row: row.power_milliwatts,
        1000,
    ),
)

GPU_UNATTRIBUTED_CATALOGUE = tuple(metric for metric, _, _ in _VALUES)


def collect_gpu_unattributed(snapshot: Snapshot) -> Iterator[Family]:
    attribution = snapshot.readings.attribution
    if attribution is None:
        return
    for metric, amount, unit in _VALUES:
        yield metric.of(
            ((str(row.gpu_index), row.gpu_uuid, row.reason), value / unit)
            for row in attribution.unattributed
            if (value := amount(row)) is not None
        )


# gpucommons_attribution_*: self-checks of attribution, and whether it sees the processes of the host.

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

ATTRIBUTION_CATALOGUE = (ERROR_MEMORY, ERROR_SM, SEES_HOST)

_ATTRIBUTION_MILLION = 1_000_000


def collect_attribution(snapshot: Snapshot) -> Iterator[Family]:
    attribution = snapshot.readings.attribution
    if attribution is None:
        return
    yield SEES_HOST.value(int(attribution.view.scope is PidScope.HOST))
    gpus = [((str(account.gpu_index), account.gpu_uuid), account) for account in attribution.accounts]
    yield ERROR_MEMORY.of((labels, a.memory_error_bytes) for labels, a in gpus if a.memory_used_bytes is not None)
    yield ERROR_SM.of(
        (labels, a.sm_error_millionths / _ATTRIBUTION_MILLION) for labels, a in gpus if a.sm_millionths is not None
    )


# gpucommons_vgpu_allocation_ratio_ok: the state of the file of allocation ratios that the vgpu dialect uses.

RATIO_OK = gauge(
    "gpucommons_vgpu_allocation_ratio_ok",
    "State of the file of allocation ratios: 1 if valid, 0 if invalid and the last valid values are used.",
)

VGPU_CATALOGUE = (RATIO_OK,)


def collect_vgpu(snapshot: Snapshot) -> Iterator[Family]:
    ratio = snapshot.readings.allocation_ratio
    yield RATIO_OK.value(None if ratio is None else int(not ratio.problem))


CATALOGUE = (
    *OWNERS_CATALOGUE,
    *GPU_UNATTRIBUTED_CATALOGUE,
    *ATTRIBUTION_CATALOGUE,
    *VGPU_CATALOGUE,
)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    yield from collect_owners(snapshot)
    yield from collect_gpu_unattributed(snapshot)
    yield from collect_attribution(snapshot)
    yield from collect_vgpu(snapshot)
