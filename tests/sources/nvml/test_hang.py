"""A driver call that hangs affects only the GPU readings, and does not keep the agent from exiting."""

import asyncio
from collections.abc import Callable

import pytest

from fakes.nvml.rig import Rig
from gpucommons.agent.sampler import Sampler
from gpucommons.model.gpu import GpuReading
from gpucommons.model.snapshot import Snapshot
from gpucommons.sources.source import Source
from parsing import Series, parsed
from running import RunningAgent, running_agent
from waiting import until

INTERVAL_S = 0.05
NVML_UP = ("gpucommons_source_up", (("source", "nvml"),))


async def tick_until(sampler: Sampler, condition: Callable[[Snapshot], bool]) -> None:
    for _ in range(200):
        if condition(await sampler.tick()):
            return
        await asyncio.sleep(INTERVAL_S)
    raise AssertionError("the condition was not met")


def test_the_readings_are_missing_while_a_call_hangs(rig: Rig) -> None:
    rig.clock.runs = True

    async def scenario() -> None:
        source = Source("nvml", "gpus", GpuReading, rig.source.read, INTERVAL_S, 2.5 * INTERVAL_S)
        sampler = Sampler([source], interval_s=INTERVAL_S, hostname="host")
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


def wait_for(agent: RunningAgent, condition: Callable[[Series], bool], within_s: float) -> Series:
    def served() -> Series | None:
        series = parsed(agent.get("/metrics")[1])
        return series if condition(series) else None

    return until(served, within_s=within_s)


@pytest.mark.long
def test_the_agent_keeps_running_while_the_driver_hangs_and_exits_on_sigterm(rig: Rig) -> None:
    """Readings are served, missing while a call hangs, back afterwards; SIGTERM works during a hang."""
    rig.fake.say("gpus 2")
    with running_agent(environment=rig.fake.environment()) as agent:
        served = wait_for(agent, lambda s: s.get(NVML_UP) == 1, 20)
        assert served[("nvshare_nvml_up", ())] == 1
        assert served[("gpucommons_gpus_present", ())] == 2

        rig.fake.say("hang nvmlDeviceGetTemperature")
        hung = wait_for(agent, lambda s: s[NVML_UP] == 0, 20)
        assert hung[("nvshare_nvml_up", ())] == 0
        assert not [name for name, _ in hung if name.startswith(("DCGM_FI_", "nvshare_gpu", "gpu_", "gpucommons_gpu"))]
        assert hung[("gpucommons_source_failures_total", (("reason", "timeout"), ("source", "nvml")))] == 1
        first = hung[("gpucommons_snapshots_total", ())]
        wait_for(agent, lambda s: s[("gpucommons_snapshots_total", ())] > first, 20)
        assert ("node_memory_total_bytes", ()) in hung
        assert agent.get("/healthz")[0] == 200

        rig.fake.unsay("hang")
        back = wait_for(agent, lambda s: s[NVML_UP] == 1, 20)
        assert back[("gpucommons_gpus_present", ())] == 2

        rig.fake.say("hang nvmlDeviceGetTemperature")
        wait_for(agent, lambda s: s[NVML_UP] == 0, 20)
        assert agent.stop() == 0
        logged = [line for line in agent.lines if "source nvml:" in line]
        assert len(logged) == 3, logged
