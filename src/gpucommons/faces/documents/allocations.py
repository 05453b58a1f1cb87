"""Which owner holds which slot, by slot and workload. Pure."""

from gpucommons.faces.documents.schema import FLAG, INTEGER, NUMBER, TEXT, by_key, one_of, or_null, record
from gpucommons.faces.documents.values import Json
from gpucommons.model.allocations import Access, Allocation, AllocationState, SlotInfo, WorkloadKind
from gpucommons.model.snapshot import Snapshot
from gpucommons.model.usage import WHOLE_SHARE, WHOLE_SM
from gpucommons.rules.identities import account_name

_NUMBER = or_null(NUMBER)
_SLOT = record(slot=TEXT, gpu_uuid=TEXT, gpu_index=INTEGER, profile=TEXT, gpu_equivalents=_NUMBER)
_ALLOCATION = record(
    slot=TEXT,
    slot_uuid=TEXT,
    gpu_uuid=TEXT,
    profile=TEXT,
    account=TEXT,
    user=TEXT,
    group=TEXT,
    owner=record(kind=TEXT, id=TEXT, name=TEXT, namespace=TEXT),
    pod=TEXT,
    job=TEXT,
    workload=TEXT,
    workload_id=TEXT,
    kind=one_of(*WorkloadKind),
    state=one_of(*AllocationState),
    share_ratio=NUMBER,
    gpu_equivalents=_NUMBER,
    interface=TEXT,
    managed=FLAG,
    access=one_of(*Access),
    since_unix_s=_NUMBER,
    sm_ratio=_NUMBER,
    memory_bytes=or_null(INTEGER),
    power_watts=_NUMBER,
)
SCHEMA = or_null(
    record(
        complete=FLAG,
        slots=by_key(_SLOT, "UUID of the slot"),
        held=by_key(_ALLOCATION, "UUID of the slot and id of the workload"),
    )
)


def allocations(snapshot: Snapshot, only_user: str | None = None) -> Json:
    """Null where the viewer may not see them. `complete` is false while a source of holders does not answer."""
    reading = snapshot.readings.allocations
    if reading is None:
        return None
    return {
        "complete": reading.complete,
        "slots": {info.slot.uuid: _slot(info) for info in reading.slots if not info.is_rest},
        "held": {
            f"{each.slot.uuid}/{each.workload_id}": _allocation(each)
            for each in reading.allocations
            if only_user in (None, account_name(each.account))
        },
    }


def _slot(info: SlotInfo) -> Json:
    slot = info.slot
    return {
        "slot": slot.name,
        "gpu_uuid": slot.gpu_uuid,
        "gpu_index": info.gpu_index,
        "profile": info.profile,
        "gpu_equivalents": None if slot.slices is None else slot.slices / slot.of,
    }


def _allocation(each: Allocation) -> Json:
    account = each.account
    return {
        "slot": each.slot.name,
        "slot_uuid": each.slot.uuid,
        "gpu_uuid": each.slot.gpu_uuid,
        "profile": each.profile,
        "account": account_name(account),
        "user": account.user,
        "group": account.group,
        "owner": {"kind": account.kind, "id": account.id, "name": account.owner, "namespace": account.namespace},
        "pod": account.pod,
        "job": account.job,
        "workload": each.workload,
        "workload_id": each.workload_id,
        "kind": each.kind.value,
        "state": each.state.value,
        "share_ratio": each.share / WHOLE_SHARE,
        "gpu_equivalents": each.equivalents,
        "interface": each.interface,
        "managed": each.managed,
        "access": each.access.value,
        "since_unix_s": each.since_wall_s,
        "sm_ratio": None if each.sm is None else each.sm / WHOLE_SM,
        "memory_bytes": each.memory_bytes,
        "power_watts": None if each.milliwatts is None else each.milliwatts / 1000,
    }
