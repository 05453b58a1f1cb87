"""The state of each slot with its holders, and which owner holds which slot by workload. Pure."""

from typing import NamedTuple

from gpucommons.faces.documents.schema import (
    FLAG,
    INTEGER,
    INTEGER_OR_NULL,
    NUMBER,
    NUMBER_OR_NULL,
    TEXT,
    Record,
    by_key,
    describe,
    list_of,
    one_of,
    or_null,
    record,
)
from gpucommons.faces.documents.values import Json, round_value
from gpucommons.model.allocations import (
    WHOLE_SHARE,
    WHOLE_SM,
    Access,
    Account,
    Allocation,
    AllocationState,
    Slot,
    SlotInfo,
    SlotState,
    SlotStatus,
    WorkloadKind,
)
from gpucommons.model.cost import QuotaState, quota_states
from gpucommons.model.names import account_name
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.summary import slot_detail

# The state of each slot, its holders, and since when. Pure.

_HOLDER = Record[Allocation](
    account=(TEXT, lambda allocation: account_name(allocation.account)),
    user=(TEXT, lambda allocation: allocation.account.user),
    kind=(one_of(*WorkloadKind), lambda allocation: allocation.kind.value),
    workload=(TEXT, lambda allocation: allocation.workload),
    workload_id=(TEXT, lambda allocation: allocation.workload_id),
    share_ratio=(NUMBER, lambda allocation: allocation.share / WHOLE_SHARE),
    active=(or_null(FLAG), lambda allocation: allocation.active),
)


class _SlotNow(NamedTuple):
    """`ready_s` is when a further request for a lease is expected to get the slot; None: not known."""

    status: SlotStatus
    wall_s: float
    ready_s: float | None


_SLOTS_SLOT = Record[_SlotNow](
    slot=(TEXT, lambda at: at.status.slot.name),
    gpu_uuid=(TEXT, lambda at: at.status.slot.gpu_uuid),
    gpu_index=(INTEGER, lambda at: at.status.gpu_index),
    profile=(describe(TEXT, "the profile of a MIG device; empty for a whole GPU"), lambda at: at.status.profile),
    state=(
        describe(
            one_of(*SlotState),
            "free: no workload holds it; held_idle: held, and no holder uses it; busy: held, and used, or its use "
            "could not be measured; reserved: a reservation is in force; lost: its GPU no longer answers; unknown: no "
            "holder is known, and there may be one",
        ),
        lambda at: at.status.state.value,
    ),
    why=(describe(TEXT, "why it is lost or unknown, in words"), lambda at: at.status.why),
    detail=(
        describe(TEXT, "by which holder and for how long, or why, in words"),
        lambda at: slot_detail(at.status, at.wall_s),
    ),
    holders=(list_of(_HOLDER.schema), lambda at: [_HOLDER.build(allocation) for allocation in at.status.holders]),
    hidden_holders=(
        describe(INTEGER, "holders that are hidden from this viewer"),
        lambda at: at.status.hidden_holders,
    ),
    since_unix_s=(
        describe(
            NUMBER_OR_NULL, "when it was taken, freed or lost; null if before the start of the agent and not known"
        ),
        lambda at: round_value(at.status.since_wall_s, 0),
    ),
    idle_s=(
        describe(NUMBER_OR_NULL, "how long its holders have not used it, as far as the agent has seen"),
        lambda at: round_value(at.status.idle_s, 0),
    ),
    memory_total_bytes=(INTEGER_OR_NULL, lambda at: at.status.memory_total_bytes),
    memory_free_bytes=(INTEGER_OR_NULL, lambda at: at.status.memory_free_bytes),
    expected_free_unix_s=(
        describe(
            NUMBER_OR_NULL,
            "when a further request for a lease is expected to get it, after those that wait; null where it is free or "
            "that is not known",
        ),
        lambda at: round_value(at.ready_s, 0),
    ),
)
SLOTS_SCHEMA = or_null(by_key(_SLOTS_SLOT.schema, "UUID of the slot"))


def slots(snapshot: Snapshot) -> Json:
    """Null where no GPU can be read."""
    reading, leases = snapshot.readings.slots, snapshot.readings.leases
    if reading is None:
        return None
    ready_s = {} if leases is None else leases.ready_s
    return {
        slot.slot.uuid: _SLOTS_SLOT.build(
            _SlotNow(slot, snapshot.wall_s, None if slot.state is SlotState.FREE else ready_s.get(slot.slot.uuid))
        )
        for slot in reading.slots
    }


# Which owner holds which slot, by slot and workload. Pure.

_OWNER = Record[Account](
    kind=(TEXT, lambda account: account.kind),
    id=(TEXT, lambda account: account.id),
    name=(TEXT, lambda account: account.owner),
    namespace=(TEXT, lambda account: account.namespace),
)
_ALLOCATIONS_SLOT = Record[SlotInfo](
    slot=(TEXT, lambda info: info.slot.name),
    gpu_uuid=(TEXT, lambda info: info.slot.gpu_uuid),
    gpu_index=(INTEGER, lambda info: info.gpu_index),
    profile=(TEXT, lambda info: info.profile),
    gpu_equivalents=(NUMBER_OR_NULL, lambda info: _equivalents(info.slot)),
)
_ALLOCATION = Record[Allocation](
    slot=(TEXT, lambda allocation: allocation.slot.name),
    slot_uuid=(TEXT, lambda allocation: allocation.slot.uuid),
    gpu_uuid=(TEXT, lambda allocation: allocation.slot.gpu_uuid),
    profile=(TEXT, lambda allocation: allocation.profile),
    account=(TEXT, lambda allocation: account_name(allocation.account)),
    user=(TEXT, lambda allocation: allocation.account.user),
    group=(TEXT, lambda allocation: allocation.account.group),
    owner=(_OWNER.schema, lambda allocation: _OWNER.build(allocation.account)),
    pod=(TEXT, lambda allocation: allocation.account.pod),
    job=(TEXT, lambda allocation: allocation.account.job),
    workload=(TEXT, lambda allocation: allocation.workload),
    workload_id=(TEXT, lambda allocation: allocation.workload_id),
    kind=(one_of(*WorkloadKind), lambda allocation: allocation.kind.value),
    state=(one_of(*AllocationState), lambda allocation: allocation.state.value),
    share_ratio=(NUMBER, lambda allocation: allocation.share / WHOLE_SHARE),
    gpu_equivalents=(NUMBER_OR_NULL, lambda allocation: allocation.equivalents),
    interface=(TEXT, lambda allocation: allocation.interface),
    managed=(FLAG, lambda allocation: allocation.managed),
    access=(one_of(*Access), lambda allocation: allocation.access.value),
    since_unix_s=(NUMBER_OR_NULL, lambda allocation: allocation.since_wall_s),
    sm_ratio=(NUMBER_OR_NULL, lambda allocation: None if allocation.sm is None else allocation.sm / WHOLE_SM),
    memory_bytes=(INTEGER_OR_NULL, lambda allocation: allocation.memory_bytes),
    power_watts=(
        NUMBER_OR_NULL,
        lambda allocation: None if allocation.milliwatts is None else allocation.milliwatts / 1000,
    ),
)
_QUOTA = Record[QuotaState](
    gpu_equivalents=(describe(NUMBER, "GPU-equivalents that the user may hold"), lambda quota: quota.limit),
    held_gpu_equivalents=(NUMBER_OR_NULL, lambda quota: round_value(quota.used, 6)),
    exceeded=(or_null(FLAG), lambda quota: quota.exceeded),
)
ALLOCATIONS_SCHEMA = or_null(
    record(
        complete=FLAG,
        slots=by_key(_ALLOCATIONS_SLOT.schema, "UUID of the slot"),
        held=by_key(_ALLOCATION.schema, "UUID of the slot and id of the workload"),
        quotas=by_key(_QUOTA.schema, "user"),
    )
)


def allocations(snapshot: Snapshot, only_user: str | None = None) -> Json:
    """Null where the viewer may not see them. `complete` is false while a source of holders does not answer."""
    reading, ledger = snapshot.readings.allocations, snapshot.readings.ledger
    if reading is None:
        return None
    return {
        "complete": reading.complete,
        "slots": {info.slot.uuid: _ALLOCATIONS_SLOT.build(info) for info in reading.slots if not info.is_rest},
        "held": {
            f"{allocation.slot.uuid}/{allocation.workload_id}": _ALLOCATION.build(allocation)
            for allocation in reading.allocations
            if only_user in (None, account_name(allocation.account))
        },
        "quotas": {
            quota.user: _QUOTA.build(quota)
            for quota in quota_states(ledger.quotas if ledger else {}, reading)
            if only_user in (None, quota.user)
        },
    }


def _equivalents(slot: Slot) -> float | None:
    return None if slot.slices is None else slot.slices / slot.of
