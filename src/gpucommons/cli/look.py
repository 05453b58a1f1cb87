"""One sample of this node without an agent that runs: for the commands that print what there is now."""

import asyncio
from dataclasses import replace
from pathlib import Path

from gpucommons.agent.agent import Agent
from gpucommons.cli.options import load_settings, scenario_named
from gpucommons.config.settings import SamplingSettings
from gpucommons.model.snapshot import Snapshot

# Rates take two readings; the second comes this long after the first. A source that is slower is left out.
_BETWEEN_S = 1.0
_SETTLE_S = 0.8


def look(config: Path | None, simulate: str | None, procfs: str | None) -> tuple[Agent, Snapshot]:
    """Takes under 3 seconds, whatever hangs. The agent is handed over for its exposition; it has stopped."""
    settings = load_settings(config, {"path.procfs": ("--path.procfs", procfs)}).settings
    # However seldom the agent samples by its settings, a command must see two readings now.
    agent = Agent(replace(settings, sampling=SamplingSettings()), scenario_named(simulate))
    return agent, asyncio.run(_two_ticks(agent))


async def _two_ticks(agent: Agent) -> Snapshot:
    tasks = agent.start_background()
    try:
        await agent.sampler.tick(_SETTLE_S)
        await asyncio.sleep(_BETWEEN_S)
        return await agent.sampler.tick(_SETTLE_S)
    finally:
        agent.sampler.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
