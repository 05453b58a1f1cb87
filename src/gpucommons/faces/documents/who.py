"""What each process and owner uses of each GPU, and what has no owner and why. Pure.

`grouped` sums the process rows by user, pod, container or job.
"""

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from gpucommons.base.text import qualified_name
from gpucommons.faces.documents.accounts import hours
from gpucommons.faces.documents.schema import (
    INTEGER,
    INTEGER_OR_NULL,
    NUMBER,
    NUMBER_OR_NULL,
    TEXT,
    TEXT_OR_NULL,
    Field,
    Record,
    by_key,
    describe,
    list_of,
    one_of,
    or_null,
    record,
)
from gpucommons.faces.documents.values import Json
from gpucommons.model.accounts import HeldKey, OwnerKey
from gpucommons.model.names import account_names, billing_name, owner_key, slots_by_place
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
from gpucommons.model.process_identity import PidView, ProcessKey, ProcessRow
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.limits import LimitKind, ProgramLimit, limits_of

_BASIS = or_null(one_of(*Basis))
# The unit of /proc on Linux.
_TICKS_PER_S = 100
_MILLION = 1_000_000

# The objects of the document, each with its schema and how it is read.


class Portions(NamedTuple):
    memory: Portion | None
    sm: Portion | None
    power: Portion | None


def _amounts(place: str) -> dict[str, Field[Any]]:
    """The fields of what a process, owner or group uses: `place` is the attribute that has the three portions."""

    def amount(kind: str, scale: int | None = None) -> Callable[[object], Json]:
        read: Callable[[object], Portion | None] = attrgetter(f"{place}.{kind}")

        def build(value: object) -> Json:
            portion = read(value)
            if portion is None:
                return None
            return portion.amount if scale is None else portion.amount / scale

        return build

    def basis(kind: str) -> Callable[[object], Json]:
        read: Callable[[object], Portion | None] = attrgetter(f"{place}.{kind}")
        return lambda value: None if (portion := read(value)) is None else portion.basis.value

    return {
        "memory_bytes": (INTEGER_OR_NULL, amount("memory")),
        "memory_basis": (_BASIS, basis("memory")),
        "sm_ratio": (NUMBER_OR_NULL, amount("sm", _MILLION)),
        "sm_basis": (_BASIS, basis("sm")),
        "power_watts": (NUMBER_OR_NULL, amount("power", 1000)),
        "power_basis": (_BASIS, basis("power")),
    }


class BilledProcess(NamedTuple):
    """A process, the name that it is billed to, the name of its slot, its command line, and what limits it."""

    share: ProcessShare
    account: str | None
    slot: str | None
    command: str | None
    limit: ProgramLimit | None = None


class _OwnerOnGpu(NamedTuple):
    share: OwnerShare
    held_ns: int | None


class _OwnerParts(NamedTuple):
    """What an owner uses on each GPU, and how long it held each today."""

    parts: list[OwnerShare]
    sums: Portions
    held_ns: Mapping[str, int]


class _Group(NamedTuple):
    label: str
    members: list[BilledProcess]
    sums: Portions
    held_ns: Mapping[str, int]


class _HostUse(NamedTuple):
    """`row` is None where it was not read, or where another process has that pid now."""

    row: ProcessRow | None
    start_unix_s: float | None


def _hours(held_ns: Iterable[int]) -> float | None:
    """Null where the ledger has nothing, which is not 0."""
    times_ns = list(held_ns)
    return hours(sum(times_ns)) if times_ns else None


_LIMIT = Record[ProgramLimit](
    kind=(one_of(*LimitKind), lambda limit: limit.kind.value),
    sentence=(TEXT, lambda limit: limit.sentence),
)
PROCESS = Record[BilledProcess](
    limit=(
        describe(or_null(_LIMIT.schema), "what limits it now, in one sentence; null where too little is known"),
        lambda process: _LIMIT.build_or_null(process.limit),
    ),
    gpu_uuid=(TEXT, lambda process: process.share.place.gpu_uuid),
    gpu_index=(INTEGER, lambda process: process.share.place.gpu_index),
    gpu_instance_id=(INTEGER_OR_NULL, lambda process: process.share.place.gpu_instance_id),
    slot=(TEXT_OR_NULL, lambda process: process.slot),
    pid=(INTEGER, lambda process: process.share.pid),
    name=(TEXT, lambda process: process.share.workload.process_name),
    command=(
        describe(TEXT_OR_NULL, "its command line; null where it was not read, or is hidden from this viewer"),
        lambda process: process.command,
    ),
    owner=(TEXT_OR_NULL, lambda process: owner_key(process.share.owner) if process.share.owner else None),
    account=(TEXT_OR_NULL, lambda process: process.account),
    reason=(TEXT_OR_NULL, lambda process: process.share.reason.value if process.share.reason else None),
    uid=(INTEGER_OR_NULL, lambda process: process.share.workload.uid),
    user=(TEXT_OR_NULL, lambda process: process.share.workload.user),
    container_id=(TEXT_OR_NULL, lambda process: process.share.workload.container_id),
    container=(TEXT_OR_NULL, lambda process: process.share.workload.container_name),
    image=(TEXT_OR_NULL, lambda process: process.share.workload.image),
    pod_uid=(TEXT_OR_NULL, lambda process: pod.uid if (pod := process.share.workload.pod) else None),
    pod=(TEXT_OR_NULL, lambda process: pod.name or None if (pod := process.share.workload.pod) else None),
    namespace=(TEXT_OR_NULL, lambda process: pod.namespace or None if (pod := process.share.workload.pod) else None),
    job=(TEXT_OR_NULL, lambda process: process.share.workload.job),
    unit=(TEXT_OR_NULL, lambda process: process.share.workload.unit),
    **_amounts("share"),
)
_OWNER_ON_GPU = Record[_OwnerOnGpu](
    gpu_index=(INTEGER, lambda on_gpu: on_gpu.share.gpu_index),
    processes=(INTEGER, lambda on_gpu: on_gpu.share.processes),
    gpu_hours_today=(NUMBER_OR_NULL, lambda on_gpu: None if on_gpu.held_ns is None else hours(on_gpu.held_ns)),
    **_amounts("share"),
)
OWNER = Record[_OwnerParts](
    kind=(TEXT, lambda owner: owner.parts[0].owner.kind.value),
    id=(TEXT, lambda owner: owner.parts[0].owner.id),
    name=(TEXT, lambda owner: owner.parts[0].owner.name),
    namespace=(TEXT, lambda owner: owner.parts[0].owner.namespace),
    processes=(INTEGER, lambda owner: sum(share.processes for share in owner.parts)),
    gpu_hours_today=(NUMBER_OR_NULL, lambda owner: _hours(owner.held_ns.values())),
    by_gpu=(
        by_key(_OWNER_ON_GPU.schema, "UUID of the GPU"),
        lambda owner: {
            share.gpu_uuid: _OWNER_ON_GPU.build(_OwnerOnGpu(share, owner.held_ns.get(share.gpu_uuid)))
            for share in owner.parts
        },
    ),
    **_amounts("sums"),
)
_REST = Record[Unattributed](
    gpu_index=(INTEGER, lambda rest: rest.gpu_index),
    sentence=(TEXT, lambda rest: SENTENCES[rest.reason]),
    memory_bytes=(INTEGER_OR_NULL, lambda rest: rest.memory_bytes),
    sm_ratio=(NUMBER_OR_NULL, lambda rest: _scale(rest.sm_millionths, _MILLION)),
    power_watts=(NUMBER_OR_NULL, lambda rest: _scale(rest.power_milliwatts, 1000)),
)
_REPORTED = Record[GpuAccount](
    gpu_index=(INTEGER, lambda account: account.gpu_index),
    memory_bytes=(INTEGER_OR_NULL, lambda account: account.memory_used_bytes),
    sm_ratio=(NUMBER_OR_NULL, lambda account: _scale(account.sm_millionths, _MILLION)),
    power_watts=(NUMBER_OR_NULL, lambda account: _scale(account.power_milliwatts, 1000)),
)
_ACCOUNT = Record[Mapping[str, int]](
    gpu_hours_today=(NUMBER_OR_NULL, lambda held_ns: _hours(held_ns.values())),
    by_gpu=(by_key(NUMBER, "UUID of the GPU"), lambda held_ns: {uuid: hours(ns) for uuid, ns in held_ns.items()}),
)
_HOST_USE = Record[_HostUse](
    cpu_seconds=(NUMBER_OR_NULL, lambda use: None if use.row is None else use.row.cpu_seconds),
    rss_bytes=(INTEGER_OR_NULL, lambda use: None if use.row is None else use.row.rss_bytes),
    start_unix_s=(NUMBER_OR_NULL, lambda use: use.start_unix_s),
)
_GROUP = Record[_Group](
    label=(TEXT, lambda group: group.label),
    processes=(INTEGER, lambda group: len({process.share.pid for process in group.members})),
    gpu_indexes=(list_of(INTEGER), lambda group: sorted({process.share.place.gpu_index for process in group.members})),
    gpu_hours_today=(NUMBER_OR_NULL, lambda group: _hours(group.held_ns.values())),
    **_amounts("sums"),
)
GROUP = _GROUP.schema
_VIEW = Record[PidView](
    scope=(TEXT, lambda view: view.scope.value),
    sentence=(TEXT, lambda view: view.sentence),
)
SCHEMA = or_null(
    record(
        view=_VIEW.schema,
        processes=by_key(PROCESS.schema, "GPU, pid and start time"),
        owners=by_key(OWNER.schema, "kind/id"),
        accounts=by_key(_ACCOUNT.schema, "account of a process: the name under which it is billed, as in the accounts"),
        unattributed=by_key(by_key(_REST.schema, "reason"), "UUID of the GPU"),
        reported=by_key(_REPORTED.schema, "UUID of the GPU: what the driver reported for it, which the parts sum to"),
    )
)
HOST_USE = or_null(
    by_key(
        _HOST_USE.schema,
        "GPU, pid and start time: CPU time, resident memory and start of the process on the host",
    )
)
EXPLANATIONS = or_null(by_key(list_of(TEXT), "GPU, pid and start time: each step that found the owner"))


def _scale(amount: int | None, scale: int) -> float | None:
    return None if amount is None else amount / scale


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


def choose_processes(snapshot: Snapshot, chosen: WhoFilter) -> list[BilledProcess]:
    attribution, gpus = snapshot.readings.attribution, snapshot.readings.gpus
    names = account_names(snapshot.readings.allocations)
    slots = slots_by_place(gpus.gpus) if gpus else {}
    billed = (
        BilledProcess(share, billing_name(share, names), slots.get(share.place), _command(snapshot, share.key))
        for share in (attribution.processes if attribution else ())
    )
    processes = [process for process in billed if chosen.has(process.share, process.account)]
    limits = limits_of(snapshot, (process.share for process in processes))
    return [process._replace(limit=limit) for process, limit in zip(processes, limits, strict=True)]


def _command(snapshot: Snapshot, key: ProcessKey | None) -> str | None:
    lines = snapshot.readings.command_lines
    words = () if lines is None or key is None else lines.by_key.get(key, ())
    return " ".join(words) or None


def who(snapshot: Snapshot, chosen: WhoFilter = EVERYTHING, by: str | None = None) -> dict[str, Json]:
    """The fields `who`, `groups`, `explanations` and `host_use` of the answer; null if no process is known."""
    attribution = snapshot.readings.attribution
    if attribution is None:
        return {"who": None, "groups": None, "explanations": None, "host_use": None}
    processes = choose_processes(snapshot, chosen)
    held = {key: ns for key, ns in _held_today(snapshot).items() if chosen.has_key(key)}
    rows = {_process_key(process.share): PROCESS.build(process) for process in processes}
    # Owners include those whose processes this viewer may not see.
    of_all = chosen.user is None and chosen.pid is None
    owners = attribution.owners if of_all else _owner_shares(process.share for process in processes)
    document: dict[str, Json] = {
        "view": _VIEW.build(attribution.view),
        "processes": rows,
        "owners": _owners(owners, held, chosen),
        "accounts": _accounts({process.account for process in processes}, held),
        "unattributed": _unattributed_row(attribution.unattributed, chosen.gpu) if of_all and not chosen.owner else {},
        "reported": {
            account.gpu_uuid: _REPORTED.build(account)
            for account in attribution.accounts
            if chosen.gpu in (None, account.gpu_uuid)
        },
    }
    return {
        "who": document,
        "groups": None if by is None else _group(processes, held, by),
        "explanations": None
        if chosen.pid is None
        else {_process_key(process.share): list(process.share.steps) for process in processes},
        "host_use": {_process_key(process.share): _host_use(snapshot, process.share) for process in processes},
    }


def _host_use(snapshot: Snapshot, share: ProcessShare) -> Json:
    readings = snapshot.readings
    row = readings.processes.by_pid.get(share.pid) if readings.processes else None
    activity = readings.cpu.activity if readings.cpu else None
    boot_s = activity.boot_time_s if activity else None
    start_s = None if boot_s is None or share.key is None else boot_s + share.key.start_ticks / _TICKS_PER_S
    return _HOST_USE.build(_HostUse(row if row is not None and row.key == share.key else None, start_s))


def _held_today(snapshot: Snapshot) -> Mapping[HeldKey, int]:
    accounts = snapshot.readings.accounts
    return {} if accounts is None else accounts.held_today_ns


def _process_key(share: ProcessShare) -> str:
    start = "gone" if share.key is None else str(share.key.start_ticks)
    return f"{_place_key(share.place)}/{share.pid}/{start}"


def _place_key(place: Place) -> str:
    return place.gpu_uuid if place.gpu_instance_id is None else f"{place.gpu_uuid}:{place.gpu_instance_id}"


def _sum(shares: Iterable[ProcessShare | OwnerShare]) -> Portions:
    shares = list(shares)
    return Portions(
        sum_portions(share.memory for share in shares),
        sum_portions(share.sm for share in shares),
        sum_portions(share.power for share in shares),
    )


def _owner_shares(processes: Iterable[ProcessShare]) -> Iterable[OwnerShare]:
    by_owner: dict[tuple[str, Owner], list[ProcessShare]] = {}
    for share in processes:
        if share.owner is not None:
            by_owner.setdefault((share.place.gpu_uuid, share.owner), []).append(share)
    for (uuid, owner), shares in by_owner.items():
        yield OwnerShare(uuid, shares[0].place.gpu_index, owner, len(shares), *_sum(shares))


def _owners(shares: Iterable[OwnerShare], held: Mapping[HeldKey, int], chosen: WhoFilter) -> Mapping[str, Json]:
    by_owner: dict[str, list[OwnerShare]] = {}
    for share in shares:
        key = owner_key(share.owner)
        if chosen.gpu in (None, share.gpu_uuid) and chosen.owner in (None, key):
            by_owner.setdefault(key, []).append(share)
    held_by_owner = _by_gpu(held, lambda key: key.owner)
    return {
        key: OWNER.build(_OwnerParts(parts, _sum(parts), held_by_owner.get(_counter_key(parts[0].owner), {})))
        for key, parts in by_owner.items()
    }


def _counter_key(owner: Owner) -> OwnerKey:
    return OwnerKey(owner.kind.value, owner.name, owner.namespace)


def _by_gpu(held: Mapping[HeldKey, int], identity: Callable[[HeldKey], _Identity]) -> dict[_Identity, dict[str, int]]:
    """The held time of each identity, by GPU."""
    times: dict[_Identity, dict[str, int]] = {}
    for key, ns in held.items():
        on_gpu = times.setdefault(identity(key), {})
        on_gpu[key.gpu_uuid] = on_gpu.get(key.gpu_uuid, 0) + ns
    return times


def _accounts(names: set[str | None], held: Mapping[HeldKey, int]) -> Mapping[str, Json]:
    times = _by_gpu(held, lambda key: key.account)
    return {name: _ACCOUNT.build(times.get(name, {})) for name in sorted(filter(None, names))}


def _unattributed_row(rest: Iterable[Unattributed], only_gpu: str | None) -> Mapping[str, Json]:
    by_gpu: dict[str, dict[str, Json]] = {}
    for part in rest:
        if only_gpu in (None, part.gpu_uuid):
            by_gpu.setdefault(part.gpu_uuid, {})[part.reason.value] = _REST.build(part)
    return by_gpu


def _group(processes: Iterable[BilledProcess], held: Mapping[HeldKey, int], by: str) -> Mapping[str, Json]:
    """Processes that have no such identity are in no group. The ledger has hours for users and pods."""
    identity, label = GROUPINGS[by]
    groups: dict[str, list[BilledProcess]] = {}
    labels: dict[str, str] = {}
    for process in processes:
        row = PROCESS.build(process)
        id = row[identity]
        if id is not None:
            groups.setdefault(str(id), []).append(process)
            labels.setdefault(str(id), str(row[label] or id))
    billed = _by_gpu(held, lambda key: key.account) if label == "account" else {}
    return {
        id: _GROUP.build(
            _Group(labels[id], members, _sum(process.share for process in members), billed.get(labels[id], {}))
        )
        for id, members in groups.items()
    }
