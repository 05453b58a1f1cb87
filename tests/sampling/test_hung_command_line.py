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
from gpucommons.sources.host.process_details import CommandReader, ProcessDetailsReader
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


def test_without_processes_no_thread_is_woken_for_command_lines(tmp_path: Path) -> None:
    pids: tuple[list[int], ...] = ([], [KEY.pid], [], [], [])
    shown = iter(pids)
    world = ProcessSources(ProcessDetailsReader(tmp_path), HOST, LabNames(), CommandReader(tmp_path))
    add_process(tmp_path, KEY.pid)
    sources, stage = with_attribution(
        [
            Source(
                "nvml",
                "gpus",
                GpuReading,
                lambda: reading(gpu(0, [gpu_process(pid, 1) for pid in next(shown)])),
                runs_on="loop",
            )
        ],
        world,
    )
    read_on: list[str] = []
    commands = sources[1]

    def read() -> object:
        read_on.append(threading.current_thread().name)
        return commands.read()

    async def read_all() -> list[Snapshot]:
        now_s = [1000.0]
        threaded = commands._replace(read=read, runs_on="thread")
        sampler = Sampler(
            [sources[0], threaded], interval_s=1.0, hostname="h", derive=stage, monotonic=lambda: now_s[0]
        )
        snapshots = []
        for _ in pids:
            snapshots.append(await sampler.tick(settle_s=5.0))
            now_s[0] += 1.0
        sampler.close()
        return snapshots

    first, second, *_, last = asyncio.run(read_all())
    assert first.sources["command_lines"].up
    # A process that has gone is kept for one reading more, and what is known of it is dropped on the thread.
    assert read_on == ["source-command_lines"] * 3
    assert second.readings.command_lines is not None
    assert KEY in second.readings.command_lines.by_key
    assert last.readings.command_lines is not None
    assert last.readings.command_lines.by_key == {}
