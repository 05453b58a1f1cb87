"""Which MPS daemons are started, stopped and restarted, by the leases that need them. Pure."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import Final, NamedTuple

# A daemon holds memory on its GPU, which then is not free for a lease of its own.
IDLE_STOP_S: Final = 10.0
# One that ran this long did not fail at its start: the next start is not delayed.
SETTLED_S: Final = 60.0
FIRST_RETRY_S: Final = 1.0
LAST_RETRY_S: Final = 60.0
# A lease does not wait longer for a daemon that does not start.
MAX_FAILURES: Final = 3


class MpsKey(NamedTuple):
    """The user that a daemon serves, and its GPU. `uid` is None for one that serves all users."""

    uid: int | None
    gpu_uuid: str


class DaemonStage(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    BROKEN = "broken"


class MpsStep(StrEnum):
    START = "start"
    STOP = "stop"


class MpsDaemon(NamedTuple):
    """`since_s` is when its stage began. `failures` in a row, the next start at `retry_s`; `reason` is the last one's.

    `idle_since_s`: since when no lease needs it.
    """

    stage: DaemonStage
    since_s: float
    failures: int = 0
    retry_s: float = 0.0
    reason: str = ""
    idle_since_s: float | None = None

    @property
    def is_given_up(self) -> bool:
        """Leases that wait for it are refused; those that have it wait for the next start."""
        return self.stage is DaemonStage.BROKEN and self.failures >= MAX_FAILURES


class MpsPlan(NamedTuple):
    """The daemons after the steps were begun."""

    daemons: Mapping[MpsKey, MpsDaemon]
    steps: tuple[tuple[MpsStep, MpsKey], ...]


def make_mps_plan(needed: AbstractSet[MpsKey], daemons: Mapping[MpsKey, MpsDaemon], now_s: float) -> MpsPlan:
    after: dict[MpsKey, MpsDaemon] = {}
    steps: list[tuple[MpsStep, MpsKey]] = []
    for key in sorted(needed | daemons.keys(), key=lambda key: (key.gpu_uuid, -1 if key.uid is None else key.uid)):
        daemon = daemons.get(key)
        if key in needed:
            if daemon is None:
                after[key] = MpsDaemon(DaemonStage.STARTING, now_s)
                steps.append((MpsStep.START, key))
            elif daemon.stage is DaemonStage.BROKEN and now_s >= daemon.retry_s:
                after[key] = daemon._replace(stage=DaemonStage.STARTING, since_s=now_s, idle_since_s=None)
                steps.append((MpsStep.START, key))
            else:
                after[key] = daemon._replace(idle_since_s=None)
        elif daemon is not None and daemon.stage is not DaemonStage.BROKEN:
            idle_since_s = now_s if daemon.idle_since_s is None else daemon.idle_since_s
            after[key] = daemon._replace(idle_since_s=idle_since_s)
            if daemon.stage is DaemonStage.RUNNING and now_s - idle_since_s >= IDLE_STOP_S:
                after[key] = after[key]._replace(stage=DaemonStage.STOPPING, since_s=now_s)
                steps.append((MpsStep.STOP, key))
    return MpsPlan(after, tuple(steps))


def mark_started(daemon: MpsDaemon, now_s: float) -> MpsDaemon:
    return daemon._replace(stage=DaemonStage.RUNNING, since_s=now_s, reason="")


def mark_kept(daemon: MpsDaemon, now_s: float) -> MpsDaemon:
    """It was to be stopped, and programs still use it."""
    return daemon._replace(stage=DaemonStage.RUNNING, since_s=now_s, idle_since_s=now_s)


def mark_failed(daemon: MpsDaemon, reason: str, now_s: float) -> MpsDaemon:
    """It did not start, or it ended without being asked to."""
    settled = daemon.stage is DaemonStage.RUNNING and now_s - daemon.since_s >= SETTLED_S
    failures = 1 if settled else daemon.failures + 1
    retry_s = now_s + min(FIRST_RETRY_S * 2 ** (failures - 1), LAST_RETRY_S)
    return MpsDaemon(DaemonStage.BROKEN, now_s, failures, retry_s, reason)
