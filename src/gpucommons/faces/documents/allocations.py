"""Which owner holds which slot, by slot and workload. Pure."""

from gpucommons.faces.documents.schema import (
    FLAG,
    INTEGER,
    INTEGER_OR_NULL,
    NUMBER,
    NUMBER_OR_NULL,
    TEXT,
    Record,
    by_key,
    described,
    one_of,
    or_null,
    record,
)
from gpucommons.faces.documents.values import Json, rounded
from gpucommons.model.allocations import (
    WHOLE_SHARE,
    WHOLE_SM,
    Access,
    Account,
    Allocation,
    AllocationState,
    Slot,
    SlotInfo,
    WorkloadKind,
)
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.cost import QuotaState, quota_states
from gpucommons.rules.identities import account_name

_OWNER = Record[Account](
    kind=(TEXT, lambda account: account.kind),
    id=(TEXT, lambda account: account.id),
    name=(TEXT, lambda account: account.owner),
    namespace=(TEXT, lambda account: account.namespace),
)
_SLOT = Record[SlotInfo](
    slot=(TEXT, lambda info: info.slot.name),
    gpu_uuid=(TEXT, lambda info: info.slot.gpu_uuid),
    gpu_index=(INTEGER, lambda info: info.gpu_index),
    profile=(TEXT, lambda info: info.profile),
    gpu_equivalents=(NUMBER_OR_NULL, lambda info: _equivalents(info.slot)),
)
_ALLOCATION = Record[Allocation](
    slot=(TEXT, lambda each: each.slot.name),
    slot_uuid=(TEXT, lambda each: each.slot.uuid),
    gpu_uuid=(TEXT, lambda each: each.slot.gpu_uuid),
    profile=(TEXT, lambda each: each.profile),
    account=(TEXT, lambda each: account_name(each.account)),
    user=(TEXT, lambda each: each.account.user),
    group=(TEXT, lambda each: each.account.group),
    owner=(_OWNER.schema, lambda each: _OWNER.build(each.account)),
    pod=(TEXT, lambda each: each.account.pod),
    job=(TEXT, lambda each: each.account.job),
    workload=(TEXT, lambda each: each.workload),
    workload_id=(TEXT, lambda each: each.workload_id),
    kind=(one_of(*WorkloadKind), lambda each: each.kind.value),
    state=(one_of(*AllocationState), lambda each: each.state.value),
    share_ratio=(NUMBER, lambda each: each.share / WHOLE_SHARE),
    gpu_equivalents=(NUMBER_OR_NULL, lambda each: each.equivalents),
    interface=(TEXT, lambda each: each.interface),
    managed=(FLAG, lambda each: each.managed),
    access=(one_of(*Access), lambda each: each.access.value),
    since_unix_s=(NUMBER_OR_NULL, lambda each: each.since_wall_s),
    sm_ratio=(NUMBER_OR_NULL, lambda each: None if each.sm is None else each.sm / WHOLE_SM),
    memory_bytes=(INTEGER_OR_NULL, lambda each: each.memory_bytes),
    power_watts=(NUMBER_OR_NULL, lambda each: None if each.milliwatts is None else each.milliwatts / 1000),
)
_QUOTA = Record[QuotaState](
    gpu_equivalents=(described(NUMBER, "GPU-equivalents that the user may hold"), lambda quota: quota.limit),
    held_gpu_equivalents=(NUMBER_OR_NULL, lambda quota: rounded(quota.used, 6)),
    exceeded=(or_null(FLAG), lambda quota: quota.exceeded),
)
SCHEMA = or_null(
    record(
        complete=FLAG,
        slots=by_key(_SLOT.schema, "UUID of the slot"),
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
        "slots": {info.slot.uuid: _SLOT.build(info) for info in reading.slots if not info.is_rest},
        "held": {
            f"{each.slot.uuid}/{each.workload_id}": _ALLOCATION.build(each)
            for each in reading.allocations
            if only_user in (None, account_name(each.account))
        },
        "quotas": {
            quota.user: _QUOTA.build(quota)
            for quota in quota_states(ledger.quotas if ledger else {}, reading)
            if only_user in (None, quota.user)
        },
    }


def _equivalents(slot: Slot) -> float | None:
    return None if slot.slices is None else slot.slices / slot.of
