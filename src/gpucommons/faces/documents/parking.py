"""Parked programs, part of the document of turns: what is parked, since when, how much host memory it takes. Pure."""

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
    or_null,
    record,
)
from gpucommons.faces.documents.values import Json, rounded
from gpucommons.model.sharing import ParkedProgram, ParkEvent, ParkingReading

_PROGRAM = Record[ParkedProgram](
    name=(TEXT, lambda one: one.name),
    user=(TEXT, lambda one: one.user),
    uid=(INTEGER_OR_NULL, lambda one: one.uid),
    stage=(described(TEXT, "parking, parked, waking or stranded"), lambda one: one.stage),
    gpu_uuid=(TEXT, lambda one: one.gpu_uuid),
    processes=(described(listed(INTEGER), "its pids"), lambda one: list(one.pids)),
    gpu_bytes=(described(INTEGER, "GPU memory that it held, and needs to come back"), lambda one: one.gpu_bytes),
    host_bytes=(described(INTEGER, "the part of it that is in host memory"), lambda one: one.host_bytes),
    since_unix_s=(
        described(NUMBER, "when it was last on the GPU"),
        lambda one: round(one.since_wall_s, 1),
    ),
    cause=(described(TEXT, "why it was parked"), lambda one: one.cause),
    waits=(described(TEXT, "why it is not brought back yet; empty: it need not be"), lambda one: one.waits),
    rate_bytes_s=(described(NUMBER_OR_NULL, "while it moves"), lambda one: rounded(one.rate_bytes_s, 0)),
    remaining_s=(
        described(NUMBER_OR_NULL, "until the move ends, or until it is back while it waits; an estimate"),
        lambda one: rounded(one.remaining_s, 1),
    ),
)
_EVENT = Record[ParkEvent](
    id=(TEXT, lambda event: event.id),
    kind=(described(TEXT, "parked, woken, refused or stranded"), lambda event: event.kind),
    unix_s=(NUMBER, lambda event: round(event.wall_s, 3)),
    program=(described(TEXT, "the program's key"), lambda event: event.key),
    name=(TEXT, lambda event: event.name),
    bytes=(INTEGER, lambda event: event.bytes),
    duration_s=(NUMBER, lambda event: round(event.duration_s, 3)),
    sentence=(TEXT, lambda event: event.sentence),
    why=(described(TEXT, "the reason of a refusal in one word"), lambda event: event.why),
)
SCHEMA = or_null(
    record(
        idle_after_s=described(NUMBER, "parking.idle_after_s"),
        eager=FLAG,
        unavailable=described(TEXT, "why nothing can be parked; empty where it can"),
        programs=by_key(_PROGRAM.schema, "key of the program"),
        events=described(listed(_EVENT.schema), "the latest, in order"),
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
        "programs": {one.key: _PROGRAM.build(one) for one in reading.programs if only_uuid in (None, one.gpu_uuid)},
        "events": [_EVENT.build(event) for event in reading.events if only_uuid in (None, event.gpu_uuid)],
    }
