"""`python tests/demo_agent.py [PORT]`: a real agent that simulates the demo node."""

import argparse
import asyncio
import logging
import time
from dataclasses import replace

import uvloop

from demo_node import DemoNode
from gpucommons.agent.agent import Agent
from gpucommons.cli import logs
from gpucommons.config.accounts import LeasesSettings, LedgerSettings
from gpucommons.config.settings import PrivacySettings, SamplingSettings, Settings, WebSettings


async def serve(agent: Agent) -> None:
    await agent.bind()
    logging.getLogger(__name__).info("page    %s/", agent.web.addresses[0].url)
    await agent.begin()
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", default="127.0.0.1:0")
    parser.add_argument("--socket", default="")
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--hostile", action="store_true")
    parser.add_argument("--lost", type=int)
    parser.add_argument("--hot", type=int)
    parser.add_argument("--show-owners", default="auto")
    given = parser.parse_args()
    logs.configure("human", "info")
    settings = replace(
        Settings(),
        web=WebSettings(listen=given.listen, socket=given.socket),
        sampling=SamplingSettings(interval_s=given.interval),
        privacy=PrivacySettings(show_owners=given.show_owners),
        # The demo node brings its own accounts and leases.
        ledger=LedgerSettings(enabled=False),
        leases=LeasesSettings(enabled="false"),
    )
    node = DemoNode(given.gpus, given.processes, given.hostile, given.lost, given.hot, time.time())
    uvloop.run(serve(Agent(settings, node.scenario())))


if __name__ == "__main__":
    main()
