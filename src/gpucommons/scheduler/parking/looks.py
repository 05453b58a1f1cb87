"""Looks at what programs do on the CPU: whether one that may be idle is, and whether a parked one goes on."""

import asyncio
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Final, NamedTuple

from gpucommons.parking.idleness import after_look
from gpucommons.parking.values import ParkStage
from gpucommons.scheduler.parking.held import HeldProgram, HeldPrograms
from gpucommons.scheduler.parking.lot import Lot
from gpucommons.scheduler.parking.park_host import ParkHost
from gpucommons.scheduler.parking.spot import Spot

_CANDIDATE_LOOK_S: Final = 1.0
_LOOKS_ELSEWHERE: Final = 2


class _Look(NamedTuple):
    """The CPU time of a program, and where it sleeps; None: not known."""

    cpu_s: float | None
    place: tuple[int, ...] | None


class ParkLooks:
    """`parks_idle`: programs are parked when they are idle, so that those on the GPU are looked at as well."""

    def __init__(self, held: HeldPrograms, lot: Lot, host: ParkHost, parks_idle: bool) -> None:
        self._held = held
        self._lot = lot
        self._host = host
        self._parks_idle = parks_idle
        self._looked_s = 0.0

    async def look(self) -> None:
        """At the CPU time of parked programs, and once a second of programs whose GPU is idle.

        A program may have hundreds of threads: they are read in another thread, so that no hand-off waits.
        """
        parked = [spot for spot in self._lot if spot.stage is ParkStage.PARKED and spot.wakes_since_s is None]
        idle = self._idle(monotonic())
        if not parked and not idle:
            return
        pids = {spot.key: spot.pids for spot in parked} | {held.key: held.pids for held in idle}
        looks = await asyncio.to_thread(self._looks, pids)
        now = monotonic()
        for spot in parked:
            if spot.stage is ParkStage.PARKED and self._lot.get(spot.key) is spot:
                look = looks[spot.key]
                spot.cpu, goes_on = after_look(spot.cpu, look.cpu_s, now)
                if goes_on or _went_on(spot, look):
                    spot.go_on(now)
        for before in idle:
            # A reading that came meanwhile may have shown it active, or that it has ended.
            held = self._held.get(before.key)
            if held is not None and held.idleness.gpu_s is not None:
                look = looks[held.key]
                held.look(look.cpu_s, look.place, now)

    def _idle(self, now_s: float) -> Sequence[HeldProgram]:
        if not self._parks_idle or now_s - self._looked_s < _CANDIDATE_LOOK_S:
            return ()
        self._looked_s = now_s
        return [held for held in self._held if held.may_be_idle]

    def _looks(self, pids: Mapping[str, Sequence[int]]) -> Mapping[str, _Look]:
        host = self._host
        return {key: _Look(host.cpu_seconds(several), host.waits_in(several)) for key, several in pids.items()}


def _went_on(spot: Spot, look: _Look) -> bool:
    """Whether it sleeps elsewhere than while it was idle, at two looks in a row: inside a CUDA call.

    This also shows a cell that was run while the memory moved, and one that uses hardly any CPU time.
    """
    if spot.waited_in is None or look.place is None:
        return False
    spot.looks_elsewhere = spot.looks_elsewhere + 1 if look.place != spot.waited_in else 0
    return spot.looks_elsewhere >= _LOOKS_ELSEWHERE
