"""What is left of earlier agents and pausers: the lot is compared with the pauser's record, which outlives both.

What an earlier agent left parked is to be brought back; what a pauser was doing when it ended becomes known.
"""

import logging
import time
from collections.abc import Set as AbstractSet
from time import monotonic

from gpucommons.model.process_identity import ProcessKey
from gpucommons.parking.values import ParkStage
from gpucommons.pauser.backend import Failure
from gpucommons.pauser.client import Pauser
from gpucommons.pauser.record import Stage
from gpucommons.scheduler.parking.lot import Lot
from gpucommons.scheduler.parking.spot import Spot, left_spot

log = logging.getLogger(__name__)


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
