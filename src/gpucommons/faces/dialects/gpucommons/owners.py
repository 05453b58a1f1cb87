"""gpucommons_owner_*: each owner's current part of each GPU, and the totals that the ledger keeps."""

from collections.abc import Callable, Iterable, Iterator

from gpucommons.faces.exposition.families import Family, Metric, counter, gauge, summed
from gpucommons.model.accounts import Amounts
from gpucommons.model.ownership import OwnerShare, Portion
from gpucommons.model.snapshot import Snapshot

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

_TOTALS: tuple[tuple[Metric, Callable[[Amounts], float]], ...] = (
    (
        _owner_counter("held_gpu_seconds", "Time for which an owner held a GPU or MIG device, divided among sharers"),
        lambda amounts: amounts.held_ns / 1e9,
    ),
    (
        _owner_counter("active_gpu_seconds", "Part of the held time in which the owner's processes used the GPU"),
        lambda amounts: amounts.active_ns / 1e9,
    ),
    (
        _owner_counter("idle_gpu_seconds", "Part of the held time in which the owner did not use the GPU"),
        lambda amounts: amounts.idle_ns / 1e9,
    ),
    (
        _owner_counter("gpu_equivalent_seconds", "Held time, weighted by the held fraction of the GPU"),
        lambda amounts: amounts.equivalent_ns / 1e9,
    ),
    (
        _owner_counter("sm_gpu_seconds", "Held time, weighted by the owner's SM utilization"),
        lambda amounts: amounts.sm_ns / 1e9,
    ),
    (
        _owner_counter("memory_byte_seconds", "GPU memory that an owner used, integrated over time"),
        lambda amounts: amounts.memory_kib_s * 1024,
    ),
    (_owner_counter("energy_joules", "GPU energy due to an owner"), lambda amounts: amounts.energy_uj / 1e6),
)

CATALOGUE = (MEMORY, SM, POWER, PROCESSES, *(metric for metric, _ in _TOTALS))

_MILLION, _THOUSAND = 1_000_000, 1000


def collect(snapshot: Snapshot) -> Iterator[Family]:
    attribution, ledger = snapshot.readings.attribution, snapshot.readings.ledger
    if attribution is not None:
        rows = attribution.owners
        yield _parts(MEMORY, ((row, row.memory) for row in rows), 1)
        yield _parts(SM, ((row, row.sm) for row in rows), _MILLION)
        yield _parts(POWER, ((row, row.power) for row in rows), _THOUSAND)
        yield PROCESSES.of(summed((_labels(row), row.processes) for row in rows))
    if ledger is not None:
        totals = ledger.totals or {}
        for metric, amount in _TOTALS:
            yield metric.of((tuple(key), amount(amounts)) for key, amounts in totals.items())


def _parts(metric: Metric, rows: Iterable[tuple[OwnerShare, Portion | None]], unit: int) -> Family:
    """Two owners may have the same name (two uids, a recreated pod): they share a series."""
    known = ((row, part) for row, part in rows if part is not None)
    sums = summed(((*_labels(row), part.basis), part.amount) for row, part in known)
    return metric.of((labels, amount / unit) for labels, amount in sums)


def _labels(row: OwnerShare) -> tuple[str, ...]:
    return str(row.gpu_index), row.gpu_uuid, row.owner.kind, row.owner.name, row.owner.namespace
