"""The scheduler's server in a process without the rest of the agent, for benchmarks.

python -m bench.lone_scheduler SOCKET MODE
"""

import asyncio
import sys

import uvloop

from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.scheduler.service.server import SchedulerServer


async def serve(path: str, mode: str) -> None:
    server = SchedulerServer(SchedulerSettings(socket=path, xpushare_socket="", mode=mode))
    await server.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], sys.argv[2]))
