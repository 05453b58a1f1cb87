"""Parking in the scheduler's thread: looks, asks the planner, and has its plan carried out. It decides nothing.

A parked program takes no part in turns: the policy does not know it. The pauser's record outlives the agent; what an
earlier agent, or an earlier pauser, left parked is brought back one after another.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from time import monotonic
from typing import Final

from gpucommons.config.scheduler import ParkingSettings
from gpucommons.model.parking import ASKED, IDLE, TURN, ParkingReading
from gpucommons.parking.attained import attained_seconds
from gpucommons.parking.expected import expected_rooms
from gpucommons.parking.idleness import ParkedCpu
from gpucommons.parking.plan import plan
from gpucommons.parking.values import DeviceRoom, ParkPlan, ParkSituation, ParkStage, ParkTerms, RoomClaims
from gpucommons.pauser.client import Pauser
from gpucommons.pauser.leftovers import RESERVE_BYTES
from gpucommons.scheduler.parking.held import NEVER_S, HeldProgram, HeldPrograms
from gpucommons.scheduler.parking.looks import ParkLooks
from gpucommons.scheduler.parking.lot import Lot
from gpucommons.scheduler.parking.moves import Moves
from gpucommons.scheduler.parking.orders import ParkOrders
from gpucommons.scheduler.parking.park_host import THIS_HOST, ParkHost
from gpucommons.scheduler.parking.park_log import ParkLog
from gpucommons.scheduler.parking.record_sync import RecordSync
from gpucommons.scheduler.parking.rooms import RoomReader, Rooms
from gpucommons.scheduler.parking.spot import Spot, spot_of
from gpucommons.scheduler.parking.transfers import PartWith, Transfers
from gpucommons.scheduler.programs.exemptions import Exemption
from gpucommons.scheduler.programs.jobs import Program, ProgramReading

log = logging.getLogger(__name__)

Claims = Callable[[], RoomClaims]

_LOOK_S: Final = 0.25
# How long the agent waits at its end for a move under way, which cannot be cancelled.
_STOP_WITHIN_S: Final = 20.0


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
        self._terms = ParkTerms(
            settings.idle_after_s,
            settings.eager,
            settings.oversubscribe,
            settings.host_reserve_percent,
            settings.min_residence_s,
            RESERVE_BYTES,
        )
        self._pauser = pauser
        self._claims = claims
        self._host = host
        self._wake_up = asyncio.Event()
        self._held = HeldPrograms(settings.idle_after_s, backend == "cuda", host, settings.oversubscribe)
        self._lot = Lot(host)
        self._rooms = Rooms(rooms)
        self._looks = ParkLooks(self._held, self._lot, host, parks_idle=settings.idle_after_s > 0)
        self._record = RecordSync(pauser, self._lot)
        self.log = ParkLog()
        self.orders = ParkOrders(self._held, self._lot, self.log, pauser, on_order=self._wake_up.set)
        self._transfers = Transfers(
            Moves(pauser), self._held, self._lot, self._rooms, self.log, host, part_with, on_end=self._wake_up.set
        )
        # The requests for leases whose room is expected, and when.
        self._expected_s: Mapping[str, float] = {}
        # That of the last step; None: nothing waited then.
        self._before: ParkSituation | None = None
        self._running: asyncio.Task[None] | None = None
        self._stopping = False

    def start(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Waits for a move under way, up to a limit. What is parked stays in the record for the next start."""
        self._stopping = True
        if self._transfers.under_way and self._pauser.has_record:
            log.info("parking: waiting for %d moves of GPU memory", self._transfers.under_way)
            await self._transfers.wait(_STOP_WITHIN_S)
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
        left = sum(spot.stage is not ParkStage.STRANDED for spot in self._lot)
        if left and self._pauser.has_record:
            log.warning("parking: %d programs stay parked until the next start; or run: gpucommons resume --all", left)

    # Input

    def without_parked(self, reading: ProgramReading) -> ProgramReading:
        """The reading without the processes that are parked or on their way: they take no turns."""
        return self._lot.without_parked(reading)

    def see(
        self,
        programs: Iterable[Program],
        exempt: Sequence[Exemption],
        paused: AbstractSet[str],
        in_turns: AbstractSet[str],
        as_of_s: float,
    ) -> None:
        """One reading: programs that take part and that do not, the keys of those that are paused, or take turns."""
        self._held.see(programs, exempt, paused, in_turns, self._lot.processes, as_of_s)

    # Output

    def reading(self) -> ParkingReading:
        now = monotonic()
        return ParkingReading(
            self._terms.idle_after_s,
            self._terms.eager,
            self._pauser.reason,
            tuple(spot.reading(now) for spot in self._lot),
            tuple(self.log.events),
            self.log.parks,
            self.log.wakes,
            dict(self.log.refusals),
            {id: time.time() + at_s - now for id, at_s in self._expected_s.items()},
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
        if self._record.is_due:
            await self._record.sync()
        self._lot.forget_ended()
        await self._looks.look()
        if not self._has_work():
            self._expected_s, self._before = {}, None
            return
        # Before the rooms: what a lease takes in between is counted twice, never not at all.
        claims, since_s = self._claims(), monotonic()
        rooms = await self._rooms.read(self._devices(), since_s)
        if self._stopping:
            return
        self._before = situation = self._situation(rooms, claims)
        self._carry_out(plan(self._terms, situation))
        self._expect(expected_rooms(self._terms, situation))

    def _has_work(self) -> bool:
        if any(held.asked for held in self._held) or any(spot.wakes_since_s is not None for spot in self._lot):
            return True
        now = monotonic()
        idle = any(self._held.is_idle(held, now) for held in self._held)
        return (idle and self._terms.eager) or ((idle or self._terms.oversubscribe) and bool(self._claims().needs))

    def _devices(self) -> AbstractSet[str]:
        return self._lot.devices | {device for held in self._held for device in held.program.devices}

    def _situation(self, rooms: Mapping[str, DeviceRoom], claims: RoomClaims) -> ParkSituation:
        now = monotonic()
        held = self._held.planned(self._lot.keys, now)
        spots = [spot.planned(now) for spot in self._lot]
        found = ParkSituation((*held, *spots), rooms, self._host.host_memory(), claims, now)
        return replace(found, attained_s=attained_seconds(self._before, found))

    def _carry_out(self, found: ParkPlan) -> None:
        for key, refusal in found.refused.items():
            refused = self._held[key]
            refused.asked = False
            self.log.refused_program(refused.program, refusal)
        for key, sentence in found.waits.items():
            self._lot[key].waits = sentence
        for spot in self._lot:
            if spot.stage is not ParkStage.WAKING:
                spot.comes_after = found.claims.get(spot.key)
        for key in found.wake:
            self._transfers.wake(self._lot[key])
        for key in found.park:
            self._transfers.park(self._spot_for(self._held.pop(key), found.made_for.get(key, "")))

    def _expect(self, rooms_s: Mapping[str, float]) -> None:
        for spot in self._lot:
            if spot.stage is ParkStage.PARKED:
                spot.expected_s = rooms_s.get(spot.key)
        self._expected_s = {id: at_s for id, at_s in rooms_s.items() if id not in self._lot.keys}

    def _spot_for(self, parting: HeldProgram, made_for: str) -> Spot:
        is_idle = self._held.is_idle(parting, monotonic())
        cause = ASKED if parting.asked else IDLE if is_idle else TURN
        # An idle program has been quiet for long: its next use of the CPU counts, however soon it comes.
        cpu = ParkedCpu(parting.idleness.background, quiet_since_s=-NEVER_S if cause == IDLE else None)
        spot = spot_of(parting.program, cause, cpu, monotonic(), time.time(), self._host)
        spot.waited_in = parting.waits_in if cause == IDLE else None
        spot.made_for = made_for
        return spot
