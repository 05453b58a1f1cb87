"""`python tests/many_agents.py CONFIG...`: one agent per settings file, all in one process, each playing scenario lab.

For tests that need many agents: a process for each would take most of its time to import.
"""

import asyncio
import sys
from pathlib import Path

import uvloop

from gpucommons.agent.agent import Agent
from gpucommons.agent.setting_rules import find_scenario
from gpucommons.cli import logs
from gpucommons.config.load import load


async def serve(agents: list[Agent]) -> None:
    for agent in agents:
        await agent.bind()
        await agent.begin()
    await asyncio.Event().wait()


if __name__ == "__main__":
    logs.configure("human", "info")
    uvloop.run(serve([Agent(load(Path(file), {}, {}).settings, find_scenario("lab")) for file in sys.argv[1:]]))
