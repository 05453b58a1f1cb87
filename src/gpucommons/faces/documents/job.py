"""One job from the ledger: what it held, used and cost, with hints. The document of /api/v1/job. Pure.

Every number is one conversion of an exact sum, as in the accounts: the totals are those of the report by job.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from gpucommons.base.address import job_address
from gpucommons.faces.documents.accounts import ROW, currency, hours, total_of
from gpucommons.faces.documents.parameters import BadParameter, Parameter, Value, text
from gpucommons.faces.documents.schema import (
    ABSENT,
    INTEGER_OR_NULL,
    NUMBER,
    NUMBER_OR_NULL,
    TEXT,
    TEXT_OR_NULL,
    Record,
    Schema,
    by_key,
    list_of,
    or_null,
    record,
)
from gpucommons.faces.documents.values import Json, round_value
from gpucommons.faces.documents.view import ENVELOPE, View
from gpucommons.model.accounts import NO_CHARGE, Amounts, Charge, JobUsage, Prices, sum_amounts
from gpucommons.model.allocations import Slot
from gpucommons.model.cost import charge_of
from gpucommons.model.names import account_name
from gpucommons.model.viewer import Viewer
from gpucommons.rules.job_hints import JobOutcome, job_hints

SUMMARY = "one job: what it held, used and cost, and hints"
PARAMETERS: tuple[Parameter, ...] = (
    text("id", "the job: a Slurm job's id, lease-ID, or a pod as NAMESPACE/POD; required", 300),
)
_NS = 10**9


class _SlotOfJob(NamedTuple):
    slot: Slot
    model: str | None
    amounts: Amounts


class _Sums(NamedTuple):
    """A job with what its document is made from. `slots` are what it held on each."""

    job: JobUsage
    prices: Prices
    slots: Mapping[Slot, Amounts]
    total: Amounts
    charge: Charge
    outcome: JobOutcome
    dashboard_url: str | None


_SLOT = Record[_SlotOfJob](
    name=(TEXT, lambda held: held.slot.name),
    model=(TEXT_OR_NULL, lambda held: held.model),
    held_gpu_hours=(NUMBER, lambda held: hours(held.amounts.held_ns)),
    active_gpu_hours=(NUMBER, lambda held: hours(held.amounts.active_ns)),
)
_JOB = Record[_Sums](
    {"currency": (TEXT, lambda sums: currency(sums.prices) or ABSENT)},
    id=(TEXT, lambda sums: sums.job.name),
    users=(list_of(TEXT), lambda sums: sorted({account_name(account) for _, account in sums.job.usage})),
    first_unix_s=(INTEGER_OR_NULL, lambda sums: sums.job.figures.first_s if sums.job.figures else None),
    last_unix_s=(INTEGER_OR_NULL, lambda sums: sums.job.figures.last_s if sums.job.figures else None),
    waited_s=(NUMBER_OR_NULL, lambda sums: _waited_s(sums.job)),
    ran_s=(
        NUMBER_OR_NULL,
        lambda sums: sums.job.figures.last_s - sums.job.figures.first_s if sums.job.figures else None,
    ),
    slots=(by_key(_SLOT.schema, "UUID of the slot"), lambda sums: _slots(sums)),
    total=(ROW.schema, lambda sums: total_of(sums.total, sums.charge, sums.prices)),
    busy_ratio=(NUMBER_OR_NULL, lambda sums: round_value(_busy_ratio(sums.outcome), 4)),
    peak_memory_bytes=(INTEGER_OR_NULL, lambda sums: sums.outcome.peak_bytes),
    asked_memory_bytes=(INTEGER_OR_NULL, lambda sums: sums.outcome.asked_bytes),
    idle_cpu_ratio=(NUMBER_OR_NULL, lambda sums: round_value(sums.outcome.idle_cpu_ratio, 4)),
    idle_disk_ratio=(NUMBER_OR_NULL, lambda sums: round_value(sums.outcome.idle_disk_ratio, 4)),
    hints=(list_of(TEXT), lambda sums: list(job_hints(sums.outcome))),
    dashboard_url=(TEXT_OR_NULL, lambda sums: sums.dashboard_url),
)
JOB: Schema = _JOB.schema
SCHEMA: Schema = record(**ENVELOPE, job=or_null(JOB))


class JobQuery(NamedTuple):
    """With `user`, only what is billed to that name."""

    id: str
    user: str | None = None


class BilledJob(NamedTuple):
    """A job, the prices that are in force, and the setting `fleet.job_url`."""

    job: JobUsage
    prices: Prices
    job_url: str = ""


ReadJob = Callable[[JobQuery], Awaitable[BilledJob | None]]
"""None where the ledger has no such job. Raises LedgerUnreadable."""


def read(given: Mapping[str, Value]) -> str:
    """Raises BadParameter."""
    if not given.get("id"):
        raise BadParameter("id", "missing: name the job, such as lease-12")
    return str(given["id"])


async def document(view: View, viewer: Viewer, id: str, ledger: ReadJob) -> Json:
    """Null where there is no such job, or it is another user's and the viewer sees no other names."""
    job = None
    if viewer.sees_accounts:
        job = await ledger(JobQuery(id))
    elif viewer.user is not None:
        job = await ledger(JobQuery(id, viewer.user))
    return {**view.envelope(), "job": None if job is None else job_document(job)}


def job_document(billed: BilledJob) -> dict[str, Json]:
    job, prices = billed.job, billed.prices
    by_slot: dict[Slot, list[Amounts]] = {}
    charge: Charge = NO_CHARGE
    for (slot, _), amounts in job.usage.items():
        by_slot.setdefault(slot, []).append(amounts)
        if prices.per_gpu_hour:
            charge = charge.plus(charge_of(slot, job.models.get(slot.gpu_uuid, ""), amounts, prices))
    slots = {slot: sum_amounts(parts) for slot, parts in by_slot.items()}
    total = sum_amounts(slots.values())
    times = (None, None) if job.figures is None else (job.figures.first_s, job.figures.last_s)
    dashboard_url = job_address(billed.job_url, job.name, *times)
    return _JOB.build(_Sums(job, prices, slots, total, charge, _outcome(job, slots, total), dashboard_url))


def _waited_s(job: JobUsage) -> float | None:
    return None if job.figures is None or job.figures.waited_ms is None else job.figures.waited_ms / 1000


def _busy_ratio(outcome: JobOutcome) -> float | None:
    return None if outcome.idle_ratio is None else 1 - outcome.idle_ratio


def _slots(sums: _Sums) -> Json:
    return {
        slot.uuid: _SLOT.build(_SlotOfJob(slot, sums.job.models.get(slot.gpu_uuid), amounts))
        for slot, amounts in sorted(sums.slots.items())
    }


def _outcome(job: JobUsage, slots: Mapping[Slot, Amounts], total: Amounts) -> JobOutcome:
    judged_ns = total.active_ns + total.idle_ns
    figures = job.figures
    seen_ns = 0 if figures is None else figures.idle_seen_ns
    return JobOutcome(
        judged_ns / _NS,
        len(slots),
        sum(1 for amounts in slots.values() if amounts.active_ns),
        total.idle_ns / judged_ns if judged_ns else None,
        figures.idle_cpu_ns / seen_ns if figures and seen_ns else None,
        figures.idle_disk_ns / seen_ns if figures and seen_ns else None,
        None if figures is None or figures.peak_kib is None else figures.peak_kib * 1024,
        None if figures is None or figures.asked_kib is None else figures.asked_kib * 1024,
    )
