"""Turns on each shared GPU: which clients run, which wait and why, their quotas, and the recent turns. Pure.

Parked programs are a part of it: what is parked, since when, and how much host memory it takes.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from gpucommons.faces.documents.schema import (
    FLAG,
    INTEGER,
    INTEGER_OR_NULL,
    NUMBER,
    NUMBER_OR_NULL,
    TEXT,
    TEXT_OR_NULL,
    Record,
    by_key,
    describe,
    list_of,
    or_null,
    record,
)
from gpucommons.faces.documents.values import Json, round_value
from gpucommons.model.sharing import (
    ArrivalReading,
    ClientSharing,
    GpuSharing,
    KeptReading,
    LeftAlone,
    ParkedReading,
    ParkEvent,
    ParkingReading,
    SharingReading,
    Timeline,
    Turn,
    WaitReading,
)
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.wait_reasons import (
    arrival_sentence,
    class_sentence,
    gain_sentence,
    memory_sentence,
    parked_sentence,
    sharing_sentence,
    standing_sentence,
    wait_sentence,
)

# Parked programs, part of the document of turns: what is parked, since when, how much host memory it takes. Pure.

_PROGRAM = Record[ParkedReading](
    name=(TEXT, lambda program: program.name),
    user=(TEXT, lambda program: program.user),
    uid=(INTEGER_OR_NULL, lambda program: program.uid),
    stage=(describe(TEXT, "parking, parked, waking or stranded"), lambda program: program.stage),
    gpu_uuid=(TEXT, lambda program: program.gpu_uuid),
    processes=(describe(list_of(INTEGER), "its pids"), lambda program: list(program.pids)),
    gpu_bytes=(
        describe(INTEGER, "GPU memory that it held, and needs to come back"),
        lambda program: program.gpu_bytes,
    ),
    host_bytes=(describe(INTEGER, "the part of it that is in host memory"), lambda program: program.host_bytes),
    since_unix_s=(
        describe(NUMBER, "when it was last on the GPU"),
        lambda program: round(program.since_wall_s, 1),
    ),
    cause=(describe(TEXT, "why it was parked"), lambda program: program.cause),
    sentence=(describe(TEXT, "since when and why it is parked, in words; empty while it moves"), parked_sentence),
    waits=(describe(TEXT, "why it is not brought back yet; empty: it need not be"), lambda program: program.waits),
    rate_bytes_s=(describe(NUMBER_OR_NULL, "while it moves"), lambda program: round_value(program.rate_bytes_s, 0)),
    remaining_s=(
        describe(NUMBER_OR_NULL, "until the move ends, or until it is back while it waits; an estimate"),
        lambda program: round_value(program.remaining_s, 1),
    ),
)
_ARRIVAL = Record[ArrivalReading](
    name=(TEXT, lambda arrival: arrival.name),
    user=(TEXT, lambda arrival: arrival.user),
    uid=(INTEGER_OR_NULL, lambda arrival: arrival.uid),
    pid=(INTEGER, lambda arrival: arrival.pid),
    gpu_uuid=(TEXT, lambda arrival: arrival.gpu_uuid),
    held=(describe(FLAG, "whether it waits now"), lambda arrival: arrival.is_held),
    since_unix_s=(NUMBER, lambda arrival: round(arrival.since_wall_s, 1)),
    waited_s=(NUMBER, lambda arrival: round(arrival.waited_s, 2)),
    parked_bytes=(
        describe(INTEGER, "what was parked for it"),
        lambda arrival: sum(row.bytes for row in arrival.parked),
    ),
    sentence=(describe(TEXT, "how long it waited and what was parked for it, in words"), arrival_sentence),
    why=(describe(TEXT, "why it went on; empty while it waits"), lambda arrival: arrival.why),
)
_EVENT = Record[ParkEvent](
    id=(TEXT, lambda event: event.id),
    kind=(describe(TEXT, "parked, woken, refused, stranded or waited"), lambda event: event.kind),
    unix_s=(NUMBER, lambda event: round(event.wall_s, 3)),
    program=(describe(TEXT, "the program's key"), lambda event: event.key),
    name=(TEXT, lambda event: event.name),
    bytes=(INTEGER, lambda event: event.bytes),
    duration_s=(NUMBER, lambda event: round(event.duration_s, 3)),
    sentence=(TEXT, lambda event: event.sentence),
    why=(describe(TEXT, "the reason of a refusal in one word"), lambda event: event.why),
)
_KEPT = Record[KeptReading](
    gpu_uuids=(list_of(TEXT), lambda program: list(program.gpu_uuids)),
    sentence=(describe(TEXT, "how much it keeps, and why"), lambda program: program.sentence),
)
PARKING_SCHEMA = or_null(
    record(
        idle_after_s=describe(NUMBER, "parking.idle_after_s"),
        eager=FLAG,
        unavailable=describe(TEXT, "why nothing can be parked; empty where it can"),
        programs=by_key(_PROGRAM.schema, "key of the program"),
        arrivals=by_key(_ARRIVAL.schema, "program that waits for room as it starts, or did so in the last hour"),
        kept=by_key(_KEPT.schema, "suspended job that keeps its GPU memory"),
        events=describe(list_of(_EVENT.schema), "the latest, in order"),
    )
)


def parking_of(reading: ParkingReading | None, only_uuid: str | None = None) -> Json:
    """Null where the agent parks nothing."""
    if reading is None:
        return None
    return {
        "idle_after_s": reading.idle_after_s,
        "eager": reading.eager,
        "unavailable": reading.unavailable,
        "programs": {
            program.key: _PROGRAM.build(program)
            for program in reading.programs
            if only_uuid in (None, program.gpu_uuid)
        },
        "arrivals": {
            arrival.key: _ARRIVAL.build(arrival)
            for arrival in reading.arrivals
            if only_uuid in (None, arrival.gpu_uuid)
        },
        "kept": {
            program.job: _KEPT.build(program) for program in reading.kept if only_uuid in (None, *program.gpu_uuids)
        },
        "events": [_EVENT.build(event) for event in reading.events if only_uuid in (None, event.gpu_uuid)],
    }


# Turns on each shared GPU: which clients run, which wait and why, their quotas, and the recent turns. Pure.
#
# `gpucommons scheduler status --json` prints this document, too.


class _GpuTurns(NamedTuple):
    gpu: GpuSharing
    clients: tuple[ClientSharing, ...]
    turns: tuple[Turn, ...]


class _Waiting(NamedTuple):
    client: ClientSharing
    wait: WaitReading


_WAIT = Record[_Waiting](
    reason=(
        describe(TEXT, "quota, turn, memory, demand, fairness, background, solo or ready"),
        lambda at: at.wait.reason.value,
    ),
    sentence=(describe(TEXT, "the reason in words"), lambda at: wait_sentence(at.client)),
    waited_s=(NUMBER, lambda at: round(at.wait.waited_s, 1)),
    ahead=(INTEGER, lambda at: at.wait.ahead),
    room_bytes=(INTEGER, lambda at: at.wait.room_bytes),
    expected_s=(NUMBER_OR_NULL, lambda at: round_value(at.wait.expected_s, 1)),
)
CLIENT = Record[ClientSharing](
    name=(describe(TEXT, "its pod, or owner and command: alice · train.py (pid 4711)"), lambda client: _name(client)),
    program=(
        describe(TEXT_OR_NULL, "key of a program that takes turns without a library; null for clients of nvshare"),
        lambda client: client.program,
    ),
    processes=(describe(list_of(INTEGER), "pids of a program"), lambda client: list(client.processes)),
    pod=(TEXT, lambda client: client.pod),
    namespace=(TEXT, lambda client: client.namespace),
    pid=(INTEGER_OR_NULL, lambda client: client.pid or None),
    uid=(INTEGER_OR_NULL, lambda client: _uid(client.uid)),
    gpu_uuid=(TEXT, lambda client: client.gpu_uuid),
    gpu_index=(INTEGER_OR_NULL, lambda client: client.gpu_index),
    protocol_version=(INTEGER, lambda client: client.protocol_version),
    standing=(TEXT, lambda client: client.standing),
    standing_sentence=(describe(TEXT, "what it does now, in words"), lambda client: standing_sentence(client)),
    held_up=(
        describe(TEXT, "why a program takes no turns for a while: stopped by its user, or a call hangs; else empty"),
        lambda client: client.held_up,
    ),
    sharing_class=(describe(TEXT, "batch, latency or background"), lambda client: client.sharing_class.value),
    class_source=(describe(TEXT, "where its class was set"), lambda client: client.class_source),
    class_sentence=(
        describe(TEXT, "what its class means now, in words; empty for batch"),
        lambda client: class_sentence(client),
    ),
    revoked=(FLAG, lambda client: client.revoked),
    pending_drop=(FLAG, lambda client: client.pending_drop),
    turns_total=(INTEGER, lambda client: client.turns),
    turn_s=(NUMBER_OR_NULL, lambda client: round_value(client.turn_s, 1)),
    wait=(or_null(_WAIT.schema), lambda client: _wait(client)),
    allocated_bytes=(INTEGER, lambda client: client.allocated_bytes),
    over_claimed=(describe(FLAG, "it reported more memory than the GPU has"), lambda client: client.over_claimed),
    nvml_bytes=(INTEGER_OR_NULL, lambda client: client.nvml_bytes),
    need_bytes=(INTEGER_OR_NULL, lambda client: client.need_bytes),
    memory_bytes=(
        describe(INTEGER_OR_NULL, "what it holds on the GPU: as measured for a program, else what it needs or reports"),
        lambda client: _memory_bytes(client),
    ),
    memory_quota_bytes=(INTEGER, lambda client: client.memory_quota_bytes),
    memory_quota_source=(TEXT, lambda client: client.memory_quota_source),
    core_quota_percent=(INTEGER, lambda client: client.core_quota_percent),
    core_quota_effective_percent=(NUMBER, lambda client: round(client.core_quota_effective_percent, 1)),
    core_quota_source=(TEXT, lambda client: client.core_quota_source),
    window_usage_s=(NUMBER, lambda client: round(client.window_usage_s, 2)),
    window_limit_s=(NUMBER, lambda client: round(client.window_limit_s, 2)),
    throttled=(FLAG, lambda client: client.throttled),
    debt_s=(NUMBER, lambda client: round(client.debt_s, 2)),
    billed_s_total=(NUMBER, lambda client: round(client.billed_s, 1)),
    demand_ratio=(NUMBER_OR_NULL, lambda client: round_value(client.demand_ratio, 3)),
)
_TURN = Record[Turn](
    client=(TEXT, lambda turn: turn.client_id),
    label=(TEXT, lambda turn: turn.label),
    uid=(INTEGER_OR_NULL, lambda turn: _uid(turn.uid)),
    start_unix_s=(NUMBER, lambda turn: round(turn.start_wall_s, 1)),
    end_unix_s=(NUMBER_OR_NULL, lambda turn: round_value(turn.end_wall_s, 1)),
)
GPU = Record[_GpuTurns](
    index=(describe(INTEGER_OR_NULL, "null for a MIG device"), lambda at: at.gpu.index),
    slot=(describe(TEXT_OR_NULL, "its name: 3, or 6.0 for a MIG device"), lambda at: at.gpu.slot or None),
    present=(FLAG, lambda at: at.gpu.present),
    way=(TEXT, lambda at: at.gpu.way),
    way_reason=(TEXT, lambda at: at.gpu.way_reason),
    way_sentence=(
        describe(TEXT, "the way and its reason in words"),
        lambda at: sharing_sentence(at.gpu.way_reason),
    ),
    gain_ratio=(
        describe(NUMBER_OR_NULL, "progress per second over that of the driver's time-slicing, as measured"),
        lambda at: round_value(at.gpu.gain_ratio, 3),
    ),
    coarse=(describe(FLAG, "utilisation decides, because SM activity cannot be read"), lambda at: at.gpu.coarse),
    gain_sentence=(
        describe(TEXT, "the gain and its certainty in words; empty where there is nothing to say"),
        lambda at: gain_sentence(at.gpu),
    ),
    running=(list_of(TEXT), lambda at: list(at.gpu.running)),
    waiting=(list_of(TEXT), lambda at: [*at.gpu.wait_queue, *at.gpu.request_queue]),
    quantum_left_s=(NUMBER_OR_NULL, lambda at: round_value(at.gpu.quantum_left_s, 1)),
    memory_sentence=(
        describe(TEXT, "the memory that its clients hold, in words"),
        lambda at: memory_sentence(at.gpu, at.clients),
    ),
    running_memory_bytes=(INTEGER, lambda at: at.gpu.running_memory_bytes),
    total_memory_bytes=(INTEGER, lambda at: at.gpu.total_memory_bytes),
    total_memory_measured=(FLAG, lambda at: at.gpu.total_memory_measured),
    safe_limit_bytes=(INTEGER, lambda at: at.gpu.safe_limit_bytes),
    overloaded=(FLAG, lambda at: at.gpu.overloaded),
    busy_seconds_total=(NUMBER, lambda at: round(at.gpu.busy_seconds, 1)),
    timeline=(by_key(_TURN.schema, "turn"), lambda at: {turn.id: _TURN.build(turn) for turn in at.turns}),
)
LEFT_ALONE = Record[LeftAlone](
    name=(TEXT, lambda program: program.name),
    why=(describe(TEXT, "the reason in one word"), lambda program: program.why),
    sentence=(describe(TEXT, "the reason in words"), lambda program: program.sentence),
    gpu_uuids=(list_of(TEXT), lambda program: list(program.gpu_uuids)),
)
TURNS_SCHEMA = or_null(
    record(
        on=FLAG,
        mode=TEXT,
        fixed_quantum_s=NUMBER_OR_NULL,
        window_s=NUMBER,
        share_programs=describe(TEXT, "whose programs take turns without a library: off, own or all"),
        left_alone=describe(list_of(LEFT_ALONE.schema), "programs on the GPUs that take no turns"),
        parking=PARKING_SCHEMA,
        gpus=by_key(GPU.schema, "UUID"),
        clients=by_key(CLIENT.schema, "client id"),
    )
)


def turns(snapshot: Snapshot, timeline: Timeline, only_uuid: str | None = None) -> Json:
    """Null where the scheduler does not run."""
    sharing = snapshot.readings.sharing
    return None if sharing is None else turns_of(sharing, timeline, only_uuid)


def turns_of(sharing: SharingReading, timeline: Timeline, only_uuid: str | None = None) -> dict[str, Json]:
    by_gpu = _by_gpu(sharing.clients)
    return {
        "on": sharing.on,
        "mode": sharing.mode,
        "fixed_quantum_s": sharing.fixed_quantum_s,
        "window_s": sharing.window_s,
        "share_programs": sharing.share_programs,
        "left_alone": [
            LEFT_ALONE.build(program)
            for program in sharing.left_alone
            if only_uuid is None or only_uuid in program.gpu_uuids
        ],
        "parking": parking_of(sharing.parking, only_uuid),
        "gpus": {
            gpu.uuid: GPU.build(_GpuTurns(gpu, by_gpu.get(gpu.uuid, ()), timeline.get(gpu.uuid, ())))
            for gpu in sharing.gpus
            if only_uuid in (None, gpu.uuid)
        },
        "clients": {
            client.client_id: CLIENT.build(client) for client in sharing.clients if only_uuid in (None, client.gpu_uuid)
        },
    }


def turn_pieces(sharing: SharingReading) -> Iterator[str]:
    """`turns_of` without past turns, as JSON text in pieces: each is made quickly, however many clients there are."""
    whole = turns_of(sharing._replace(gpus=(), clients=()), {})
    by_gpu = _by_gpu(sharing.clients)
    gpus = ((gpu.uuid, GPU.build(_GpuTurns(gpu, by_gpu.get(gpu.uuid, ()), ()))) for gpu in sharing.gpus)
    clients = ((client.client_id, CLIENT.build(client)) for client in sharing.clients)
    yield json.dumps({key: value for key, value in whole.items() if key not in ("gpus", "clients")})[:-1]
    yield ', "gpus": {'
    yield from _members(gpus)
    yield '}, "clients": {'
    yield from _members(clients)
    yield "}}"


def _by_gpu(clients: Iterable[ClientSharing]) -> Mapping[str, tuple[ClientSharing, ...]]:
    by_gpu: dict[str, list[ClientSharing]] = {}
    for client in clients:
        by_gpu.setdefault(client.gpu_uuid, []).append(client)
    return {uuid: tuple(there) for uuid, there in by_gpu.items()}


def _members(rows: Iterable[tuple[str, Json]]) -> Iterator[str]:
    separator = ""
    for key, value in rows:
        yield f"{separator}{json.dumps(key)}: {json.dumps(value)}"
        separator = ", "


def _wait(client: ClientSharing) -> Json:
    return None if client.wait is None else _WAIT.build(_Waiting(client, client.wait))


def _memory_bytes(client: ClientSharing) -> int | None:
    if client.program is not None:
        return client.nvml_bytes
    return client.allocated_bytes if client.need_bytes is None else client.need_bytes


def _name(client: ClientSharing) -> str:
    return client.name or client.client_id


def _uid(uid: int) -> int | None:
    """A client whose owner is hidden from the viewer has the uid -1."""
    return uid if uid >= 0 else None
