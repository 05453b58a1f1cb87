"""Jobs that their batch system has suspended: their GPU memory goes to the host, and comes back when they go on.

A suspended job is stopped, and looks as if its user had stopped it, which is left alone. So the batch system is asked:
only a job that it calls suspended is parked. Its processes have to run for the move (pauser/suspension.py), and are
stopped again only after the batch system has said once more that the job is suspended; it says so a third time after
that, since the job may have been resumed in between. In doubt a process runs: without its memory it cannot use the GPU.

A job that cannot be parked keeps its memory. The next job on its GPU reads so: in its output, and in `why`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Final, NamedTuple

from gpucommons.model.sharing import SUSPENDED, KeptReading
from gpucommons.pauser.client import Pauser
from gpucommons.scheduler.parking.host import ParkHost
from gpucommons.scheduler.parking.programs import ParkedProgram, ParkedPrograms, ResidentProgram, ResidentPrograms
from gpucommons.scheduler.parking.values import ParkRefusal, ParkStage

log = logging.getLogger(__name__)

# Whether the batch system has suspended this job; None: it did not answer. Blocks.
IsSuspended = Callable[[str], bool | None]


class SuspendedState(NamedTuple):
    """`stage` is parking, parked or kept. `sentence` is printable: for users and for the log of the next job."""

    stage: str
    sentence: str


Publish = Callable[[Mapping[str, SuspendedState]], None]
"""Makes the states of suspended jobs known, by job id. Does not block."""

_KEPT: Final = "kept"
# A job that is stopped and not suspended is asked for again after this time, and one that could not be parked tried.
_ASK_AGAIN_S: Final = 5.0
_TRY_AGAIN_S: Final = 30.0
_GIB: Final = 1 << 30


class BatchSystem(NamedTuple):
    """What parking asks and says: see IsSuspended and Publish."""

    is_suspended: IsSuspended
    publish: Publish


def job_of(key: str) -> str | None:
    """The job of a program's key, such as job:4711@1000."""
    kind, _, rest = key.partition(":")
    return rest.partition("@")[0] if kind == "job" else None


class SuspendedJobs:
    def __init__(
        self, batch: BatchSystem, pauser: Pauser, resident: ResidentPrograms, parked: ParkedPrograms, host: ParkHost
    ) -> None:
        self._batch = batch
        self._pauser = pauser
        self._resident = resident
        self._parked = parked
        self._host = host
        # When a job that is stopped is looked at again.
        self._next_s: dict[str, float] = {}
        self._kept: dict[str, KeptReading] = {}
        self._published: Mapping[str, SuspendedState] = {}

    async def look(self) -> None:
        """Finds the jobs that were suspended or resumed since the last look."""
        stopped = {resident.key for resident in self._resident if self._is_stopped(resident)}
        self._next_s = {key: at_s for key, at_s in self._next_s.items() if key in stopped}
        self._kept = {key: state for key, state in self._kept.items() if key in stopped}
        for key in stopped:
            if monotonic() >= self._next_s.get(key, 0.0):
                await self._ask_for(key)
        for resident in self._resident:
            if resident.key not in stopped:
                resident.suspended = False
        for program in self._parked:
            if program.cause == SUSPENDED and program.stage is ParkStage.PARKED and not program.why_stopped():
                program.go_on(monotonic())
        self._publish()

    def _is_stopped(self, resident: ResidentProgram) -> bool:
        return job_of(resident.key) is not None and bool(self._host.why_stopped(resident.pids))

    async def _ask_for(self, key: str) -> None:
        suspended = await self._is_suspended(key)
        # A reading that came meanwhile may have replaced it.
        resident = self._resident.get(key)
        if resident is None:
            return
        resident.suspended = resident.asked = bool(suspended)
        self._next_s[key] = monotonic() + (_TRY_AGAIN_S if suspended else _ASK_AGAIN_S)
        if suspended and key not in self._kept:
            log.info("parking: the batch system has suspended %s", resident.program.display_name)

    def keeps(self, key: str, refusal: ParkRefusal, bytes: int, devices: Iterable[str]) -> None:
        """The job cannot be parked: it keeps its memory on these devices."""
        job = job_of(key)
        if job is not None:
            sentence = f"suspended job {job} keeps {bytes / _GIB:.1f} GiB of GPU memory: {refusal.sentence}"
            self._kept[key] = KeptReading(job, tuple(sorted(devices)), sentence)

    def kept_readings(self) -> tuple[KeptReading, ...]:
        return tuple(self._kept.values())

    async def let_run(self, program: ParkedProgram) -> None:
        """Before the move. What cannot be continued cannot be locked either: the move then fails with the reason."""
        await asyncio.gather(*(self._pauser.let_run(process) for process in program.places))

    async def stop_again(self, program: ParkedProgram) -> None:
        """After the move, whatever came of it."""
        processes = tuple(program.places)
        if await self._is_suspended(program.key):
            await asyncio.gather(*(self._pauser.stop_again(process) for process in processes))
            if not await self._is_suspended(program.key):
                await asyncio.gather(*(self._pauser.let_run(process) for process in processes))
        await asyncio.gather(*(self._pauser.leave(process) for process in processes))

    async def _is_suspended(self, key: str) -> bool | None:
        return await asyncio.to_thread(self._batch.is_suspended, job_of(key) or "")

    def _publish(self) -> None:
        states = {kept.job: SuspendedState(_KEPT, kept.sentence) for kept in self._kept.values()}
        for resident in self._resident:
            if resident.suspended and resident.key not in self._kept and (job := job_of(resident.key)):
                states[job] = SuspendedState("parking", "its memory leaves the GPU")
        for program in self._parked:
            if program.cause == SUSPENDED and (job := job_of(program.key)):
                states[job] = SuspendedState(program.stage.value, "its memory is in host memory, or on its way")
        if states != self._published:
            self._published = states
            self._batch.publish(states)
