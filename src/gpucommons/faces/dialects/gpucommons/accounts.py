"""gpucommons_owner_*_total, _quota_*, _ledger_*: what each owner was billed, who exceeds a quota, how the ledger is."""

from collections.abc import Callable, Iterator

from gpucommons.faces.exposition.families import Family, Metric, counter, gauge
from gpucommons.model.accounts import Amounts, LedgerReading, LedgerState
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.quotas import quota_states

_OWNER = ("kind", "owner", "namespace")
_DURABLE = " Survives restarts; shows what is on the disk."


def _owner_counter(what: str, help: str) -> Metric:
    return counter(f"gpucommons_owner_{what}_total", help + _DURABLE, *_OWNER, optional=("namespace",))


HELD = _owner_counter("held_gpu_seconds", "Time that an owner held a GPU or MIG device; what is shared is divided.")
ACTIVE = _owner_counter("active_gpu_seconds", "Of the time held, the part in which the owner's processes worked.")
IDLE = _owner_counter("idle_gpu_seconds", "Of the time held, the part in which nothing worked: waste.")
EQUIVALENT = _owner_counter("gpu_equivalent_seconds", "Time held, weighed by the part of the GPU that it was.")
SM = _owner_counter("sm_gpu_seconds", "Time held, weighed by how busy the owner kept the GPU.")
MEMORY = _owner_counter("memory_byte_seconds", "GPU memory used, over time.")
ENERGY = _owner_counter("energy_joules", "Energy of the GPUs that is due to an owner.")

QUOTA = gauge("gpucommons_quota_gpu_equivalents", "The most GPU-equivalents that a user may hold.", "user")
QUOTA_USED = gauge("gpucommons_quota_used_gpu_equivalents", "GPU-equivalents that a user with a quota holds.", "user")
QUOTA_EXCEEDED = gauge("gpucommons_quota_exceeded", "1 if a user holds more than the quota, else 0.", "user")

WRITING = gauge("gpucommons_ledger_writing", "1 if the last flush of the ledger reached the disk, else 0.")
DURABLE = gauge("gpucommons_ledger_durable", "1 if the owners' counters survive a restart; 0: counted since the start.")
LAST_FLUSH = gauge("gpucommons_ledger_last_flush_timestamp_seconds", "Unix time of the last flush that was written.")
BACKLOG = gauge("gpucommons_ledger_backlog_seconds", "Usage that waits in memory to be written.")
LOST = counter("gpucommons_ledger_lost_seconds_total", "Usage that waited for longer than an hour and was let go of.")
FAILURES = counter("gpucommons_ledger_failures_total", "Flushes of the ledger that failed, by reason.", "reason")
GAPS = counter("gpucommons_ledger_gap_seconds_total", "Time billed to nobody, by why it was not seen.", "reason")
SIZE = gauge("gpucommons_ledger_file_bytes", "Size of the ledger's file.")
EVENT_LOG = gauge("gpucommons_event_log_writing", "1 if our own event log can be written, else 0.")

CATALOGUE = (
    HELD,
    ACTIVE,
    IDLE,
    EQUIVALENT,
    SM,
    MEMORY,
    ENERGY,
    QUOTA,
    QUOTA_USED,
    QUOTA_EXCEEDED,
    WRITING,
    DURABLE,
    LAST_FLUSH,
    BACKLOG,
    LOST,
    FAILURES,
    GAPS,
    SIZE,
    EVENT_LOG,
)

_COUNTERS: tuple[tuple[Metric, Callable[[Amounts], float]], ...] = (
    (HELD, lambda amounts: amounts.held_ns / 1e9),
    (ACTIVE, lambda amounts: amounts.active_ns / 1e9),
    (IDLE, lambda amounts: amounts.idle_ns / 1e9),
    (EQUIVALENT, lambda amounts: amounts.equivalent_ns / 1e9),
    (SM, lambda amounts: amounts.sm_ns / 1e9),
    (MEMORY, lambda amounts: amounts.memory_kib_s * 1024),
    (ENERGY, lambda amounts: amounts.energy_uj / 1e6),
)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    accounts = snapshot.readings.ledger
    if accounts is None:
        return
    totals = accounts.totals or {}
    for metric, amount in _COUNTERS:
        yield metric.of((tuple(key), amount(amounts)) for key, amounts in totals.items())
    yield from _quotas(snapshot, accounts)
    # A machine that was never seen to have a GPU keeps no ledger, and there is nothing wrong with it.
    if accounts.ledger.begun:
        yield from _ledger(accounts.ledger)
        yield EVENT_LOG.value(int(accounts.event_log_writing))


def _quotas(snapshot: Snapshot, accounts: LedgerReading) -> Iterator[Family]:
    states = quota_states(accounts.quotas, snapshot.readings.allocations)
    yield QUOTA.of(((state.user,), state.limit) for state in states)
    yield QUOTA_USED.of(((state.user,), state.used) for state in states if state.used is not None)
    yield QUOTA_EXCEEDED.of(((state.user,), int(state.exceeded)) for state in states if state.exceeded is not None)


def _ledger(ledger: LedgerState) -> Iterator[Family]:
    yield WRITING.value(int(ledger.writing))
    yield DURABLE.value(int(ledger.durable))
    yield LAST_FLUSH.value(ledger.last_flush_wall_s)
    yield BACKLOG.value(ledger.backlog_s)
    yield LOST.value(ledger.lost_s)
    yield FAILURES.of(((reason,), count) for reason, count in ledger.failures.items())
    yield GAPS.of(((reason,), ns / 1e9) for reason, ns in ledger.gap_ns.items())
    yield SIZE.value(ledger.file_bytes)
