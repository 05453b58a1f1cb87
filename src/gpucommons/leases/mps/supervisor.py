"""Keeps the MPS daemons that leases need: does what the plan says, watches them, and keeps what they report.

`MpsSupervisor` knows daemons, `LeaseMps` which daemon a lease uses and what its client sets.
"""

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from time import monotonic, time
from typing import Final

from gpucommons.leases.mps.control import MpsControl, MpsError
from gpucommons.leases.mps.plan import (
    DaemonStage,
    MpsDaemon,
    MpsKey,
    MpsStep,
    make_mps_plan,
    mark_failed,
    mark_kept,
    mark_started,
)
from gpucommons.leases.protocol import Line
from gpucommons.leases.service.service import MPS_OFF
from gpucommons.model.leases import Lease, MpsDaemonReading, MpsEvent, MpsReading

# Keeps the MPS daemons that leases need: does what the plan says, watches them, and keeps what happened as events.
#
# Runs on one loop. The calls of the control program block, so each daemon has at most one under way in a thread.

log = logging.getLogger(__name__)

_TICK_S: Final = 1.0
_EVENTS_KEPT: Final = 64
# How often a running daemon is asked whether it answers, and how many times it may not.
_ASK_S: Final = 10.0
_MAX_SILENT: Final = 3
# Lines of a log that become events. The others are routine: clients come and go.
_NOTABLE: Final = re.compile(
    r"error|fail|fault|fatal|invalid|denied|unable|cannot|died|terminat|status [1-9]", re.IGNORECASE
)
_MAX_LOG_EVENTS: Final = 20
_LOG_WINDOW_S: Final = 60.0

UserName = Callable[[int], str]


@dataclass(slots=True)
class _Watch:
    """What is known of a daemon beyond its stage. `lock` is held while a call for it is under way in a thread."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    asked_s: float = 0.0
    silent: int = 0
    read: dict[str, int] = field(default_factory=dict)
    log_events_s: deque[float] = field(default_factory=deque)


class MpsSupervisor:
    """`changed` is called when a daemon begins to run, or is broken. `gpu_name` names a GPU for people."""

    def __init__(
        self,
        control: MpsControl,
        mode: str,
        user_name: UserName,
        gpu_name: Callable[[str], str],
        changed: Callable[[], None],
    ) -> None:
        self.control = control
        self._mode = mode
        self._user_name = user_name
        self._gpu_name = gpu_name
        self._changed = changed
        self._needed: frozenset[MpsKey] = frozenset()
        self._daemons: dict[MpsKey, MpsDaemon] = {}
        self._watches: dict[MpsKey, _Watch] = {}
        self._events: deque[MpsEvent] = deque(maxlen=_EVENTS_KEPT)
        self._numbers = 0
        self._obstacle = control.general_obstacle()
        self._begun = f"{time():.3f}"
        self._starts = self._failures = self._deaths = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Finds what an earlier agent left: it is used again, or stopped where no lease needs it."""
        for key in await asyncio.to_thread(self.control.find_left_over):
            self._daemons[key] = MpsDaemon(DaemonStage.RUNNING, monotonic())
            log.info("mps: the daemon for %s is still there", self._name(key))
        self._running = asyncio.create_task(self._run(), name="mps")

    async def stop(self) -> None:
        """Stops the daemons that no lease and no program uses. The others go on: their commands do, too."""
        if self._running is not None:
            self._running.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for key, daemon in self._daemons.items():
            if key in self._needed or daemon.stage is DaemonStage.BROKEN:
                continue
            if not await asyncio.to_thread(self.control.has_clients, key):
                await asyncio.to_thread(self.control.stop, key)
                await asyncio.to_thread(self.control.remove, key)

    def need(self, keys: Iterable[MpsKey]) -> None:
        """The daemons that leases use now."""
        needed = frozenset(keys)
        if needed != self._needed:
            self._needed = needed
            if self._running is not None:
                self._step()

    def daemon(self, key: MpsKey) -> MpsDaemon | None:
        return self._daemons.get(key)

    def reading(self) -> MpsReading:
        now_s, wall_s = monotonic(), time()
        rows = tuple(
            MpsDaemonReading(
                self._user(key),
                key.gpu_uuid,
                self._gpu_name(key.gpu_uuid),
                daemon.stage.value,
                round(wall_s - (now_s - daemon.since_s), 3),
                daemon.reason,
            )
            for key, daemon in self._daemons.items()
        )
        return MpsReading(
            self._mode, self._obstacle, rows, tuple(self._events), self._starts, self._failures, self._deaths
        )

    # -- steps

    async def _run(self) -> None:
        while True:
            try:
                self._obstacle = self.control.general_obstacle()
                self._step()
                for key, daemon in list(self._daemons.items()):
                    if daemon.stage is DaemonStage.RUNNING:
                        self._in_background(key, self._watch_one(key))
            except Exception:
                log.exception("mps: an error in the supervisor; it goes on")
            await asyncio.sleep(_TICK_S)

    def _step(self) -> None:
        plan = make_mps_plan(self._needed, self._daemons, monotonic())
        self._daemons = dict(plan.daemons)
        for step, key in plan.steps:
            self._in_background(key, self._start_one(key) if step is MpsStep.START else self._stop_one(key), wait=True)

    def _in_background(self, key: MpsKey, work: Coroutine[None, None, None], wait: bool = False) -> None:
        """One call for a daemon at a time: a look is left out while another call is under way, a step waits for it."""
        watch = self._watches.setdefault(key, _Watch())
        if watch.lock.locked() and not wait:
            work.close()
            return
        task = asyncio.create_task(self._alone(watch, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _alone(self, watch: _Watch, work: Coroutine[None, None, None]) -> None:
        async with watch.lock:
            await work

    async def _start_one(self, key: MpsKey) -> None:
        try:
            await asyncio.to_thread(self.control.start, key)
        except MpsError as error:
            self._failures += 1
            self._break(key, "failed", f"the MPS daemon for {self._name(key)} did not start: {error}", str(error))
            return
        self._starts += 1
        self._daemons[key] = mark_started(self._daemons[key], monotonic())
        watch = self._watches[key]
        watch.asked_s, watch.silent = monotonic(), 0
        self._note("started", key, f"the MPS daemon for {self._name(key)} runs")
        self._changed()

    async def _stop_one(self, key: MpsKey) -> None:
        if await asyncio.to_thread(self.control.has_clients, key):
            self._daemons[key] = mark_kept(self._daemons[key], monotonic())
            return
        await asyncio.to_thread(self.control.stop, key)
        await self._read_logs(key)
        await asyncio.to_thread(self.control.remove, key)
        self._daemons.pop(key, None)
        self._watches.pop(key, None)
        self._note("stopped", key, f"the MPS daemon for {self._name(key)} was stopped: no lease uses it")
        self._step()

    async def _watch_one(self, key: MpsKey) -> None:
        watch, now_s = self._watches[key], monotonic()
        await self._read_logs(key)
        if not await asyncio.to_thread(self.control.is_alive, key):
            self._record_death(key, "it ended by itself; programs that used it have failed")
            return
        if now_s - watch.asked_s < _ASK_S:
            return
        answers = await asyncio.to_thread(self.control.answers, key)
        watch.asked_s = monotonic()
        watch.silent = 0 if answers else watch.silent + 1
        if watch.silent >= _MAX_SILENT:
            await asyncio.to_thread(self.control.kill, key)
            self._record_death(key, "it did not answer and was killed; programs that used it have failed")

    def _record_death(self, key: MpsKey, reason: str) -> None:
        self._deaths += 1
        self._break(key, "died", f"the MPS daemon for {self._name(key)} is gone: {reason}", reason)

    def _break(self, key: MpsKey, kind: str, sentence: str, reason: str) -> None:
        daemon = self._daemons.get(key)
        if daemon is not None:
            self._daemons[key] = mark_failed(daemon, reason, monotonic())
            self._note(kind, key, sentence)
            self._changed()

    async def _read_logs(self, key: MpsKey) -> None:
        watch, now_s = self._watches[key], monotonic()
        for line in await asyncio.to_thread(self.control.new_log_lines, key, watch.read):
            while watch.log_events_s and now_s - watch.log_events_s[0] >= _LOG_WINDOW_S:
                watch.log_events_s.popleft()
            if _NOTABLE.search(line) and len(watch.log_events_s) < _MAX_LOG_EVENTS:
                watch.log_events_s.append(now_s)
                self._note("log", key, line)

    # -- what is shown

    def _note(self, kind: str, key: MpsKey, sentence: str) -> None:
        level = logging.WARNING if kind in ("failed", "died", "log") else logging.INFO
        log.log(level, "mps: %s", sentence)
        self._numbers += 1
        self._events.append(
            MpsEvent(
                f"{self._begun}/{self._numbers}",
                kind,
                time(),
                self._user(key),
                key.gpu_uuid,
                self._gpu_name(key.gpu_uuid),
                sentence,
            )
        )

    def _user(self, key: MpsKey) -> str:
        return "" if key.uid is None else self._user_name(key.uid)

    def _name(self, key: MpsKey) -> str:
        return f"{self._user(key) or 'all users'} on GPU {self._gpu_name(key.gpu_uuid)}"


# MPS for leases: which daemon a lease uses, whether it runs, and what its client sets. For the lease thread.


class LeaseMps:
    """`mode` is the setting: what new leases use. Leases that are held keep the daemon that they have."""

    def __init__(self, supervisor: MpsSupervisor, mode: str) -> None:
        self._supervisor = supervisor
        self.mode = mode

    def obstacle(self, uid: int) -> str:
        """Why commands of this user cannot run under MPS; empty where they can."""
        return MPS_OFF if self.mode == "off" else self._supervisor.control.obstacle(uid)

    def serve(self, leases: Iterable[Lease]) -> None:
        """Starts the daemons that these leases need, and stops others after a while."""
        self._supervisor.need(self._key(lease) for lease in leases if lease.request.mps)

    def failure(self, lease: Lease) -> str:
        """Why its daemon does not start, after some attempts."""
        daemon = self._supervisor.daemon(self._key(lease))
        return daemon.reason if daemon is not None and daemon.is_given_up else ""

    def terms(self, lease: Lease) -> Line | None:
        """What the client sets for its command; None while the daemon does not run."""
        key = self._key(lease)
        daemon = self._supervisor.daemon(key)
        if daemon is None or daemon.stage is not DaemonStage.RUNNING:
            return None
        # It may have died since the supervisor looked: a command would run without limits.
        if not self._supervisor.control.is_alive(key):
            return None
        places = self._supervisor.control.places(key)
        return {
            "pipe_directory": str(places.pipes),
            "log_directory": str(places.logs),
            "sm_percent": lease.request.sm_percent,
            "memory_bytes": lease.request.memory_bytes,
        }

    def reading(self) -> MpsReading:
        return self._supervisor.reading()

    def _key(self, lease: Lease) -> MpsKey:
        return MpsKey(lease.request.uid if lease.request.mps == "per_user" else None, lease.slots[0])
