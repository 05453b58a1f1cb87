"""The scheduler's server in a process without the rest of the agent, for benchmarks.

python -m bench.lone_scheduler SOCKET MODE
"""

import asyncio
import sys

import uvloop

from gpucommons.scheduler.policy.settings import Mode, PolicySettings
from gpucommons.scheduler.service.server import SchedulerServer


async def serve(path: str, mode: Mode) -> None:
    server = SchedulerServer(PolicySettings(socket_path=path, mode=mode))
    await server.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], Mode(sys.argv[2])))
