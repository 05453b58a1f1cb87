"""Who uses what: process by process, owner by owner, and what has no owner and why. Pure.

`grouped` folds the process rows by user, pod, container or owner: what several do together, on which GPUs.
"""

from collections.abc import Callable, Iterable, Mapping

from gpucommons.faces.documents.schema import INTEGER, NUMBER, TEXT, Schema, by_key, listed, one_of, or_null, record
from gpucommons.faces.documents.values import Json, total
from gpucommons.model.ownership import SENTENCES, Attribution, Basis, Owner, Place, Portion, ProcessShare, Unattributed
from gpucommons.model.snapshot import Snapshot

_BASIS = or_null(one_of(*Basis))
_AMOUNTS: dict[str, Schema] = {
    "memory_bytes": or_null(INTEGER),
    "memory_basis": _BASIS,
    "sm_ratio": or_null(NUMBER),
    "sm_basis": _BASIS,
    "power_watts": or_null(NUMBER),
    "power_basis": _BASIS,
}
PROCESS = record(
    gpu_uuid=TEXT,
    gpu_index=INTEGER,
    gpu_instance_id=or_null(INTEGER),
    pid=INTEGER,
    name=TEXT,
    owner=or_null(TEXT),
    reason=or_null(TEXT),
    uid=or_null(INTEGER),
    user=or_null(TEXT),
    container_id=or_null(TEXT),
    container=or_null(TEXT),
    image=or_null(TEXT),
    pod_uid=or_null(TEXT),
    pod=or_null(TEXT),
    namespace=or_null(TEXT),
    job=or_null(TEXT),
    unit=or_null(TEXT),
    **_AMOUNTS,
)
OWNER = record(
    kind=TEXT,
    id=TEXT,
    name=TEXT,
    namespace=TEXT,
    processes=INTEGER,
    gpu_hours_today=or_null(NUMBER),
    by_gpu=by_key(record(gpu_index=INTEGER, processes=INTEGER, **_AMOUNTS), "UUID of the GPU"),
    **_AMOUNTS,
)
_REST = record(
    gpu_index=INTEGER,
    sentence=TEXT,
    memory_bytes=or_null(INTEGER),
    sm_ratio=or_null(NUMBER),
    power_watts=or_null(NUMBER),
)
SCHEMA = or_null(
    record(
        view=record(scope=TEXT, sentence=TEXT),
        processes=by_key(PROCESS, "GPU, pid and start time"),
        owners=by_key(OWNER, "kind/id"),
        unattributed=by_key(by_key(_REST, "reason"), "UUID of the GPU"),
    )
)
GROUP = record(label=TEXT, processes=INTEGER, gpu_indexes=listed(INTEGER), **_AMOUNTS)

Row = Mapping[str, Json]
Amounts = dict[str, Json]


def who(snapshot: Snapshot, only_gpu: str | None = None, only_owner: str | None = None) -> Json:
    """Null where nothing is known of any GPU's processes."""
    attribution = snapshot.readings.attribution
    if attribution is None:
        return None
    return {
        "view": {"scope": attribution.view.scope.value, "sentence": attribution.view.sentence},
        "processes": process_rows(attribution, only_gpu, only_owner),
        "owners": _owners(attribution, _hours_today(snapshot), only_gpu, only_owner),
        "unattributed": {} if only_owner else _unattributed(attribution.unattributed, only_gpu),
    }


def process_rows(
    attribution: Attribution, only_gpu: str | None = None, only_owner: str | None = None
) -> Mapping[str, Row]:
    return {
        _process_key(share): _process(share)
        for share in attribution.processes
        if only_gpu in (None, share.place.gpu_uuid)
        and (only_owner is None or (share.owner is not None and owner_key(share.owner) == only_owner))
    }


def _hours_today(snapshot: Snapshot) -> Mapping[str, float]:
    statement = snapshot.readings.accounts
    return {} if statement is None else statement.owner_gpu_s_today


def owner_key(owner: Owner) -> str:
    return f"{owner.kind.value}/{owner.id}"


def _process_key(share: ProcessShare) -> str:
    start = "gone" if share.key is None else str(share.key.start_ticks)
    return f"{_place_key(share.place)}/{share.pid}/{start}"


def _place_key(place: Place) -> str:
    return place.gpu_uuid if place.gpu_instance_id is None else f"{place.gpu_uuid}:{place.gpu_instance_id}"


def _amounts(memory: Portion | None, sm: Portion | None, power: Portion | None) -> Amounts:
    return {
        "memory_bytes": None if memory is None else memory.amount,
        "memory_basis": None if memory is None else memory.basis.value,
        "sm_ratio": None if sm is None else sm.amount / 1_000_000,
        "sm_basis": None if sm is None else sm.basis.value,
        "power_watts": None if power is None else power.amount / 1000,
        "power_basis": None if power is None else power.basis.value,
    }


def _process(share: ProcessShare) -> Row:
    work = share.workload
    pod = work.pod
    return {
        "gpu_uuid": share.place.gpu_uuid,
        "gpu_index": share.place.gpu_index,
        "gpu_instance_id": share.place.gpu_instance_id,
        "pid": share.pid,
        "name": work.process_name,
        "owner": None if share.owner is None else owner_key(share.owner),
        "reason": None if share.reason is None else share.reason.value,
        "uid": work.uid,
        "user": work.user,
        "container_id": work.container_id,
        "container": work.container_name,
        "image": work.image,
        "pod_uid": None if pod is None else pod.uid,
        "pod": None if pod is None else pod.name or None,
        "namespace": None if pod is None else pod.namespace or None,
        "job": work.job,
        "unit": work.unit,
        **_amounts(share.memory, share.sm, share.power),
    }


def _owners(
    attribution: Attribution, gpu_s_today: Mapping[str, float], only_gpu: str | None, only_owner: str | None
) -> Mapping[str, Json]:
    found: dict[str, tuple[Owner, dict[str, Amounts]]] = {}
    for share in attribution.owners:
        if only_gpu not in (None, share.gpu_uuid) or only_owner not in (None, owner_key(share.owner)):
            continue
        _, on_gpu = found.setdefault(owner_key(share.owner), (share.owner, {}))
        on_gpu[share.gpu_uuid] = {
            "gpu_index": share.gpu_index,
            "processes": share.processes,
            **_amounts(share.memory, share.sm, share.power),
        }
    return {
        key: {
            "kind": owner.kind.value,
            "id": owner.id,
            "name": owner.name,
            "namespace": owner.namespace,
            "processes": sum(_integer(row["processes"]) for row in by_gpu.values()),
            "gpu_hours_today": _hours(gpu_s_today.get(key)),
            "by_gpu": by_gpu,
            **summed(by_gpu.values()),
        }
        for key, (owner, by_gpu) in found.items()
    }


def _hours(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds / 3600, 3)


def _unattributed(rest: Iterable[Unattributed], only_gpu: str | None) -> Mapping[str, Json]:
    by_gpu: dict[str, dict[str, Json]] = {}
    for part in rest:
        if only_gpu not in (None, part.gpu_uuid):
            continue
        by_gpu.setdefault(part.gpu_uuid, {})[part.reason.value] = {
            "gpu_index": part.gpu_index,
            "sentence": SENTENCES[part.reason],
            "memory_bytes": part.memory_bytes,
            "sm_ratio": None if part.sm_millionths is None else part.sm_millionths / 1_000_000,
            "power_watts": None if part.power_milliwatts is None else part.power_milliwatts / 1000,
        }
    return by_gpu


def summed(rows: Iterable[Row]) -> Amounts:
    """Several rows as one. A sum is measured only if every part of it was."""
    rows = list(rows)
    memory = total(_number(row["memory_bytes"]) for row in rows)
    sm = total(_number(row["sm_ratio"]) for row in rows)
    power = total(_number(row["power_watts"]) for row in rows)
    return {
        "memory_bytes": None if memory is None else int(memory),
        "memory_basis": _basis(row["memory_basis"] for row in rows),
        "sm_ratio": None if sm is None else round(sm, 6),
        "sm_basis": _basis(row["sm_basis"] for row in rows),
        "power_watts": None if power is None else round(power, 3),
        "power_basis": _basis(row["power_basis"] for row in rows),
    }


def _basis(found: Iterable[Json]) -> str | None:
    known = set(found) - {None}
    if not known:
        return None
    return (Basis.APPORTIONED if Basis.APPORTIONED.value in known else Basis.MEASURED).value


def _by_field(field: str) -> Callable[[Row], str | None]:
    def of(row: Row) -> str | None:
        value = row[field]
        return None if value is None else str(value)

    return of


# What rows are folded by -> the identity that tells two groups apart, and the text that a person knows it by.
GROUPINGS: Mapping[str, tuple[Callable[[Row], str | None], str]] = {
    "user": (_by_field("uid"), "user"),
    "pod": (_by_field("pod_uid"), "pod"),
    "container": (_by_field("container_id"), "container"),
    "job": (_by_field("job"), "job"),
}


def grouped(processes: Iterable[Row], by: str) -> Mapping[str, Json]:
    """Rows folded by what they share; those that have no such thing are in no group."""
    identity_of, label = GROUPINGS[by]
    groups: dict[str, list[Row]] = {}
    for row in processes:
        identity = identity_of(row)
        if identity is not None:
            groups.setdefault(identity, []).append(row)
    return {
        identity: {
            "label": str(rows[0][label] or identity),
            "processes": len({row["pid"] for row in rows}),
            "gpu_indexes": sorted({_integer(row["gpu_index"]) for row in rows}),
            **summed(rows),
        }
        for identity, rows in groups.items()
    }


def _number(value: Json) -> float | None:
    return value if isinstance(value, (int, float)) else None


def _integer(value: Json) -> int:
    assert isinstance(value, int)
    return value
