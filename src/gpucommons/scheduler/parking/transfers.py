"""Programs on their way to host memory and back: each move is a task, and what came of it decides the next stage.

It decides nothing about which program moves: that is the planner's part.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from time import monotonic
from typing import Final

from gpucommons.model.parking import TURN
from gpucommons.parking.values import ParkRefusal, ParkStage, WhyNot
from gpucommons.pauser.backend import Code, Failure
from gpucommons.scheduler.parking.held import NEVER_S, HeldPrograms
from gpucommons.scheduler.parking.lot import Lot
from gpucommons.scheduler.parking.moves import Moved, Moves
from gpucommons.scheduler.parking.park_host import ParkHost
from gpucommons.scheduler.parking.park_log import ParkLog
from gpucommons.scheduler.parking.rooms import Rooms
from gpucommons.scheduler.parking.spot import Spot

log = logging.getLogger(__name__)

PartWith = Callable[[str], Awaitable[None]]

_RETRY_S: Final = 10.0
# A program that could not be parked for a reason that may pass is not tried again on its own for so long.
_AGAIN_S: Final = 600.0


class Transfers:
    """`part_with` takes a program out of turns and returns once it runs; `on_end` is called after each move."""

    def __init__(
        self,
        moves: Moves,
        held: HeldPrograms,
        lot: Lot,
        rooms: Rooms,
        park_log: ParkLog,
        host: ParkHost,
        part_with: PartWith,
        on_end: Callable[[], None],
    ) -> None:
        self._moves = moves
        self._held = held
        self._lot = lot
        self._rooms = rooms
        self._log = park_log
        self._host = host
        self._part_with = part_with
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
