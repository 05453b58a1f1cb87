"""Parking in the scheduler's thread: looks, asks the planner, and lets the pauser move memory. It decides nothing.

A parked program takes no part in turns: the policy does not know it. The pauser's record outlives the agent; what an
earlier agent, or an earlier pauser, left parked is brought back one after another.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from time import monotonic
from typing import Final, NamedTuple, TypeVar

from gpucommons.config.scheduler import ParkingSettings
from gpucommons.model.parking import ASKED, IDLE, TURN, ParkingReading
from gpucommons.model.process_identity import ProcessKey
from gpucommons.parking.idleness import ParkedCpu, after_look
from gpucommons.parking.plan import plan
from gpucommons.parking.values import (
    DeviceRoom,
    ParkPlan,
    ParkRefusal,
    ParkSituation,
    ParkStage,
    ParkTerms,
    RoomClaims,
    WhyNot,
)
from gpucommons.pauser.backend import Code, Failure
from gpucommons.pauser.client import Pauser
from gpucommons.pauser.leftovers import RESERVE_BYTES
from gpucommons.pauser.record import Stage
from gpucommons.scheduler.parking.held import NEVER_S, HeldProgram, HeldPrograms
from gpucommons.scheduler.parking.lot import Spot, left_spot, spot_of
from gpucommons.scheduler.parking.moves import Moved, Moves
from gpucommons.scheduler.parking.park_host import THIS_HOST, ParkHost
from gpucommons.scheduler.parking.park_log import ParkLog
from gpucommons.scheduler.programs.exemptions import Exemption
from gpucommons.scheduler.programs.jobs import Program, ProgramReading

log = logging.getLogger(__name__)

# The free bytes of each of these devices by NVML; those that could not be read are left out. Blocks.
RoomReader = Callable[[Iterable[str]], Mapping[str, int]]
PartWith = Callable[[str], Awaitable[None]]
Claims = Callable[[], RoomClaims]
Row = TypeVar("Row")

_LOOK_S: Final = 0.25
_CANDIDATE_LOOK_S: Final = 1.0
_ROOM_WITHIN_S: Final = 5.0
# How long the agent waits at its end for a move under way, which cannot be cancelled.
_STOP_WITHIN_S: Final = 20.0
_RETRY_S: Final = 10.0
# A program that could not be parked for a reason that may pass is not tried again on its own for so long.
_AGAIN_S: Final = 600.0
_LOOKS_ELSEWHERE: Final = 2


class ParkOrder(NamedTuple):
    """The answer to an order: the names of the programs that it reaches, and why others are refused."""

    keys: tuple[str, ...]
    names: tuple[str, ...]
    refused: tuple[str, ...]


class _Look(NamedTuple):
    """The CPU time of a program, and where it sleeps; None: not known."""

    cpu_s: float | None
    place: tuple[int, ...] | None


class Parking:
    """Call everything from the scheduler's loop.

    `part_with` takes a program out of turns and returns once it runs; `claims` are the leases and clients that wait for
    room; `backend` is how the pauser pauses.
    """

    def __init__(
        self,
        settings: ParkingSettings,
        pauser: Pauser,
        rooms: RoomReader,
        part_with: PartWith,
        claims: Claims,
        backend: str = "cuda",
        host: ParkHost = THIS_HOST,
    ) -> None:
        self._settings = settings
        self._host = host
        self._terms = ParkTerms(
            settings.idle_after_s,
            settings.eager,
            settings.oversubscribe,
            settings.host_reserve_percent,
            settings.min_residence_s,
            RESERVE_BYTES,
        )
        self._pauser = pauser
        self._rooms = rooms
        self._part_with = part_with
        self._claims = claims
        self._moves = Moves(pauser)
        self._spots: dict[str, Spot] = {}
        self._held = HeldPrograms(settings.idle_after_s, movable=backend == "cuda", host=host)
        self.log = ParkLog()
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: asyncio.Task[None] | None = None
        self._reading_rooms: tuple[float, asyncio.Future[Mapping[str, int]]] | None = None
        # When the last move on each device ended.
        self._moved_s: dict[str, float] = {}
        self._synced: int | None = None
        self._looked_s = 0.0
        self._stopping = False
        self._wake_up = asyncio.Event()

    def start(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Waits for a move under way, up to a limit. What is parked stays in the record for the next start."""
        self._stopping = True
        if self._tasks and self._pauser.has_record:
            log.info("parking: waiting for %d moves of GPU memory", len(self._tasks))
            await asyncio.wait(self._tasks, timeout=_STOP_WITHIN_S)
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
        left = sum(spot.stage is not ParkStage.STRANDED for spot in self._spots.values())
        if left and self._pauser.has_record:
            log.warning("parking: %d programs stay parked until the next start; or run: gpucommons resume --all", left)

    # Input

    def without_parked(self, reading: ProgramReading) -> ProgramReading:
        """The reading without the processes that are parked or on their way: they take no turns."""
        held = self.processes
        if not held:
            return reading
        for spot in self._spots.values():
            found = [one for one in reading.processes if one.key in spot.places]
            amounts = [use.memory_bytes for one in found for use in one.uses]
            spot.nvml_bytes = None if None in amounts else sum(amount or 0 for amount in amounts)
        return replace(reading, processes=tuple(one for one in reading.processes if one.key not in held))

    @property
    def processes(self) -> AbstractSet[ProcessKey]:
        return {process for spot in self._spots.values() for process in spot.places}

    def see(
        self,
        programs: Iterable[Program],
        exempt: Sequence[Exemption],
        paused: AbstractSet[str],
        in_turns: AbstractSet[str],
        as_of_s: float,
    ) -> None:
        """One reading: programs that take part and that do not, the keys of those that are paused, or take turns."""
        self._held.see(programs, exempt, paused, in_turns, self.processes, as_of_s)

    # Orders

    def park(self, target: str, uid: int | None) -> ParkOrder:
        """`uid` is that of the person who asks; None: an admin. ValueError: no such program, or not theirs."""
        found = [held for held in self._held if target in held.names]
        return self._ask(self._of_user(target, uid, [(held.program.uid, held) for held in found]))

    def park_processes(self, pids: AbstractSet[int]) -> ParkOrder:
        """The programs of these processes, for the agent itself. Nothing is reached if none of them is a program."""
        return self._ask([held for held in self._held if not pids.isdisjoint(held.pids)])

    def _ask(self, allowed: Sequence[HeldProgram]) -> ParkOrder:
        refused = []
        for held in allowed:
            self._held.try_again(held.program)
            refusal = self._held.obstacle(held, self._spots.keys(), monotonic()) or self._unavailable()
            if refusal is not None:
                self._refuse(held.program, refusal)
                refused.append(f"{held.program.display_name}: {refusal.sentence}")
            else:
                held.asked = True
        reached = [held.program for held in allowed if held.asked]
        self._wake_up.set()
        return ParkOrder(tuple(p.key for p in reached), tuple(p.display_name for p in reached), tuple(refused))

    def wake(self, target: str, uid: int | None) -> ParkOrder:
        found = [spot for spot in self._spots.values() if target in spot.names]
        allowed = self._of_user(target, uid, [(spot.uid, spot) for spot in found])
        refused = []
        for spot in allowed:
            if spot.stage is ParkStage.STRANDED:
                refused.append(f"{spot.name}: the driver could not restore it; end the process")
            else:
                spot.retry_s = 0.0
                self._goes_on(spot, monotonic())
        reached = [spot for spot in allowed if spot.stage is not ParkStage.STRANDED]
        self._wake_up.set()
        return ParkOrder(tuple(s.key for s in reached), tuple(s.name for s in reached), tuple(refused))

    def _of_user(self, target: str, uid: int | None, found: Sequence[tuple[int | None, Row]]) -> list[Row]:
        if not found:
            raise ValueError(f"no such program {target!r}: see 'gpucommons scheduler status' and 'gpucommons parked'")
        rows = [row for owner, row in found if uid is None or owner == uid]
        if not rows:
            raise ValueError(f"{target} is refused: it is another user's program")
        return rows

    def _unavailable(self) -> ParkRefusal | None:
        reason = self._pauser.reason
        return ParkRefusal(WhyNot.UNAVAILABLE, reason) if reason else None

    # Output

    def reading(self) -> ParkingReading:
        now = monotonic()
        return ParkingReading(
            self._settings.idle_after_s,
            self._settings.eager,
            self._pauser.reason,
            tuple(spot.reading(now) for spot in self._spots.values()),
            tuple(self.log.events),
            self.log.parks,
            self.log.wakes,
            dict(self.log.refusals),
        )

    # The loop

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._wake_up.wait()
            self._wake_up.clear()
            try:
                await self._step()
            except Exception:
                log.exception("parking: an unexpected error; it is tried again")
                await asyncio.sleep(1)

    async def _step(self) -> None:
        if not self._pauser.available or self._stopping:
            return
        if self._pauser.pid != self._synced or any(spot.unsure for spot in self._spots.values()):
            await self._sync()
        now = monotonic()
        self._forget_ended()
        await self._look(now)
        if not self._has_work():
            return
        # Before the rooms: what a lease takes in between is counted twice, never not at all.
        claims, since_s = self._claims(), monotonic()
        rooms = await self._read_rooms(since_s)
        if self._stopping:
            return
        situation = self._situation(rooms, claims)
        self._carry_out(plan(self._terms, situation))

    def _has_work(self) -> bool:
        if any(held.asked for held in self._held) or any(s.wakes_since_s is not None for s in self._spots.values()):
            return True
        now = monotonic()
        idle = any(self._held.is_idle(held, now) for held in self._held)
        return (idle and self._terms.eager) or ((idle or self._terms.oversubscribe) and bool(self._claims().needs))

    async def _look(self, now: float) -> None:
        """At the CPU time of parked programs, and once a second of programs whose GPU is idle.

        A program may have hundreds of threads: they are read in another thread, so that no hand-off waits.
        """
        parked = {
            key: spot
            for key, spot in self._spots.items()
            if spot.stage is ParkStage.PARKED and spot.wakes_since_s is None
        }
        idle: dict[str, HeldProgram] = {}
        if self._terms.idle_after_s > 0 and now - self._looked_s >= _CANDIDATE_LOOK_S:
            self._looked_s = now
            idle = {held.key: held for held in self._held if held.may_be_idle}
        if not parked and not idle:
            return
        pids = {key: spot.pids for key, spot in parked.items()}
        pids |= {key: held.pids for key, held in idle.items()}
        looks = await asyncio.to_thread(self._looks, pids)
        now = monotonic()
        for key, spot in parked.items():
            if spot.stage is ParkStage.PARKED and self._spots.get(key) is spot:
                spot.cpu, goes_on = after_look(spot.cpu, looks[key].cpu_s, now)
                if goes_on or _went_on(spot, looks[key]):
                    self._goes_on(spot, now)
        for key in idle:
            # A reading that came meanwhile may have shown it active, or that it has ended.
            held = self._held.get(key)
            if held is not None and held.idleness.gpu_s is not None:
                held.look(looks[key].cpu_s, looks[key].place, now)

    def _looks(self, pids: Mapping[str, Sequence[int]]) -> Mapping[str, _Look]:
        host = self._host
        return {key: _Look(host.cpu_seconds(several), host.waits_in(several)) for key, several in pids.items()}

    def _goes_on(self, spot: Spot, now: float) -> None:
        if spot.wakes_since_s is None:
            spot.wakes_since_s = now

    async def _read_rooms(self, since_s: float) -> Mapping[str, DeviceRoom]:
        """A driver that hangs costs one thread; until it answers nothing is brought back. A reading that began before
        `since_s` is not used."""
        devices = {device for spot in self._spots.values() for device in spot.memory}
        devices |= {device for held in self._held for device in held.program.devices}
        if self._reading_rooms is None:
            self._reading_rooms = monotonic(), asyncio.ensure_future(asyncio.to_thread(self._rooms, devices))
        as_of_s, asked = self._reading_rooms
        done, _ = await asyncio.wait({asked}, timeout=_ROOM_WITHIN_S)
        if not done:
            return {}
        self._reading_rooms = None
        return {
            device: DeviceRoom(free, as_of_s)
            for device, free in asked.result().items()
            # A move may have ended in the meantime.
            if as_of_s >= since_s and as_of_s > self._moved_s.get(device, -NEVER_S)
        }

    def _situation(self, rooms: Mapping[str, DeviceRoom], claims: RoomClaims) -> ParkSituation:
        now = monotonic()
        held = self._held.planned(self._spots.keys(), now)
        spots = [spot.planned(now) for spot in self._spots.values()]
        return ParkSituation((*held, *spots), rooms, self._host.host_memory(), claims, now)

    def _carry_out(self, found: ParkPlan) -> None:
        for key, refusal in found.refused.items():
            refused = self._held[key]
            refused.asked = False
            self._refuse(refused.program, refusal)
        for key, sentence in found.waits.items():
            self._spots[key].waits = sentence
        for key in found.wake:
            # Before the next plan, which must know that this device has a restore.
            self._spots[key].begin(ParkStage.WAKING, monotonic())
            self._begin(self._wake(self._spots[key]))
        for key in found.park:
            parting = self._held.pop(key)
            is_idle = self._held.is_idle(parting, monotonic())
            cause = ASKED if parting.asked else IDLE if is_idle else TURN
            # An idle program has been quiet for long: its next use of the CPU counts, however soon it comes.
            cpu = ParkedCpu(parting.idleness.background, quiet_since_s=-NEVER_S if cause == IDLE else None)
            spot = self._spots[key] = spot_of(parting.program, cause, cpu, monotonic(), time.time(), self._host)
            spot.waited_in = parting.waits_in if cause == IDLE else None
            self._begin(self._park(spot))

    def _begin(self, move: "Coroutine[None, None, None]") -> None:
        task = asyncio.get_running_loop().create_task(move)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._wake_up.set()
        if not task.cancelled() and task.exception() is not None:
            log.error("parking: a move failed unexpectedly", exc_info=task.exception())

    # Moves

    async def _park(self, spot: Spot) -> None:
        await self._part_with(spot.key)
        begun_s = monotonic()
        spot.begin(ParkStage.PARKING, begun_s)
        moved = await self._moves.park(spot.places)
        now = self._ended(spot)
        if moved.unsure:
            spot.unsure = True
            return
        if moved.failure is None:
            spot.keep(moved.parked)
            if not spot.places:
                # All of its processes ended meanwhile.
                del self._spots[spot.key]
                return
            spot.begin(ParkStage.PARKED, now)
            self.log.parked(spot, now - begun_s)
            if spot.cause == TURN:
                # It was at work: it waits for its next turn.
                self._goes_on(spot, now)
            return
        self._could_not_park(spot, moved)

    def _ended(self, spot: Spot) -> float:
        """A move has ended: the room of its device has to be read again."""
        now = monotonic()
        self._moved_s.update(dict.fromkeys(spot.memory, now))
        return now

    def _could_not_park(self, spot: Spot, moved: Moved) -> None:
        """Some processes may be parked all the same: they are brought back at once."""
        now = monotonic()
        assert moved.failure is not None
        if moved.failure.code != Code.GONE:
            refusal, lasts_s = _refusal(moved, moved.failure)
            self._held.cannot_park(spot.places, refusal, now + lasts_s)
            self.log.refused(spot, refusal)
        spot.keep(moved.parked)
        if moved.stranded:
            spot.begin(ParkStage.STRANDED, now)
        elif spot.places:
            spot.begin(ParkStage.PARKED, now)
            self._goes_on(spot, now)
        else:
            del self._spots[spot.key]

    async def _wake(self, spot: Spot) -> None:
        asked_s, begun_s = spot.wakes_since_s or monotonic(), monotonic()
        places = dict(spot.places)
        moved = await self._moves.wake(places)
        now = self._ended(spot)
        if moved.unsure:
            spot.unsure = True
            return
        for process in places:
            if process not in moved.parked:
                self._held.came_back(process, now)
        if moved.stranded:
            spot.begin(ParkStage.STRANDED, now)
            self.log.stranded(spot, now - begun_s)
            return
        spot.keep(moved.parked)
        if spot.places:
            assert moved.failure is not None
            spot.begin(ParkStage.PARKED, now)
            spot.retry_s, spot.waits = now + _RETRY_S, f"the driver did not restore it: {moved.failure.meaning}"
            return
        del self._spots[spot.key]
        if moved.failure is not None:
            return
        spot.places = {process: place for process, place in places.items() if not self._host.has_ended(process)}
        if not spot.places:
            return
        self.log.woken(spot, now - begun_s, begun_s - asked_s)

    def _forget_ended(self) -> None:
        """A parked program that is killed frees everything; the pauser removes it from the record."""
        for key, spot in list(self._spots.items()):
            if spot.stage in (ParkStage.PARKED, ParkStage.STRANDED) and not spot.unsure:
                spot.keep({process for process in spot.places if not self._host.has_ended(process)})
                if not spot.places:
                    del self._spots[key]

    # What is left of earlier agents and pausers

    async def _sync(self) -> None:
        pid, known = self._pauser.pid, set(self.processes)
        uncertain = {
            key: spot.settled_s for key, spot in self._spots.items() if spot.unsure or spot.stage is ParkStage.PARKED
        }
        found = await self._pauser.list()
        if isinstance(found, Failure):
            return
        listed = {one.process: one.stage for one in found}
        now = monotonic()
        for key, settled_s in uncertain.items():
            spot = self._spots.get(key)
            if spot is None or spot.settled_s != settled_s:
                continue
            # The new pauser may not have finished what its predecessor had begun.
            if all(listed.get(process, Stage.PARKED) is Stage.PARKED for process in spot.places):
                self._is_sure(spot, listed.keys(), now)
        for one in found:
            if one.stage is Stage.PARKED and one.process not in known | self.processes:
                left = left_spot(one, now, time.time())
                self._spots[left.key] = left
                log.warning("parking: %s was left parked and is brought back", left.name)
        self._synced = pid

    def _is_sure(self, spot: Spot, parked: AbstractSet[ProcessKey], now: float) -> None:
        was_moving, spot.unsure = spot.unsure, False
        spot.keep({process for process in spot.places if process in parked})
        if not spot.places:
            del self._spots[spot.key]
        elif was_moving:
            spot.begin(ParkStage.PARKED, now)
            self._goes_on(spot, now)

    def _refuse(self, program: Program, refusal: ParkRefusal) -> None:
        self.log.refused(spot_of(program, "", ParkedCpu(0.0), monotonic(), time.time(), self._host), refusal)


def _went_on(spot: Spot, look: _Look) -> bool:
    """Whether it sleeps elsewhere than while it was idle, at two looks in a row: inside a CUDA call.

    This also shows a cell that was run while the memory moved, and one that uses hardly any CPU time.
    """
    if spot.waited_in is None or look.place is None:
        return False
    spot.looks_elsewhere = spot.looks_elsewhere + 1 if look.place != spot.waited_in else 0
    return spot.looks_elsewhere >= _LOOKS_ELSEWHERE


def _refusal(moved: Moved, failed: Failure) -> tuple[ParkRefusal, float]:
    """Why the driver did not park it, and for how long that stands."""
    if not moved.locked:
        return ParkRefusal(WhyNot.NOT_LOCKED, f"it could not be paused: {failed.meaning} ({failed.code})"), _AGAIN_S
    if failed.code == Code.NOT_SUPPORTED:
        sentence = "it cannot be parked: it uses managed memory, or the driver does not support it (801)"
        return ParkRefusal(WhyNot.MANAGED_MEMORY, sentence), NEVER_S
    return ParkRefusal(WhyNot.FAILED, f"its memory could not be moved: {failed.meaning} ({failed.code})"), _AGAIN_S
