"""The MPS daemons of leases at an instant."""

from dataclasses import dataclass
from typing import NamedTuple


class MpsDaemonReading(NamedTuple):
    """`user` is empty for a daemon that serves all users. `stage` is starting, running, stopping or broken.

    `reason` is why it is broken. `gpu` is the name of the slot.
    """

    user: str
    gpu_uuid: str
    gpu: str
    stage: str
    since_wall_s: float
    reason: str = ""


class MpsEvent(NamedTuple):
    """`kind` is started, stopped, failed, died or log. `sentence` is one printable line."""

    id: str
    kind: str
    wall_s: float
    user: str
    gpu_uuid: str
    gpu: str
    sentence: str


@dataclass(frozen=True, slots=True)
class MpsReading:
    """`unavailable` is why MPS cannot be used, empty where it can. `events` are the latest, in order.

    `starts`, `failures` and `deaths` are counted since the agent started.
    """

    mode: str
    unavailable: str = ""
    daemons: tuple[MpsDaemonReading, ...] = ()
    events: tuple[MpsEvent, ...] = ()
    starts: int = 0
    failures: int = 0
    deaths: int = 0
