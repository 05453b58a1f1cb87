"""A scenario at one instant: its sources, with the real attribution and allocations."""

from collections.abc import Mapping

from gpucommons.agent.sources import with_attribution
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.owners.attribution_stage import ProcessSources
from gpucommons.owners.holding_stage import AllocationStage
from gpucommons.simulation.scenarios import SCENARIOS


class PlayedLab:
    """`at` reads every source at a number of seconds since the start. The first read is at 0."""

    def __init__(self, name: str = "lab") -> None:
        scenario = SCENARIOS[name]
        self._now_s = 0.0
        self.sources = scenario.sources(1.0, lambda: self._now_s)
        assert scenario.world is not None
        self._sources, self._attribute = with_attribution(self.sources, ProcessSources(*scenario.world))
        self._allocate = AllocationStage(monotonic=lambda: self._now_s)
        self._was_read = False

    def at(self, elapsed_s: float) -> Readings:
        if not self._was_read:
            self._was_read = True
            self._read(0.0)
        return self._read(elapsed_s)

    def _read(self, elapsed_s: float) -> Readings:
        self._now_s = elapsed_s
        fields: Mapping[str, object] = {source.feeds: source.read() for source in self._sources}
        return self._allocate(self._attribute(Readings(**fields)))  # type: ignore[arg-type]

    def snapshot(self, elapsed_s: float) -> Snapshot:
        readings = self.at(elapsed_s)
        assert readings.gpus is not None
        started_wall_s = readings.gpus.gpus[0].since_wall_s
        return Snapshot(1, elapsed_s, started_wall_s + elapsed_s, "lab", "lab", readings)
