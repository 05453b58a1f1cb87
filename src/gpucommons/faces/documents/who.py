"""What each process and owner uses of each GPU, and what has no owner and why. Pure.

`grouped` sums the process rows by user, pod, container or job.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from gpucommons.faces.documents.accounts import hours
from gpucommons.faces.documents.schema import (
    INTEGER,
    NUMBER,
    TEXT,
    Schema,
    by_key,
    described,
    listed,
    one_of,
    or_null,
    record,
)
from gpucommons.faces.documents.values import Json
from gpucommons.model.accounts import HeldKey, OwnerKey
from gpucommons.model.ownership import (
    SENTENCES,
    Basis,
    GpuAccount,
    Owner,
    OwnerShare,
    Place,
    Portion,
    ProcessShare,
    Unattributed,
    sum_portions,
)
from gpucommons.model.process_identity import ProcessKey
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.identities import account_names, billed_to, owner_key, qualified_name, slots_by_place

_BASIS = or_null(one_of(*Basis))
_AMOUNTS: dict[str, Schema] = {
    "memory_bytes": or_null(INTEGER),
    "memory_basis": _BASIS,
    "sm_ratio": or_null(NUMBER),
    "sm_basis": _BASIS,
    "power_watts": or_null(NUMBER),
    "power_basis": _BASIS,
}
_HOURS = or_null(NUMBER)
# The unit of /proc on Linux.
_TICKS_PER_S = 100
PROCESS = record(
    gpu_uuid=TEXT,
    gpu_index=INTEGER,
    gpu_instance_id=or_null(INTEGER),
    slot=or_null(TEXT),
    pid=INTEGER,
    name=TEXT,
    command=described(or_null(TEXT), "its command line; null where it was not read, or is hidden from this viewer"),
    owner=or_null(TEXT),
    account=or_null(TEXT),
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
    gpu_hours_today=_HOURS,
    by_gpu=by_key(record(gpu_index=INTEGER, processes=INTEGER, gpu_hours_today=_HOURS, **_AMOUNTS), "UUID of the GPU"),
    **_AMOUNTS,
)
_REST = record(
    gpu_index=INTEGER,
    sentence=TEXT,
    memory_bytes=or_null(INTEGER),
    sm_ratio=or_null(NUMBER),
    power_watts=or_null(NUMBER),
)
_REPORTED = record(
    gpu_index=INTEGER, memory_bytes=or_null(INTEGER), sm_ratio=or_null(NUMBER), power_watts=or_null(NUMBER)
)
_ACCOUNT = record(gpu_hours_today=_HOURS, by_gpu=by_key(NUMBER, "UUID of the GPU"))
SCHEMA = or_null(
    record(
        view=record(scope=TEXT, sentence=TEXT),
        processes=by_key(PROCESS, "GPU, pid and start time"),
        owners=by_key(OWNER, "kind/id"),
        accounts=by_key(_ACCOUNT, "account of a process: the name under which it is billed, as in the accounts"),
        unattributed=by_key(by_key(_REST, "reason"), "UUID of the GPU"),
        reported=by_key(_REPORTED, "UUID of the GPU: what the driver reported for it, which the parts sum to"),
    )
)
HOST_USE = or_null(
    by_key(
        record(
            cpu_seconds=or_null(NUMBER),
            rss_bytes=or_null(INTEGER),
            start_unix_s=or_null(NUMBER),
        ),
        "GPU, pid and start time: CPU time, resident memory and start of the process on the host",
    )
)
EXPLANATIONS = or_null(by_key(listed(TEXT), "GPU, pid and start time: each step that found the owner"))
GROUP = record(label=TEXT, processes=INTEGER, gpu_indexes=listed(INTEGER), gpu_hours_today=_HOURS, **_AMOUNTS)

# What rows are grouped by: the field that identifies a group, and the field that labels it.
GROUPINGS: Mapping[str, tuple[str, str]] = {
    "user": ("account", "account"),
    "pod": ("pod_uid", "account"),
    "container": ("container_id", "container"),
    "job": ("job", "job"),
}


class WhoFilter(NamedTuple):
    """What to show. `gpu` is a UUID, `owner` is kind/id, `user` is an account, a user's name or uid, or an owner."""

    gpu: str | None = None
    owner: str | None = None
    user: str | None = None
    pid: int | None = None

    def has(self, share: ProcessShare, account: str | None) -> bool:
        if self.gpu not in (None, share.place.gpu_uuid) or self.pid not in (None, share.pid):
            return False
        owner, work = share.owner, share.workload
        if self.owner is not None and (owner is None or owner_key(owner) != self.owner):
            return False
        if self.user is None:
            return True
        names = {account, work.user, str(work.uid)}
        names |= {owner.name, qualified_name(owner.namespace, owner.name)} if owner else set()
        return self.user in names

    def has_key(self, key: HeldKey) -> bool:
        return self.gpu in (None, key.gpu_uuid)


EVERYTHING = WhoFilter()
_Identity = TypeVar("_Identity")


class BilledProcess(NamedTuple):
    """A process, the name that it is billed to, the name of its slot, and its command line."""

    share: ProcessShare
    account: str | None
    slot: str | None
    command: str | None


def chosen_processes(snapshot: Snapshot, chosen: WhoFilter) -> list[BilledProcess]:
    attribution, gpus = snapshot.readings.attribution, snapshot.readings.gpus
    names = account_names(snapshot.readings.allocations)
    slots = slots_by_place(gpus.gpus) if gpus else {}
    billed = (
        BilledProcess(share, billed_to(share, names), slots.get(share.place), _command(snapshot, share.key))
        for share in (attribution.processes if attribution else ())
    )
    return [each for each in billed if chosen.has(each.share, each.account)]


def _command(snapshot: Snapshot, key: ProcessKey | None) -> str | None:
    lines = snapshot.readings.command_lines
    words = () if lines is None or key is None else lines.by_key.get(key, ())
    return " ".join(words) or None


def who(snapshot: Snapshot, chosen: WhoFilter = EVERYTHING, by: str | None = None) -> dict[str, Json]:
    """The fields `who`, `groups`, `explanations` and `host_use` of the answer; null if no process is known."""
    attribution = snapshot.readings.attribution
    if attribution is None:
        return {"who": None, "groups": None, "explanations": None, "host_use": None}
    processes = chosen_processes(snapshot, chosen)
    held = {key: ns for key, ns in _held_today(snapshot).items() if chosen.has_key(key)}
    rows = {_process_key(each.share): _process(each) for each in processes}
    # Owners include those whose processes this viewer may not see.
    of_all = chosen.user is None and chosen.pid is None
    owners = attribution.owners if of_all else _owner_shares(each.share for each in processes)
    document: dict[str, Json] = {
        "view": {"scope": attribution.view.scope.value, "sentence": attribution.view.sentence},
        "processes": rows,
        "owners": _owners(owners, held, chosen),
        "accounts": _accounts({each.account for each in processes}, held),
        "unattributed": _unattributed(attribution.unattributed, chosen.gpu) if of_all and not chosen.owner else {},
        "reported": {
            account.gpu_uuid: _reported(account)
            for account in attribution.accounts
            if chosen.gpu in (None, account.gpu_uuid)
        },
    }
    return {
        "who": document,
        "groups": None if by is None else _grouped(processes, held, by),
        "explanations": None if chosen.pid is None else {_process_key(each.share): _steps(each) for each in processes},
        "host_use": {_process_key(each.share): _host_use(snapshot, each.share) for each in processes},
    }


def _reported(account: GpuAccount) -> Mapping[str, Json]:
    return {
        "gpu_index": account.gpu_index,
        "memory_bytes": account.memory_used_bytes,
        "sm_ratio": None if account.sm_millionths is None else account.sm_millionths / 1_000_000,
        "power_watts": None if account.power_milliwatts is None else account.power_milliwatts / 1000,
    }


def _steps(each: BilledProcess) -> Json:
    return list(each.share.steps)


def _host_use(snapshot: Snapshot, share: ProcessShare) -> Json:
    """Null where it was not read, or where another process has that pid now."""
    readings = snapshot.readings
    row = readings.processes.by_pid.get(share.pid) if readings.processes else None
    known = row is not None and row.key == share.key
    activity = readings.cpu.activity if readings.cpu else None
    boot_s = activity.boot_time_s if activity else None
    return {
        "cpu_seconds": row.cpu_seconds if row is not None and known else None,
        "rss_bytes": row.rss_bytes if row is not None and known else None,
        "start_unix_s": None if boot_s is None or share.key is None else boot_s + share.key.start_ticks / _TICKS_PER_S,
    }


def _held_today(snapshot: Snapshot) -> Mapping[HeldKey, int]:
    accounts = snapshot.readings.accounts
    return {} if accounts is None else accounts.held_today_ns


def _process_key(share: ProcessShare) -> str:
    start = "gone" if share.key is None else str(share.key.start_ticks)
    return f"{_place_key(share.place)}/{share.pid}/{start}"


def _place_key(place: Place) -> str:
    return place.gpu_uuid if place.gpu_instance_id is None else f"{place.gpu_uuid}:{place.gpu_instance_id}"


def _amounts(memory: Portion | None, sm: Portion | None, power: Portion | None) -> dict[str, Json]:
    return {
        "memory_bytes": None if memory is None else memory.amount,
        "memory_basis": None if memory is None else memory.basis.value,
        "sm_ratio": None if sm is None else sm.amount / 1_000_000,
        "sm_basis": None if sm is None else sm.basis.value,
        "power_watts": None if power is None else power.amount / 1000,
        "power_basis": None if power is None else power.basis.value,
    }


def _summed(shares: Iterable[ProcessShare | OwnerShare]) -> dict[str, Json]:
    shares = list(shares)
    return _amounts(
        sum_portions(share.memory for share in shares),
        sum_portions(share.sm for share in shares),
        sum_portions(share.power for share in shares),
    )


def _process(each: BilledProcess) -> Mapping[str, Json]:
    share, work = each.share, each.share.workload
    pod = work.pod
    return {
        "gpu_uuid": share.place.gpu_uuid,
        "gpu_index": share.place.gpu_index,
        "gpu_instance_id": share.place.gpu_instance_id,
        "slot": each.slot,
        "pid": share.pid,
        "name": work.process_name,
        "command": each.command,
        "owner": None if share.owner is None else owner_key(share.owner),
        "account": each.account,
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


def _owner_shares(processes: Iterable[ProcessShare]) -> Iterable[OwnerShare]:
    found: dict[tuple[str, Owner], list[ProcessShare]] = {}
    for share in processes:
        if share.owner is not None:
            found.setdefault((share.place.gpu_uuid, share.owner), []).append(share)
    for (uuid, owner), shares in found.items():
        sums = (sum_portions(getattr(share, what) for share in shares) for what in ("memory", "sm", "power"))
        yield OwnerShare(uuid, shares[0].place.gpu_index, owner, len(shares), *sums)


def _owners(shares: Iterable[OwnerShare], held: Mapping[HeldKey, int], chosen: WhoFilter) -> Mapping[str, Json]:
    found: dict[str, list[OwnerShare]] = {}
    for share in shares:
        key = owner_key(share.owner)
        if chosen.gpu in (None, share.gpu_uuid) and chosen.owner in (None, key):
            found.setdefault(key, []).append(share)
    by_owner = _by_gpu(held, lambda key: key.owner)
    return {key: _owner(parts, by_owner.get(_counter_key(parts[0].owner), {})) for key, parts in found.items()}


def _counter_key(owner: Owner) -> OwnerKey:
    return OwnerKey(owner.kind.value, owner.name, owner.namespace)


def _owner(parts: list[OwnerShare], held_ns: Mapping[str, int]) -> Json:
    owner = parts[0].owner
    return {
        "kind": owner.kind.value,
        "id": owner.id,
        "name": owner.name,
        "namespace": owner.namespace,
        "processes": sum(share.processes for share in parts),
        "gpu_hours_today": _hours(held_ns.values()),
        "by_gpu": {
            share.gpu_uuid: {
                "gpu_index": share.gpu_index,
                "processes": share.processes,
                "gpu_hours_today": _hours([held_ns[share.gpu_uuid]] if share.gpu_uuid in held_ns else []),
                **_amounts(share.memory, share.sm, share.power),
            }
            for share in parts
        },
        **_summed(parts),
    }


def _by_gpu(held: Mapping[HeldKey, int], identity: Callable[[HeldKey], _Identity]) -> dict[_Identity, dict[str, int]]:
    """The held time of each identity, by GPU."""
    found: dict[_Identity, dict[str, int]] = {}
    for key, ns in held.items():
        on_gpu = found.setdefault(identity(key), {})
        on_gpu[key.gpu_uuid] = on_gpu.get(key.gpu_uuid, 0) + ns
    return found


def _hours(held_ns: Iterable[int]) -> float | None:
    """Null where the ledger has nothing, which is not 0."""
    known = list(held_ns)
    return hours(sum(known)) if known else None


def _accounts(names: set[str | None], held: Mapping[HeldKey, int]) -> Mapping[str, Json]:
    found = _by_gpu(held, lambda key: key.account)
    return {
        name: {
            "gpu_hours_today": _hours(found.get(name, {}).values()),
            "by_gpu": {uuid: hours(ns) for uuid, ns in found.get(name, {}).items()},
        }
        for name in sorted(filter(None, names))
    }


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


def _grouped(processes: Iterable[BilledProcess], held: Mapping[HeldKey, int], by: str) -> Mapping[str, Json]:
    """Processes that have no such identity are in no group. The ledger has hours for users and pods."""
    identity, label = GROUPINGS[by]
    groups: dict[str, list[BilledProcess]] = {}
    labels: dict[str, str] = {}
    for each in processes:
        row = _process(each)
        if (found := row[identity]) is not None:
            groups.setdefault(str(found), []).append(each)
            labels.setdefault(str(found), str(row[label] or found))
    billed = _by_gpu(held, lambda key: key.account) if label == "account" else {}
    return {
        id: {
            "label": labels[id],
            "processes": len({each.share.pid for each in members}),
            "gpu_indexes": sorted({each.share.place.gpu_index for each in members}),
            "gpu_hours_today": _hours(billed.get(labels[id], {}).values()),
            **_summed(each.share for each in members),
        }
        for id, members in groups.items()
    }
