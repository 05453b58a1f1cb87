"""The state of each slot, its holders, and since when. Pure."""

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
    listed,
    one_of,
    or_null,
)
from gpucommons.faces.documents.values import Json, rounded
from gpucommons.model.allocations import WHOLE_SHARE, Allocation, SlotState, SlotStatus, WorkloadKind
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.identities import account_name

_HOLDER = Record[Allocation](
    account=(TEXT, lambda each: account_name(each.account)),
    user=(TEXT, lambda each: each.account.user),
    kind=(one_of(*WorkloadKind), lambda each: each.kind.value),
    workload=(TEXT, lambda each: each.workload),
    workload_id=(TEXT, lambda each: each.workload_id),
    share_ratio=(NUMBER, lambda each: each.share / WHOLE_SHARE),
    active=(or_null(FLAG), lambda each: each.active),
)
_SLOT = Record[SlotStatus](
    slot=(TEXT, lambda status: status.slot.name),
    gpu_uuid=(TEXT, lambda status: status.slot.gpu_uuid),
    gpu_index=(INTEGER, lambda status: status.gpu_index),
    profile=(described(TEXT, "the profile of a MIG device; empty for a whole GPU"), lambda status: status.profile),
    state=(
        described(
            one_of(*SlotState),
            "free: no workload holds it; held_idle: held, and no holder uses it; busy: held, and used or not known to "
            "be idle; reserved: a reservation is in force; lost: its GPU no longer answers; unknown: no holder is "
            "known, and there may be one",
        ),
        lambda status: status.state.value,
    ),
    why=(described(TEXT, "why it is lost or unknown, in words"), lambda status: status.why),
    holders=(listed(_HOLDER.schema), lambda status: [_HOLDER.build(each) for each in status.holders]),
    hidden_holders=(
        described(INTEGER, "holders that are hidden from this viewer"),
        lambda status: status.hidden_holders,
    ),
    since_unix_s=(
        described(
            NUMBER_OR_NULL, "when it was taken, freed or lost; null if before the start of the agent and not known"
        ),
        lambda status: rounded(status.since_wall_s, 0),
    ),
    idle_s=(
        described(NUMBER_OR_NULL, "how long its holders have not used it, as far as the agent has seen"),
        lambda status: rounded(status.idle_s, 0),
    ),
    memory_total_bytes=(INTEGER_OR_NULL, lambda status: status.memory_total_bytes),
    memory_free_bytes=(INTEGER_OR_NULL, lambda status: status.memory_free_bytes),
)
SCHEMA = or_null(by_key(_SLOT.schema, "UUID of the slot"))


def slots(snapshot: Snapshot) -> Json:
    """Null where no GPU can be read."""
    reading = snapshot.readings.slots
    return None if reading is None else {status.slot.uuid: _SLOT.build(status) for status in reading.slots}
