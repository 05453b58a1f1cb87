"""A process whose command line cannot be read, because it is stuck in the driver, costs its command line alone."""

import asyncio
import threading
from itertools import count
from pathlib import Path

from attribution.builders import HOST, gpu, gpu_process, reading
from attribution.procfs_tree import add_process
from gpucommons.agent.sampler import Sampler
from gpucommons.agent.sources import with_attribution
from gpucommons.model.gpu import GpuReading
from gpucommons.model.process_identity import ProcessContext, ProcessKey
from gpucommons.model.snapshot import Snapshot
from gpucommons.owners.attribution_stage import ProcessSources
from gpucommons.simulation.lab_people import LabNames
from gpucommons.sources.host.process_details import ProcessDetailsReader
from gpucommons.sources.source import Source

KEY = ProcessKey(7, 100)


class StuckCommands:
    def __init__(self) -> None:
        self.begun, self.released = threading.Event(), threading.Event()

    def name(self, pid: int) -> str | None:
        return "python"

    def command_line(self, key: ProcessKey) -> tuple[str, ...]:
        self.begun.set()
        self.released.wait()
        return ("python", "train.py")


def test_the_gpus_are_read_while_a_command_line_hangs(tmp_path: Path) -> None:
    add_process(tmp_path, KEY.pid)
    stuck = StuckCommands()
    world = ProcessSources(ProcessDetailsReader(tmp_path), HOST, LabNames(), stuck)
    readings = (reading(gpu(0, [gpu_process(KEY.pid, memory)])) for memory in count(1))
    sources, stage = with_attribution(
        [Source("nvml", "gpus", GpuReading, lambda: next(readings), cadence_s=0.02)], world
    )

    async def two_readings_later() -> Snapshot:
        sampler = Sampler(sources, interval_s=0.02, hostname="here", derive=stage)
        try:
            snapshot = await sampler.tick()
            while not stuck.begun.is_set():
                snapshot = await sampler.tick()
                await asyncio.sleep(0.02)
            seen = [snapshot.readings.gpus]
            while len(seen) < 3:
                snapshot = await sampler.tick()
                if snapshot.readings.gpus is not seen[-1]:
                    seen.append(snapshot.readings.gpus)
                await asyncio.sleep(0.02)
            return snapshot
        finally:
            stuck.released.set()
            sampler.close()

    snapshot = asyncio.run(two_readings_later())
    assert snapshot.readings.gpus is not None
    assert snapshot.readings.attribution is not None
    assert snapshot.readings.process_contexts == {KEY: ProcessContext(session_id=1)}
