"""Keeps background tasks running: one that fails is said and started again, ever less eagerly."""

import asyncio
import logging

from gpucommons.agent.parts import Background
from gpucommons.base.backoff import Backoff

log = logging.getLogger(__name__)


async def supervised(background: Background) -> None:
    backoff = Backoff()
    while True:
        try:
            await background.run()
        except Exception:
            log.exception("background task %s failed; it is started again", background.name)
        await asyncio.sleep(backoff.next_s())
