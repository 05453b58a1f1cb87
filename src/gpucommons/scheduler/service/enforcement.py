"""Pauses programs on GPUs that are leased to other users, or that their batch job was not given, while that lasts.

The scheduler's thread does it where programs are shared; else a thread with a pauser of its own.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

from gpucommons.base.threads import LoopThread
from gpucommons.config.scheduler import ParkingSettings, SchedulerSettings
from gpucommons.model.leases import TrespassReport
from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser.backend import State
from gpucommons.pauser.client import (
    LOCK_TIMEOUT_GROWTH,
    LOCK_TIMEOUT_MS,
    MAX_LOCK_TIMEOUT_GROWTHS,
    Pauser,
    PauserSettings,
)
from gpucommons.pauser.places import SERVICE_SOCKET
from gpucommons.pauser.protocol import Notice, NoticeKind
from gpucommons.scheduler.programs.exemptions import (
    Circumstances,
    Exempt,
    Exemption,
    Refusal,
    ShareScope,
    TrespassStanding,
    TrespassVerdicts,
    judge_trespassers,
)
from gpucommons.scheduler.programs.jobs import GpuUser, ProgramReading, group
from gpucommons.scheduler.programs.matching import ProgramRule

# Pauses programs on GPUs that are leased to other users for as long as the lease lasts (leases.enforce = "pause").
#
# A pause for a turn ends by itself after `max_pause_s`; this one does not, because the agent asks the pauser each
# second to keep it. It ends with the lease, with the agent or its connection to the pauser, and when the leases are no
# longer reported.

log = logging.getLogger(__name__)

_STEP_S: Final = 1.0
# Several requests to keep a pause come before the pauser ends it.
_KEEPS_PER_PAUSE: Final = 4


class TrespassWords(NamedTuple):
    """`cause` is what a process does wrong; `until`, with the ids of the report, for how long it is paused."""

    area: str
    cause: str
    until: str
    by_hand: str


LEASED: Final = TrespassWords(
    "leases",
    "it uses a GPU that is leased to another user",
    "it is paused until lease {ids} ends, which has its GPU alone",
    "it was resumed by hand: it runs until the lease ends",
)
NOT_GIVEN: Final = TrespassWords(
    "slurm",
    "its job was not given the GPU that it uses",
    "it is paused for as long as it is on a GPU that job {ids} was not given",
    "it was resumed by hand: it runs on",
)


@dataclass(frozen=True, slots=True)
class EnforcementTerms:
    """`own_only`: the pauser may pause only programs of the agent's own user.

    `stale_after_s`: without a report for so long, everything is resumed.
    """

    own_only: bool = False
    stale_after_s: float = 10.0
    rules: tuple[ProgramRule, ...] = ()
    words: TrespassWords = LEASED


class Enforcement:
    """Call everything from the pauser's loop. `standing` may be read from any thread."""

    def __init__(self, pauser: Pauser, terms: EnforcementTerms) -> None:
        self.standing = TrespassStanding()
        self._pauser = pauser
        self._terms = terms
        self._report = TrespassReport()
        self._processes: Sequence[GpuUser] = ()
        self._nvshare_pids: AbstractSet[int] = frozenset()
        self._verdicts = TrespassVerdicts()
        self._paused: set[ProcessKey] = set()
        self._failed: dict[ProcessKey, str] = {}
        # Processes that an administrator resumed, each with the lease during which that was.
        self._pardoned: set[tuple[ProcessKey, str]] = set()
        self._tasks: dict[ProcessKey, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._stopping = False

    async def stop(self) -> None:
        """Every process runs again once the pauser has stopped, too: it has the last word."""
        self._stopping = True
        self._judge()
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        for task in self._tasks.values():
            task.cancel()

    # Input

    def update(self, report: TrespassReport) -> None:
        """Which processes use a leased GPU without a lease: each second, and whenever a lease ends."""
        self._report = report
        current = {(process, lease) for process, leases in report.leases.items() for lease in leases}
        self._pardoned &= current
        self._judge()

    def see(self, processes: Sequence[GpuUser], nvshare_pids: AbstractSet[int] = frozenset()) -> None:
        """One reading of the processes on all GPUs."""
        self._processes, self._nvshare_pids = processes, nvshare_pids
        self._judge()

    def hear(self, notice: Notice) -> None:
        """The pauser may have resumed a process on its own."""
        if notice.kind is NoticeKind.RESUMED and notice.process in self._paused:
            self._paused.discard(notice.process)
            area = self._terms.words.area
            log.warning("%s: pid %d, which was paused, was resumed: %s", area, notice.process.pid, notice.reason)
            self._publish()

    def pauser_changed(self) -> None:
        """A pauser that has ended has resumed everything, or the next one does."""
        if not self._pauser.available:
            self._paused.clear()
        self._judge()

    # Output

    def without_paused(self, reading: ProgramReading) -> ProgramReading:
        """The reading without the processes that are paused here, or about to be: they take no turns."""
        held = self._verdicts.pause.keys() | self._paused
        if not held:
            return reading
        return replace(reading, processes=tuple(process for process in reading.processes if process.key not in held))

    def exemptions(self) -> Iterable[Exemption]:
        """Why these programs take no turns."""
        for process in self._processes:
            if process.key is not None and process.key in self._verdicts.pause:
                ids = ", ".join(sorted(self._report.leases.get(process.key, ())))
                yield Exemption(group([process])[0], Exempt.TRESPASSER, self._terms.words.until.format(ids=ids))

    # Decisions

    def _judge(self) -> None:
        now = monotonic()
        around = Circumstances(
            ShareScope.ALL,
            os.geteuid(),
            agent_pids={os.getpid(), self._pauser.pid or 0},
            nvshare_pids=self._nvshare_pids,
            obstacle=self._pauser.reason,
            refused=self._refused(now),
            rules=self._terms.rules,
        )
        verdicts = judge_trespassers(self._processes, self._report, around, self._terms.own_only, now)
        pardoned = {process: self._terms.words.by_hand for process, _ in self._pardoned}
        self._verdicts = replace(
            verdicts,
            pause={process: device for process, device in verdicts.pause.items() if process not in pardoned},
            spared={**verdicts.spared, **pardoned},
        )
        for process in self._verdicts.pause:
            if process not in self._tasks and not self._stopping:
                task = self._tasks[process] = asyncio.get_running_loop().create_task(self._hold(process))
                task.add_done_callback(partial(self._ended, process))
        self._wake.set()
        self._wake = asyncio.Event()
        self._publish()

    def _ended(self, process: ProcessKey, task: "asyncio.Task[None]") -> None:
        del self._tasks[process]
        if not task.cancelled():
            task.result()
        if self._device(process) is not None:
            self._judge()

    def _refused(self, now: float) -> Mapping[ProcessKey, Refusal]:
        refusals = self._pauser.refusals
        left = ((process, refusals.remaining_s(process, now)) for process in self._report.leases)
        return {key: Refusal(refusals.reason(key), now + left_s) for key, left_s in left if left_s > 0}

    def _device(self, process: ProcessKey) -> str | None:
        """Its device if it is to be paused now."""
        fresh = monotonic() - self._report.as_of_s < self._terms.stale_after_s
        return self._verdicts.pause.get(process) if fresh and not self._stopping else None

    def _publish(self) -> None:
        failed = {process: why for process, why in self._failed.items() if process in self._verdicts.pause}
        self.standing = TrespassStanding(frozenset(self._paused), {**failed, **self._verdicts.spared})

    # One task for each process

    async def _hold(self, process: ProcessKey) -> None:
        """Pauses a process, keeps it paused for as long as that is due, and resumes it."""
        attempts, keeps = 0, 0
        while True:
            wake = self._wake
            device = self._device(process)
            if device is None:
                break
            if process in self._paused:
                keeps += 1
                await self._keep(process, look=keeps % 2 == 0)
            else:
                done = await self._pause(process, device, LOCK_TIMEOUT_MS * LOCK_TIMEOUT_GROWTH**attempts)
                attempts = 0 if done else min(attempts + 1, MAX_LOCK_TIMEOUT_GROWTHS)
            self._publish()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(_STEP_S, self._pauser.max_pause_s / _KEEPS_PER_PAUSE)):
                    await wake.wait()
        await self._resume(process)
        self._failed.pop(process, None)
        self._publish()

    async def _pause(self, process: ProcessKey, device: str, timeout_ms: int) -> bool:
        reply = await self._pauser.lock(process, timeout_ms=timeout_ms, gpu=device)
        if reply.failure is not None:
            self._failed[process] = f"it could not be paused: {reply.failure.meaning}"
            return False
        self._failed.pop(process, None)
        self._paused.add(process)
        log.info("%s: pid %d is paused: %s", self._terms.words.area, process.pid, self._terms.words.cause)
        return True

    async def _keep(self, process: ProcessKey, look: bool) -> None:
        reply = await self._pauser.keep(process)
        if reply.failure is not None:
            # It has ended, or the pauser has resumed it: the next step tries to pause it again.
            self._paused.discard(process)
        elif look and (await self._pauser.state(process)).state is State.RUNNING:
            # By `gpucommons resume`: an administrator decided.
            log.info("%s: pid %d: %s", self._terms.words.area, process.pid, self._terms.words.by_hand)
            self._pardoned |= {(process, lease) for lease in self._report.leases.get(process, ())}
            await self._resume(process)
            self._judge()

    async def _resume(self, process: ProcessKey) -> None:
        if process in self._paused:
            await self._pauser.resume(self._paused, process)
            log.info("%s: pid %d runs again", self._terms.words.area, process.pid)


# Enforcement of leases with a pauser and a thread of its own, for an agent that does not share programs.


class EnforcementThread:
    """Call `start` and `stop` from the agent's loop, the other methods from any thread."""

    def __init__(self, pauser: PauserSettings, terms: EnforcementTerms) -> None:
        self._settings = pauser
        self._terms = terms
        self._pauser: Pauser | None = None
        self._enforcement: Enforcement | None = None
        self._thread = LoopThread("enforcement", self._close)

    async def start(self) -> None:
        await self._thread.start(self._open)

    async def stop(self) -> None:
        await self._thread.stop()

    def update_programs(self, reading: ProgramReading, nvshare_pids: frozenset[int]) -> None:
        self._call(lambda enforcement: enforcement.see(reading.processes, nvshare_pids))

    def update_trespassers(self, report: TrespassReport) -> None:
        self._call(lambda enforcement: enforcement.update(report))

    @property
    def trespass_standing(self) -> TrespassStanding:
        return TrespassStanding() if self._enforcement is None else self._enforcement.standing

    def _call(self, event: Callable[[Enforcement], None]) -> None:
        enforcement = self._enforcement
        if enforcement is not None:
            self._thread.call(lambda: event(enforcement))

    async def _open(self) -> None:
        self._pauser = Pauser(
            self._settings,
            on_notice=lambda notice: enforcement.hear(notice),
            on_change=lambda: enforcement.pauser_changed(),
        )
        enforcement = self._enforcement = Enforcement(self._pauser, self._terms)
        await self._pauser.start()

    async def _close(self) -> None:
        if self._enforcement is not None and self._pauser is not None:
            await self._enforcement.stop()
            await self._pauser.stop()


# Which pauser stops and resumes programs, for turns and leases: one that runs as a service, or a child of the agent.


def choose_pauser(scheduler: SchedulerSettings, parking: ParkingSettings, pauses_others: bool) -> PauserSettings:
    """`pauses_others`: it has to pause programs of other users as well, which root alone may do."""
    backend = {"driver": "cuda", "freeze": "freeze"}[scheduler.pause]
    files = Path(parking.device_files)
    socket = _socket(scheduler, pauses_others)
    return PauserSettings(socket, backend=backend, max_pause_s=scheduler.max_pause_s, device_files=files)


def _socket(scheduler: SchedulerSettings, pauses_others: bool) -> Path | None:
    """None: a child of the agent."""
    if scheduler.pauser_socket:
        return Path(scheduler.pauser_socket)
    return SERVICE_SOCKET if pauses_others and os.geteuid() != 0 else None
