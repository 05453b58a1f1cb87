"""The escalation of idle holders at an instant: the messages of each user, and the channels that deliver them."""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from gpucommons.model.process_identity import ProcessKey


class IdleStep(StrEnum):
    """NOTIFY: the first message of an idle period. REMIND: the second. ACT: the agent parks or ends the workload."""

    NOTIFY = "notify"
    REMIND = "remind"
    ACT = "act"


class IdleMessage(NamedTuple):
    """`holder` and `notified_s` are the idle period that it is about. `over`: that has ended."""

    id: str
    user: str
    wall_s: float
    step: IdleStep
    text: str
    holder: str = ""
    notified_s: float = 0.0
    over: bool = False


class ChannelState(NamedTuple):
    """Counted since the agent started. `failing_since_wall_s` is None while messages can be delivered."""

    name: str
    delivered: int = 0
    failed: int = 0
    dropped: int = 0
    waiting: int = 0
    failing_since_wall_s: float | None = None
    detail: str = ""


class IdleEvent(NamedTuple):
    """`id` is unique while the agent runs. `user` is empty for a pod, which has none."""

    id: str
    type: str
    user: str
    details: Mapping[str, str]


class IdleReading(NamedTuple):
    """`steps` counts the steps taken since the agent started. `messages` are newest first; `events` are the last ones.

    `recorded`: the record, which outlives the agent, can be written.
    """

    after_s: float
    action: str = "none"
    idle_holders: int = 0
    steps: Mapping[IdleStep, int] = {}
    messages: tuple[IdleMessage, ...] = ()
    channels: tuple[ChannelState, ...] = ()
    events: tuple[IdleEvent, ...] = ()
    recorded: bool = True


class IdlePeriod(NamedTuple):
    """`uses` are the short uses in the window: the part of the period, numbered from its start, and the seconds.

    `processes` identify a workload that has no identity of its own.
    """

    length_s: float = 0.0
    uses: tuple[tuple[int, float], ...] = ()
    processes: frozenset[ProcessKey] = frozenset()


# Workload id and slot UUID.
IdleKey = tuple[str, str]
IdlePeriods = Mapping[IdleKey, IdlePeriod]
