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
from time import monotonic
from typing import Final

from gpucommons.model.process_identity import ProcessKey
from gpucommons.model.sharing import MOVE_BUCKETS, TURN, Histogram, ParkEvent
from gpucommons.pauser.backend import Code, Failure
from gpucommons.pauser.client import Pauser
from gpucommons.pauser.record import Stage
from gpucommons.scheduler.parking.host import ParkHost
from gpucommons.scheduler.parking.idleness import ParkedCpu
from gpucommons.scheduler.parking.moves import Moved, ProgramMover
from gpucommons.scheduler.parking.programs import NEVER_S, HeldPrograms, Lot, Spot, left_spot, spot_of
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

    def parked(self, spot: Spot, duration_s: float) -> None:
        self.parks += 1
        self.park_seconds.observe(duration_s)
        self._add("parked", spot, duration_s, f"{_gib(spot.bytes)} moved to host memory ({spot.cause})")

    def woken(self, spot: Spot, moved_s: float, waited_s: float) -> None:
        """`moved_s` is the time of the move itself, `waited_s` how long the program waited for room before it."""
        self.wakes += 1
        self.wake_seconds.observe(moved_s)
        taken_s = waited_s + moved_s
        waited = f", after {waited_s:.1f} s of waiting for room" if waited_s > 1 else ""
        self._add("woken", spot, taken_s, f"{_gib(spot.bytes)} is back on the GPU after {taken_s:.1f} s{waited}")

    def refused(self, spot: Spot, refusal: ParkRefusal) -> None:
        self.refusals[refusal.why] += 1
        self._add("refused", spot, 0.0, refusal.sentence, refusal.why)

    def refused_program(self, program: Program, refusal: ParkRefusal) -> None:
        """For a program whose move has not begun."""
        self.refused(spot_of(program, "", ParkedCpu(0.0), monotonic(), time.time()), refusal)

    def stranded(self, spot: Spot, duration_s: float) -> None:
        self._add("stranded", spot, duration_s, "the driver could not restore it; end the process")

    def _add(self, kind: str, spot: Spot, duration_s: float, sentence: str, why: str = "") -> None:
        wall_s = time.time()
        self.events.append(
            ParkEvent(
                f"{wall_s:.3f}/{kind}/{spot.key}",
                kind,
                wall_s,
                spot.key,
                spot.name,
                spot.user,
                spot.uid,
                next(iter(spot.memory), ""),
                spot.bytes,
                duration_s,
                sentence,
                why,
            )
        )
        log.info("parking: %s: %s: %s", kind, spot.name, sentence)


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

    def moved(self, devices: Iterable[str], now_s: float) -> None:
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


# Programs on their way to host memory and back: each move is a task, and what came of it decides the next stage.
#
# It decides nothing about which program moves: that is the planner's part.

PartWith = Callable[[str], Awaitable[None]]

_RETRY_S: Final = 10.0
# A program that could not be parked for a reason that may pass is not tried again on its own for so long.
_AGAIN_S: Final = 600.0


class ProgramTransfers:
    """`end_turns` takes a program out of turns and returns once it runs; `on_end` is called after each move."""

    def __init__(
        self,
        moves: ProgramMover,
        held: HeldPrograms,
        lot: Lot,
        rooms: Rooms,
        park_log: ParkLog,
        host: ParkHost,
        end_turns: PartWith,
        on_end: Callable[[], None],
    ) -> None:
        self._moves = moves
        self._held = held
        self._lot = lot
        self._rooms = rooms
        self._log = park_log
        self._host = host
        self._part_with = end_turns
        self._on_end = on_end
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def under_way(self) -> int:
        return len(self._tasks)

    async def wait(self, within_s: float) -> None:
        """For the moves under way, which cannot be cancelled; there has to be one."""
        await asyncio.wait(self._tasks, timeout=within_s)

    def park(self, spot: Spot) -> None:
        self._lot.add(spot)
        self._begin(self._park(spot))

    def wake(self, spot: Spot) -> None:
        # Before the next plan, which must know that this device has a restore.
        spot.begin(ParkStage.WAKING, monotonic())
        self._begin(self._wake(spot))

    def _begin(self, move: "Coroutine[None, None, None]") -> None:
        task = asyncio.get_running_loop().create_task(move)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._on_end()
        if not task.cancelled() and task.exception() is not None:
            log.error("parking: a move failed unexpectedly", exc_info=task.exception())

    async def _park(self, spot: Spot) -> None:
        await self._part_with(spot.key)
        begun_s = monotonic()
        spot.begin(ParkStage.PARKING, begun_s)
        moved = await self._moves.park(spot.places)
        now = monotonic()
        self._rooms.moved(spot.memory, now)
        if moved.unsure:
            spot.unsure = True
            return
        if moved.failure is not None:
            self._could_not_park(spot, moved, moved.failure)
            return
        spot.keep(moved.parked)
        if not spot.places:
            # All of its processes ended meanwhile.
            self._lot.remove(spot)
            return
        spot.begin(ParkStage.PARKED, now)
        self._log.parked(spot, now - begun_s)
        if spot.cause == TURN:
            # It was at work: it waits for its next turn.
            spot.go_on(now)

    def _could_not_park(self, spot: Spot, moved: Moved, failed: Failure) -> None:
        """Some processes may be parked all the same: they are brought back at once."""
        now = monotonic()
        if failed.code != Code.GONE:
            refusal, lasts_s = _refusal(moved, failed)
            self._held.cannot_park(spot.places, refusal, now + lasts_s)
            self._log.refused(spot, refusal)
        spot.keep(moved.parked)
        if moved.stranded:
            spot.begin(ParkStage.STRANDED, now)
        elif spot.places:
            spot.begin(ParkStage.PARKED, now)
            spot.go_on(now)
        else:
            self._lot.remove(spot)

    async def _wake(self, spot: Spot) -> None:
        asked_s, begun_s = spot.wakes_since_s or monotonic(), monotonic()
        places = dict(spot.places)
        moved = await self._moves.wake(places)
        now = monotonic()
        self._rooms.moved(spot.memory, now)
        if moved.unsure:
            spot.unsure = True
            return
        for process in places:
            if process not in moved.parked:
                self._held.came_back(process, now)
        if moved.stranded:
            spot.begin(ParkStage.STRANDED, now)
            self._log.stranded(spot, now - begun_s)
            return
        spot.keep(moved.parked)
        if spot.places:
            assert moved.failure is not None
            spot.begin(ParkStage.PARKED, now)
            spot.retry_s, spot.waits = now + _RETRY_S, f"the driver did not restore it: {moved.failure.meaning}"
            return
        self._lot.remove(spot)
        if moved.failure is not None:
            return
        spot.places = {process: place for process, place in places.items() if not self._host.has_ended(process)}
        if not spot.places:
            return
        self._log.woken(spot, now - begun_s, begun_s - asked_s)


def _refusal(moved: Moved, failed: Failure) -> tuple[ParkRefusal, float]:
    """Why the driver did not park it, and for how long that stands."""
    if failed.code == Code.STOPPED:
        # While it is stopped, that is seen before it is tried again.
        return ParkRefusal(WhyNot.STOPPED, failed.meaning), 0.0
    if not moved.locked:
        return ParkRefusal(WhyNot.NOT_LOCKED, f"it could not be paused: {failed.meaning} ({failed.code})"), _AGAIN_S
    if failed.code == Code.NOT_SUPPORTED:
        sentence = "it cannot be parked: it uses managed memory, or the driver does not support it (801)"
        return ParkRefusal(WhyNot.MANAGED_MEMORY, sentence), NEVER_S
    return ParkRefusal(WhyNot.FAILED, f"its memory could not be moved: {failed.meaning} ({failed.code})"), _AGAIN_S


# What is left of earlier agents and pausers: the lot is compared with the pauser's record, which outlives both.
#
# What an earlier agent left parked is to be brought back; what a pauser was doing when it ended becomes known.


class RecordSync:
    def __init__(self, pauser: Pauser, lot: Lot) -> None:
        self._pauser = pauser
        self._lot = lot
        # The pid of the pauser whose record was last taken in.
        self._synced: int | None = None

    @property
    def is_due(self) -> bool:
        return self._pauser.pid != self._synced or any(spot.unsure for spot in self._lot)

    async def sync(self) -> None:
        pid, known = self._pauser.pid, set(self._lot.processes)
        uncertain = {spot.key: spot.settled_s for spot in self._lot if spot.unsure or spot.stage is ParkStage.PARKED}
        found = await self._pauser.list()
        if isinstance(found, Failure):
            return
        listed = {one.process: one.stage for one in found}
        now = monotonic()
        for key, settled_s in uncertain.items():
            spot = self._lot.get(key)
            if spot is None or spot.settled_s != settled_s:
                continue
            # The new pauser may not have finished what its predecessor had begun.
            if all(listed.get(process, Stage.PARKED) is Stage.PARKED for process in spot.places):
                self._is_sure(spot, listed.keys(), now)
        for one in found:
            if one.stage is Stage.PARKED and one.process not in known | self._lot.processes:
                left = left_spot(one, now, time.time())
                self._lot.add(left)
                log.warning("parking: %s was left parked and is brought back", left.name)
        self._synced = pid

    def _is_sure(self, spot: Spot, parked: AbstractSet[ProcessKey], now: float) -> None:
        was_moving, spot.unsure = spot.unsure, False
        spot.keep({process for process in spot.places if process in parked})
        if not spot.places:
            self._lot.remove(spot)
        elif was_moving:
            spot.begin(ParkStage.PARKED, now)
            spot.go_on(now)
