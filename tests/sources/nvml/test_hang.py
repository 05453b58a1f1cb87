"""A driver call that hangs costs the GPU readings and nothing else, and does not keep the process alive."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from fakes.nvml.rig import Rig
from gpucommons.model.snapshot import Snapshot
from gpucommons.sampling.sampler import Sampler

INTERVAL_S = 0.05


def sampler_of(rig: Rig) -> Sampler:
    source = rig.source
    source.cadence_s = INTERVAL_S
    source.deadline_s = source.deadline_s * INTERVAL_S
    return Sampler([source], interval_s=INTERVAL_S, hostname="host")


async def tick_until(sampler: Sampler, wanted: Callable[[Snapshot], bool]) -> int:
    """Ticks until a snapshot is as wanted; how many that took."""
    for number in range(1, 200):
        if wanted(await sampler.tick()):
            return number
        await asyncio.sleep(INTERVAL_S)
    raise AssertionError("it never came")


def test_a_hung_call_takes_the_readings_away_and_gives_them_back(rig: Rig) -> None:
    rig.clock.runs = True

    async def scenario() -> None:
        sampler = sampler_of(rig)
        await tick_until(sampler, lambda s: s.readings.gpus is not None)
        rig.fake.say("hang nvmlDeviceGetPowerUsage")
        await tick_until(sampler, lambda s: s.readings.gpus is None)
        snapshot = sampler.latest()
        assert snapshot is not None
        state = snapshot.sources["nvml"]
        assert not state.up
        assert state.failures == {"timeout": 1}
        rig.fake.unsay("hang")
        await tick_until(sampler, lambda s: s.readings.gpus is not None)
        sampler.close()

    asyncio.run(scenario())


HUNG_AGENT = """
import asyncio, signal, sys
from gpucommons.sampling.sampler import Sampler
from gpucommons.sources.nvml.source import NvmlSource

async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    sampler = Sampler([NvmlSource()], interval_s=0.1, hostname="host")
    await sampler.tick()
    print("hung", flush=True)
    await stop.wait()
    sampler.close()

asyncio.run(main())
"""


def test_a_hung_call_does_not_keep_the_process_from_ending(rig: Rig) -> None:
    rig.fake.say("hang nvmlDeviceGetPowerUsage")
    root = Path(__file__).resolve().parents[3]
    environment = {"PYTHONPATH": str(root / "src"), "PATH": "", **rig.fake.environment()}
    process = subprocess.Popen([sys.executable, "-c", HUNG_AGENT], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "hung\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
    finally:
        process.kill()
        process.communicate()
