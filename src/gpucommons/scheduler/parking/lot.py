"""The programs that are parked, or on their way to host memory or back, by key. Plain state without decisions."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace

from gpucommons.model.process_identity import ProcessKey
from gpucommons.parking.values import ParkStage
from gpucommons.scheduler.parking.park_host import THIS_HOST, ParkHost
from gpucommons.scheduler.parking.spot import Spot
from gpucommons.scheduler.programs.jobs import ProgramReading


class Lot:
    def __init__(self, host: ParkHost = THIS_HOST) -> None:
        self._host = host
        self._spots: dict[str, Spot] = {}

    def __iter__(self) -> Iterator[Spot]:
        return iter(self._spots.values())

    def __getitem__(self, key: str) -> Spot:
        return self._spots[key]

    def get(self, key: str) -> Spot | None:
        return self._spots.get(key)

    def add(self, spot: Spot) -> None:
        self._spots[spot.key] = spot

    def remove(self, spot: Spot) -> None:
        del self._spots[spot.key]

    @property
    def keys(self) -> AbstractSet[str]:
        return self._spots.keys()

    @property
    def processes(self) -> AbstractSet[ProcessKey]:
        return {process for spot in self for process in spot.places}

    @property
    def devices(self) -> AbstractSet[str]:
        return {device for spot in self for device in spot.memory}

    def without_parked(self, reading: ProgramReading) -> ProgramReading:
        """The reading without the processes of these programs. What it says of their memory is kept here."""
        parked = self.processes
        if not parked:
            return reading
        for spot in self:
            found = [one for one in reading.processes if one.key in spot.places]
            amounts = [use.memory_bytes for one in found for use in one.uses]
            spot.nvml_bytes = None if None in amounts else sum(amount or 0 for amount in amounts)
        return replace(reading, processes=tuple(one for one in reading.processes if one.key not in parked))

    def forget_ended(self) -> None:
        """A parked program that is killed frees everything; the pauser removes it from the record."""
        for spot in list(self):
            if spot.stage in (ParkStage.PARKED, ParkStage.STRANDED) and not spot.unsure:
                spot.keep({process for process in spot.places if not self._host.has_ended(process)})
                if not spot.places:
                    self.remove(spot)
