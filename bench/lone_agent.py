"""The agent without its command line, for benchmarks on machines that have neither typer nor textual.

python -m bench.lone_agent CONFIG    Until SIGTERM. Its log goes to stderr.
"""

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

import uvloop

from gpucommons.agent.agent import Agent
from gpucommons.config.load import load


async def serve(agent: Agent) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await agent.bind()
    await agent.begin()
    logging.getLogger(__name__).info("ready")
    await stop.wait()
    await agent.stop()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    uvloop.run(serve(Agent(load(Path(sys.argv[1]), os.environ, {}).settings)))
