"""The messages to holders of idle GPUs, newest first. Pure."""

from gpucommons.faces.documents.schema import FLAG, NUMBER, TEXT, Record, by_key, described, one_of, or_null
from gpucommons.faces.documents.values import Json
from gpucommons.model.idle import IdleMessage, IdleStep
from gpucommons.model.snapshot import Snapshot

_MESSAGE = Record[IdleMessage](
    user=(TEXT, lambda message: message.user),
    time_unix_s=(NUMBER, lambda message: round(message.wall_s, 3)),
    step=(one_of(*IdleStep), lambda message: message.step.value),
    text=(TEXT, lambda message: message.text),
    over=(described(FLAG, "whether the idle period that it is about has ended"), lambda message: message.over),
)
SCHEMA = or_null(by_key(_MESSAGE.schema, "message id"))


def messages(snapshot: Snapshot, user: str | None = None) -> Json:
    """Null where no messages are made."""
    reading = snapshot.readings.idle
    if reading is None:
        return None
    return {each.id: _MESSAGE.build(each) for each in reading.messages if user is None or each.user == user}
