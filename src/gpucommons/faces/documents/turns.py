"""The document of turns on each shared GPU: running and waiting clients, waits, quotas, past turns.

`gpucommons scheduler status --json` prints it, too. Pure.
"""

from gpucommons.faces.documents.schema import FLAG, INTEGER, NUMBER, TEXT, by_key, described, listed, or_null, record
from gpucommons.faces.documents.values import Json, rounded
from gpucommons.model.sharing import ClientSharing, GpuSharing, SharingReading, Timeline
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.wait_reasons import sharing_sentence, wait_sentence

_NUMBER, _INTEGER = or_null(NUMBER), or_null(INTEGER)
WAIT = record(
    reason=described(TEXT, "quota, turn, memory, demand, solo or ready"),
    sentence=described(TEXT, "the reason in words"),
    waited_s=NUMBER,
    ahead=INTEGER,
    room_bytes=INTEGER,
    expected_s=_NUMBER,
)
CLIENT = record(
    pod=TEXT,
    namespace=TEXT,
    pid=_INTEGER,
    uid=_INTEGER,
    gpu_uuid=TEXT,
    gpu_index=_INTEGER,
    protocol_version=INTEGER,
    standing=TEXT,
    revoked=FLAG,
    pending_drop=FLAG,
    turns_total=INTEGER,
    turn_s=_NUMBER,
    wait=or_null(WAIT),
    allocated_bytes=INTEGER,
    need_bytes=_INTEGER,
    memory_quota_bytes=INTEGER,
    memory_quota_source=TEXT,
    core_quota_percent=INTEGER,
    core_quota_effective_percent=NUMBER,
    core_quota_source=TEXT,
    window_usage_s=NUMBER,
    window_limit_s=NUMBER,
    throttled=FLAG,
    debt_s=NUMBER,
    billed_s_total=NUMBER,
    demand_ratio=_NUMBER,
)
GPU = record(
    index=_INTEGER,
    present=FLAG,
    way=TEXT,
    way_reason=TEXT,
    way_sentence=described(TEXT, "the way and its reason in words"),
    running=listed(TEXT),
    waiting=listed(TEXT),
    quantum_left_s=_NUMBER,
    running_memory_bytes=INTEGER,
    total_memory_bytes=INTEGER,
    total_memory_measured=FLAG,
    safe_limit_bytes=INTEGER,
    overloaded=FLAG,
    busy_seconds_total=NUMBER,
    timeline=by_key(record(client=TEXT, label=TEXT, uid=_INTEGER, start_unix_s=NUMBER, end_unix_s=_NUMBER), "turn"),
)
SCHEMA = or_null(
    record(
        on=FLAG,
        mode=TEXT,
        fixed_quantum_s=_NUMBER,
        window_s=NUMBER,
        gpus=by_key(GPU, "UUID"),
        clients=by_key(CLIENT, "client id"),
    )
)


def turns(snapshot: Snapshot, timeline: Timeline, only_uuid: str | None = None) -> Json:
    """Null where the scheduler does not run."""
    sharing = snapshot.readings.sharing
    return None if sharing is None else turns_of(sharing, timeline, only_uuid)


def turns_of(sharing: SharingReading, timeline: Timeline, only_uuid: str | None = None) -> Json:
    return {
        "on": sharing.on,
        "mode": sharing.mode,
        "fixed_quantum_s": sharing.fixed_quantum_s,
        "window_s": sharing.window_s,
        "gpus": {gpu.uuid: _gpu(gpu, timeline) for gpu in sharing.gpus if only_uuid in (None, gpu.uuid)},
        "clients": {
            client.client_id: _client(client) for client in sharing.clients if only_uuid in (None, client.gpu_uuid)
        },
    }


def _gpu(gpu: GpuSharing, timeline: Timeline) -> Json:
    return {
        "index": gpu.index,
        "present": gpu.present,
        "way": gpu.way,
        "way_reason": gpu.way_reason,
        "way_sentence": sharing_sentence(gpu.way_reason),
        "running": list(gpu.running),
        "waiting": [*gpu.wait_queue, *gpu.request_queue],
        "quantum_left_s": rounded(gpu.quantum_left_s, 1),
        "running_memory_bytes": gpu.running_memory_bytes,
        "total_memory_bytes": gpu.total_memory_bytes,
        "total_memory_measured": gpu.total_memory_measured,
        "safe_limit_bytes": gpu.safe_limit_bytes,
        "overloaded": gpu.overloaded,
        "busy_seconds_total": round(gpu.busy_seconds, 1),
        "timeline": {
            turn.id: {
                "client": turn.client_id,
                "label": turn.label,
                "uid": _known(turn.uid),
                "start_unix_s": round(turn.start_wall_s, 1),
                "end_unix_s": rounded(turn.end_wall_s, 1),
            }
            for turn in timeline.get(gpu.uuid, ())
        },
    }


def _client(client: ClientSharing) -> Json:
    wait = client.wait
    return {
        "pod": client.pod,
        "namespace": client.namespace,
        "pid": client.pid or None,
        "uid": _known(client.uid),
        "gpu_uuid": client.gpu_uuid,
        "gpu_index": client.gpu_index,
        "protocol_version": client.protocol_version,
        "standing": client.standing,
        "revoked": client.revoked,
        "pending_drop": client.pending_drop,
        "turns_total": client.turns,
        "turn_s": rounded(client.turn_s, 1),
        "wait": None
        if wait is None
        else {
            "reason": wait.reason.value,
            "sentence": wait_sentence(client),
            "waited_s": round(wait.waited_s, 1),
            "ahead": wait.ahead,
            "room_bytes": wait.room_bytes,
            "expected_s": rounded(wait.expected_s, 1),
        },
        "allocated_bytes": client.allocated_bytes,
        "need_bytes": client.need_bytes,
        "memory_quota_bytes": client.memory_quota_bytes,
        "memory_quota_source": client.memory_quota_source,
        "core_quota_percent": client.core_quota_percent,
        "core_quota_effective_percent": round(client.core_quota_effective_percent, 1),
        "core_quota_source": client.core_quota_source,
        "window_usage_s": round(client.window_usage_s, 2),
        "window_limit_s": round(client.window_limit_s, 2),
        "throttled": client.throttled,
        "debt_s": round(client.debt_s, 2),
        "billed_s_total": round(client.billed_s, 1),
        "demand_ratio": rounded(client.demand_ratio, 3),
    }


def _known(uid: int) -> int | None:
    """A client whose name is hidden from this viewer has no uid either."""
    return uid if uid >= 0 else None
