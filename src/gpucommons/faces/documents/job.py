"""One job from the ledger: what it held, used and cost, with hints. The document of /api/v1/job. Pure.

Every number is one conversion of an exact sum, as in the accounts: the totals are those of the report by job.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from gpucommons.faces.documents.accounts import COSTS, ROW, currency, hours, row
from gpucommons.faces.documents.parameters import BadParameter, Parameter, Value, text
from gpucommons.faces.documents.schema import INTEGER, NUMBER, TEXT, Schema, by_key, listed, or_null, record
from gpucommons.faces.documents.values import Json
from gpucommons.faces.documents.view import ENVELOPE, View
from gpucommons.model.accounts import NO_CHARGE, Amounts, Charge, JobUsage, Prices, sum_amounts
from gpucommons.model.allocations import Slot
from gpucommons.rules.cost import JobOutcome, charge_of, job_hints
from gpucommons.rules.identities import account_name
from gpucommons.rules.privacy import Viewer

SUMMARY = "one job: what it held, used and cost, and hints"
PARAMETERS: tuple[Parameter, ...] = (
    text("id", "the job: a Slurm job's id, lease-ID, or a pod as NAMESPACE/POD; required", 300),
)
_NS = 10**9
_REQUIRED: dict[str, Schema] = {
    "id": TEXT,
    "users": listed(TEXT),
    "first_unix_s": or_null(INTEGER),
    "last_unix_s": or_null(INTEGER),
    "waited_s": or_null(NUMBER),
    "ran_s": or_null(NUMBER),
    "slots": by_key(
        record(name=TEXT, model=or_null(TEXT), held_gpu_hours=NUMBER, active_gpu_hours=NUMBER), "UUID of the slot"
    ),
    "total": {**record(**ROW, **COSTS), "required": list(ROW)},
    "busy_ratio": or_null(NUMBER),
    "peak_memory_bytes": or_null(INTEGER),
    "asked_memory_bytes": or_null(INTEGER),
    "idle_cpu_ratio": or_null(NUMBER),
    "idle_disk_ratio": or_null(NUMBER),
    "hints": listed(TEXT),
}
JOB: Schema = {**record(**_REQUIRED, currency=TEXT), "required": list(_REQUIRED)}
SCHEMA: Schema = record(**ENVELOPE, job=or_null(JOB))


class JobQuery(NamedTuple):
    """With `user`, only what is billed to that name."""

    id: str
    user: str | None = None


class BilledJob(NamedTuple):
    """A job and the prices that are in force."""

    job: JobUsage
    prices: Prices


ReadJob = Callable[[JobQuery], Awaitable[BilledJob | None]]
"""None where the ledger has no such job. Raises LedgerUnreadable."""


def read(given: Mapping[str, Value]) -> str:
    """Raises BadParameter."""
    if not given.get("id"):
        raise BadParameter("id", "missing: name the job, such as lease-12")
    return str(given["id"])


async def document(view: View, viewer: Viewer, id: str, ledger: ReadJob) -> Json:
    """Null where there is no such job, or it is another user's and the viewer sees no other names."""
    found = None
    if viewer.sees_accounts:
        found = await ledger(JobQuery(id))
    elif viewer.user is not None:
        found = await ledger(JobQuery(id, viewer.user))
    return {**view.envelope(), "job": None if found is None else job_document(found)}


def job_document(billed: BilledJob) -> dict[str, Json]:
    job, prices = billed.job, billed.prices
    by_slot: dict[Slot, list[Amounts]] = {}
    charge: Charge = NO_CHARGE
    for (slot, _), amounts in job.usage.items():
        by_slot.setdefault(slot, []).append(amounts)
        if prices.per_gpu_hour:
            charge = charge.plus(charge_of(slot, job.models.get(slot.gpu_uuid, ""), amounts, prices))
    slots = {slot: sum_amounts(each) for slot, each in by_slot.items()}
    total = sum_amounts(slots.values())
    outcome, figures = _outcome(job, slots, total), job.figures
    return {
        "id": job.name,
        "users": sorted({account_name(account) for _, account in job.usage}),
        "first_unix_s": None if figures is None else figures.first_s,
        "last_unix_s": None if figures is None else figures.last_s,
        "waited_s": None if figures is None or figures.waited_ms is None else figures.waited_ms / 1000,
        "ran_s": None if figures is None else figures.last_s - figures.first_s,
        "slots": {
            slot.uuid: {
                "name": slot.name,
                "model": job.models.get(slot.gpu_uuid),
                "held_gpu_hours": hours(amounts.held_ns),
                "active_gpu_hours": hours(amounts.active_ns),
            }
            for slot, amounts in sorted(slots.items())
        },
        "total": row(total, charge, prices),
        "busy_ratio": None if outcome.idle_ratio is None else round(1 - outcome.idle_ratio, 4),
        "peak_memory_bytes": outcome.peak_bytes,
        "asked_memory_bytes": outcome.asked_bytes,
        "idle_cpu_ratio": _rounded(outcome.idle_cpu_ratio),
        "idle_disk_ratio": _rounded(outcome.idle_disk_ratio),
        "hints": list(job_hints(outcome)),
        **currency(prices),
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


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 4)
