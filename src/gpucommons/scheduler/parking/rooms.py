"""The free memory of GPUs for the planner: read in another thread, and dropped where a move has changed it since."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from time import monotonic
from typing import Final

from gpucommons.parking.values import DeviceRoom
from gpucommons.scheduler.parking.held import NEVER_S

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
