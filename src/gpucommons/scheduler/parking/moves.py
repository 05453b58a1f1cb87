"""Programs on their way to host memory and back: each move is a task, and its result decides the next stage.

Which program moves is the planner's decision. What a move needs and leaves behind is here as well: the free memory of
GPUs, the events and counts of moves, and the comparison with the pauser's record, which outlives agent and pauser.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Final

from gpucommons.model.process_identity import ProcessKey
from gpucommons.model.sharing import ARRIVAL, BACKGROUND, MOVE_BUCKETS, SUSPENDED, TURN, Histogram, ParkEvent
from gpucommons.pauser.backend import Code, Failure, State
from gpucommons.pauser.client import Pauser
from gpucommons.pauser.protocol import Reply
from gpucommons.pauser.record import Stage
from gpucommons.rules.wait_reasons import park_cause
from gpucommons.scheduler.parking.host import ParkHost
from gpucommons.scheduler.parking.idleness import ParkedCpu
from gpucommons.scheduler.parking.programs import (
    NEVER_S,
    ParkedProgram,
    ParkedPrograms,
    Places,
    ResidentPrograms,
    adopt_parked,
    parked_of,
)
from gpucommons.scheduler.parking.sleep_calls import SleepCalls
from gpucommons.scheduler.parking.suspended import SuspendedJobs
from gpucommons.scheduler.parking.values import DeviceRoom, ParkRefusal, ParkStage, WhyNot
from gpucommons.scheduler.programs.jobs import Program

# What became of parking: the last events, and the counts and durations of moves.

log = logging.getLogger(__name__)

_MAX_EVENTS: Final = 64


class ParkLog:
    def __init__(self) -> None:
        self.events: deque[ParkEvent] = deque(maxlen=_MAX_EVENTS)
        self.parks = 0
        self.wakes = 0
        self.refusals: Counter[str] = Counter()
        self.park_seconds = Histogram(MOVE_BUCKETS)
        self.wake_seconds = Histogram(MOVE_BUCKETS)

    def log_parked(self, program: ParkedProgram, duration_s: float) -> None:
        self.parks += 1
        self.park_seconds.observe(duration_s)
        newcomer = program.made_for_program
        why = f"({program.cause})"
        if program.cause in (ARRIVAL, BACKGROUND):
            why = park_cause(program.cause, newcomer and newcomer.in_events_of(program.uid))
        self._add("parked", program, duration_s, f"{_gib(program.bytes)} moved to host memory {why}")

    def log_woken(self, program: ParkedProgram, moved_s: float, waited_s: float) -> None:
        """`moved_s` is the time of the move itself, `waited_s` how long the program waited for room before it."""
        self.wakes += 1
        self.wake_seconds.observe(moved_s)
        taken_s = waited_s + moved_s
        waited = f", after {waited_s:.1f} s of waiting for room" if waited_s > 1 else ""
        self._add("woken", program, taken_s, f"{_gib(program.bytes)} is back on the GPU after {taken_s:.1f} s{waited}")

    def log_refused(self, program: ParkedProgram, refusal: ParkRefusal) -> None:
        self.refusals[refusal.why] += 1
        self._add("refused", program, 0.0, refusal.sentence, refusal.why)

    def log_refused_program(self, program: Program, refusal: ParkRefusal) -> None:
        """For a program whose move has not begun."""
        self.log_refused(parked_of(program, "", ParkedCpu(0.0), monotonic(), time.time()), refusal)

    def log_stranded(self, program: ParkedProgram, duration_s: float) -> None:
        self._add("stranded", program, duration_s, "the driver could not restore it; end the process")

    def _add(self, kind: str, program: ParkedProgram, duration_s: float, sentence: str, why: str = "") -> None:
        wall_s = time.time()
        self.events.append(
            ParkEvent(
                f"{wall_s:.3f}/{kind}/{program.key}",
                kind,
                wall_s,
                program.key,
                program.name,
                program.user,
                program.uid,
                next(iter(program.memory), ""),
                program.bytes,
                duration_s,
                sentence,
                why,
            )
        )
        log.info("parking: %s: %s: %s", kind, program.name, sentence)


def _gib(amount: int) -> str:
    return f"{amount / (1 << 30):.1f} GiB"


# The free memory of GPUs for the planner: read in another thread, and dropped where a move has changed it since.

# The free bytes of each of these devices by NVML; those that could not be read are left out. Blocks.
RoomReader = Callable[[Iterable[str]], Mapping[str, int]]

_ROOM_WITHIN_S: Final = 5.0


class Rooms:
    def __init__(self, reader: RoomReader) -> None:
        self._reader = reader
        # When the reading under way began.
        self._reading: tuple[float, asyncio.Future[Mapping[str, int]]] | None = None
        # When the last move on each device ended.
        self._moved_s: dict[str, float] = {}

    def record_move(self, devices: Iterable[str], now_s: float) -> None:
        """A move has ended: the room of its device has to be read again."""
        self._moved_s.update(dict.fromkeys(devices, now_s))

    async def read(self, devices: AbstractSet[str], since_s: float) -> Mapping[str, DeviceRoom]:
        """A driver that hangs costs one thread; until it answers nothing is brought back. A reading that began before
        `since_s` is not used."""
        if self._reading is None:
            self._reading = monotonic(), asyncio.ensure_future(asyncio.to_thread(self._reader, devices))
        as_of_s, asked = self._reading
        done, _ = await asyncio.wait({asked}, timeout=_ROOM_WITHIN_S)
        if not done:
            return {}
        self._reading = None
        return {
            device: DeviceRoom(free, as_of_s)
            for device, free in asked.result().items()
            # A move may have ended in the meantime.
            if as_of_s >= since_s and as_of_s > self._moved_s.get(device, -NEVER_S)
        }


# Moves the GPU memory of one program to host memory and back, with the pauser. It decides nothing.
#
# A program may have several processes: all of them are locked before any is moved. They are then moved at once, because
# a locked process is resumed after the longest pause.

# An idle program has no work submitted; one that its owner parks may have much.
_LOCK_TIMEOUT_MS: Final = 5000
# The pauser has ended or does not answer: what it did is known once the next one has started.
_UNSURE: Final = frozenset({Code.UNAVAILABLE, Code.DEADLINE, Code.NOT_PAUSED, Code.BUSY})


@dataclass(slots=True)
class MoveResult:
    """What came of a move. `parked` are the processes whose memory is in host memory now.

    `unsure`: the pauser ended meanwhile. `stranded`: the driver gave up a process. `locked`: all could be locked.
    """

    parked: set[ProcessKey] = field(default_factory=set)
    failure: Failure | None = None
    unsure: bool = False
    stranded: bool = False
    locked: bool = True


class ProgramMover:
    def __init__(self, pauser: Pauser) -> None:
        self._pauser = pauser

    async def park(self, places: Places) -> MoveResult:
        locks = await asyncio.gather(
            *(
                self._pauser.lock(process, timeout_ms=_LOCK_TIMEOUT_MS, gpu=place.device)
                for process, place in places.items()
            )
        )
        moved = MoveResult()
        locked = [process for process, reply in zip(places, locks, strict=True) if reply.failure is None]
        failures = [reply.failure for reply in locks if reply.failure is not None]
        if failures:
            moved.failure, moved.locked = failures[0], False
            moved.unsure = failures[0].code in (Code.UNAVAILABLE, Code.DEADLINE)
            await asyncio.gather(*(self._pauser.unlock(process) for process in locked))
            return moved
        replies = await asyncio.gather(
            *(self._pauser.checkpoint(process, memory_bytes=place.bytes) for process, place in places.items())
        )
        for process, reply in zip(places, replies, strict=True):
            await self._settle(process, reply, moved, wakes=False)
        return moved

    async def wake(self, places: Places) -> MoveResult:
        """One after another: the caller has made sure of the room for all of them."""
        moved = MoveResult()
        left = dict(places)
        while left and moved.failure is None:
            process, _ = left.popitem()
            await self._settle(process, await self._pauser.restore(process), moved, wakes=True)
        moved.parked |= left.keys()
        if not moved.unsure:
            back = [process for process in places if process not in moved.parked]
            await asyncio.gather(*(self._pauser.unlock(process) for process in back))
        return moved

    async def _settle(self, process: ProcessKey, reply: Reply, moved: MoveResult, *, wakes: bool) -> None:
        """Takes in the outcome for one process. After a failure the driver says where its memory is."""
        if reply.failure is None:
            if not wakes:
                moved.parked.add(process)
            return
        if reply.failure.code == Code.GONE:
            return
        moved.failure = reply.failure
        if reply.failure.code in _UNSURE:
            moved.unsure = True
            return
        if reply.failure.code == Code.STOPPED and wakes:
            # No call was made: it is where it was.
            moved.parked.add(process)
            return
        state = (await self._pauser.state(process)).state
        if state is State.CHECKPOINTED:
            moved.parked.add(process)
        elif state is State.FAILED:
            moved.stranded = True
        elif not wakes:
            await self._pauser.unlock(process)


# Programs on their way to host memory and back: each move is a task, and what came of it decides the next stage.
#
# It decides nothing about which program moves: that is the planner's part.

EndTurns = Callable[[str], Awaitable[None]]

_RETRY_S: Final = 10.0
# A program that could not be parked for a reason that may pass is not tried again on its own for so long.
_AGAIN_S: Final = 600.0


class ProgramMoves:
    """`end_turns` takes a program out of turns and returns once it runs; `on_end` is called after each move."""

    def __init__(
        self,
        moves: ProgramMover,
        resident: ResidentPrograms,
        parked: ParkedPrograms,
        rooms: Rooms,
        park_log: ParkLog,
        host: ParkHost,
        end_turns: EndTurns,
        on_end: Callable[[], None],
        host_reserve_percent: float,
        sleep: SleepCalls,
        suspended: SuspendedJobs | None = None,
    ) -> None:
        self._moves = moves
        self._suspended = suspended
        self._resident = resident
        self._parked = parked
        self._rooms = rooms
        self._log = park_log
        self._host = host
        self._end_turns = end_turns
        self._on_end = on_end
        self._host_reserve_percent = host_reserve_percent
        self._sleep = sleep
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def under_way(self) -> int:
        return len(self._tasks)

    async def wait(self, within_s: float) -> None:
        """For the moves under way, which cannot be cancelled; there has to be one."""
        await asyncio.wait(self._tasks, timeout=within_s)

    def park(self, program: ParkedProgram) -> None:
        self._parked.add(program)
        self._begin(program, self._park(program))

    def wake(self, program: ParkedProgram) -> None:
        # Before the next plan, which must know that this device has a restore.
        program.begin(ParkStage.WAKING, monotonic())
        self._begin(program, self._wake(program))

    def _begin(self, program: ParkedProgram, move: "Coroutine[None, None, None]") -> None:
        task = asyncio.get_running_loop().create_task(move)
        self._tasks.add(task)
        task.add_done_callback(partial(self._finish, program))

    def _finish(self, program: ParkedProgram, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("parking: a move of %s failed unexpectedly", program.name, exc_info=task.exception())
            # The pauser knows what came of it. A program that stays on its way would be in the way of all others.
            program.unsure = True
        self._on_end()

    async def _park(self, program: ParkedProgram) -> None:
        await self._end_turns(program.key)
        begun_s = monotonic()
        program.begin(ParkStage.PARKING, begun_s)
        suspended = self._suspended if program.cause == SUSPENDED else None
        if suspended is not None:
            await suspended.let_run(program)
        sleeps = suspended is None and await self._sleep.sleep(program)
        moved = await self._moves.park(program.places)
        if suspended is not None:
            await suspended.stop_again(program)
        now = monotonic()
        self._rooms.record_move(program.memory, now)
        if moved.unsure:
            program.unsure = True
            return
        if moved.failure is not None:
            places = program.places
            self._could_not_park(program, moved, moved.failure)
            if sleeps and not program.places:
                program.places = places
                await self._sleep.wake(program)
            return
        program.keep(moved.parked)
        if not program.places:
            # All of its processes ended meanwhile.
            self._parked.remove(program)
            return
        program.begin(ParkStage.PARKED, now)
        program.was_moved = True
        self._log.log_parked(program, now - begun_s)
        if self._host_is_short():
            # Others took host memory meanwhile. The kernel would kill for it; a parked program is a likely victim.
            refusal = ParkRefusal(WhyNot.HOST_MEMORY, "it is brought back: too little of the host's memory is left")
            self._resident.cannot_park(program.places, refusal, now + _AGAIN_S)
            self._log.log_refused(program, refusal)
            program.go_on(now)
        elif program.cause in (TURN, BACKGROUND):
            # It was at work: it waits for its next turn, or for room.
            program.go_on(now, touched=False)

    def _host_is_short(self) -> bool:
        memory = self._host.host_memory()
        return memory is not None and memory.budget_bytes(self._host_reserve_percent) <= 0

    def _could_not_park(self, program: ParkedProgram, moved: MoveResult, failed: Failure) -> None:
        """Some processes may be parked all the same: they are brought back at once."""
        now = monotonic()
        if failed.code != Code.GONE:
            refusal, lasts_s = _refusal(moved, failed)
            self._resident.cannot_park(program.places, refusal, now + lasts_s)
            self._log.log_refused(program, refusal)
            if self._suspended is not None and program.cause == SUSPENDED:
                self._suspended.keeps(program.key, refusal, program.bytes, program.memory)
        program.keep(moved.parked)
        if moved.stranded:
            program.begin(ParkStage.STRANDED, now)
        elif program.places:
            program.begin(ParkStage.PARKED, now)
            program.go_on(now)
        else:
            self._parked.remove(program)

    async def _wake(self, program: ParkedProgram) -> None:
        asked_s, begun_s = program.wakes_since_s or monotonic(), monotonic()
        places = dict(program.places)
        moved = await self._moves.wake(places)
        now = monotonic()
        self._rooms.record_move(program.memory, now)
        if moved.unsure:
            program.unsure = True
            return
        for process in places:
            if process not in moved.parked:
                self._resident.record_return(process, now)
        if moved.stranded:
            program.begin(ParkStage.STRANDED, now)
            self._log.log_stranded(program, now - begun_s)
            return
        program.keep(moved.parked)
        if program.places:
            assert moved.failure is not None
            program.begin(ParkStage.PARKED, now)
            program.retry_s, program.waits = now + _RETRY_S, f"the driver did not restore it: {moved.failure.meaning}"
            return
        self._parked.remove(program)
        if moved.failure is not None:
            return
        program.places = {process: place for process, place in places.items() if not self._host.has_ended(process)}
        if not program.places:
            return
        self._log.log_woken(program, now - begun_s, begun_s - asked_s)
        await self._sleep.wake(program)


def _refusal(moved: MoveResult, failed: Failure) -> tuple[ParkRefusal, float]:
    """Why the driver did not park it, and for how long that stands."""
    if failed.code == Code.STOPPED:
        # While it is stopped, that is seen before it is tried again.
        return ParkRefusal(WhyNot.STOPPED, failed.meaning), 0.0
    if not moved.locked:
        return ParkRefusal(WhyNot.NOT_LOCKED, f"it could not be paused: {failed.meaning} ({failed.code})"), _AGAIN_S
    if failed.code == Code.NOT_SUPPORTED:
        sentence = "it cannot be parked: it uses managed memory, or the driver does not support it (801)"
        return ParkRefusal(WhyNot.MANAGED_MEMORY, sentence), NEVER_S
    if failed.code == Code.SHARED_MEMORY:
        return ParkRefusal(WhyNot.SHARED_MEMORY, f"it cannot be parked: {failed.meaning}"), NEVER_S
    return ParkRefusal(WhyNot.FAILED, f"its memory could not be moved: {failed.meaning} ({failed.code})"), _AGAIN_S


# What is left of earlier agents and pausers: the parked programs are compared with the record, which outlives both.
#
# What an earlier agent left parked is to be brought back; what a pauser was doing when it ended becomes known.


class RecordSync:
    """`fullest_gpu` is the GPU with the least free memory; empty while that is not known."""

    def __init__(self, pauser: Pauser, parked: ParkedPrograms, fullest_gpu: Callable[[], str]) -> None:
        self._pauser = pauser
        self._fullest_gpu = fullest_gpu
        self._parked = parked
        # The pid of the pauser whose record was last taken in.
        self._synced: int | None = None

    @property
    def is_due(self) -> bool:
        return self._pauser.pid != self._synced or any(program.unsure for program in self._parked)

    async def sync(self) -> None:
        pid, processes_before = self._pauser.pid, set(self._parked.processes)
        uncertain = {
            program.key: program.settled_s
            for program in self._parked
            if program.unsure or program.stage is ParkStage.PARKED
        }
        entries = await self._pauser.list()
        if isinstance(entries, Failure):
            return
        listed = {entry.process: entry.stage for entry in entries}
        now = monotonic()
        for key, settled_s in uncertain.items():
            program = self._parked.get(key)
            if program is None or program.settled_s != settled_s:
                continue
            # The new pauser may not have finished what its predecessor had begun.
            if all(listed.get(process, Stage.PARKED) is Stage.PARKED for process in program.places):
                self._is_sure(program, listed.keys(), now)
        for entry in entries:
            if entry.stage is Stage.PARKED and entry.process not in processes_before | self._parked.processes:
                left = adopt_parked(entry, now, time.time())
                if not entry.gpu:
                    # Its entry in the record was lost, and the driver does not say on which GPU it was.
                    self._adopt(left)
                else:
                    log.warning("parking: %s was left parked and is brought back", left.name)
                self._parked.add(left)
        self._synced = pid

    def _adopt(self, program: ParkedProgram) -> None:
        """It comes back when it is used or asked for, where the GPU with the least room has enough for it: another tool
        may have parked it."""
        gpu = self._fullest_gpu()
        program.places = {process: place._replace(device=gpu) for process, place in program.places.items()}
        program.wakes_since_s = None
        log.warning(
            "parking: %s is parked, and the record did not name it; 'gpucommons wake' brings it back", program.name
        )

    def _is_sure(self, program: ParkedProgram, parked: AbstractSet[ProcessKey], now: float) -> None:
        was_moving, program.unsure = program.unsure, False
        program.keep({process for process in program.places if process in parked})
        if not program.places:
            self._parked.remove(program)
        elif was_moving:
            program.begin(ParkStage.PARKED, now)
            program.go_on(now)
