"""The life of a source that listens in the background: follow, fail, wait, follow again, until cancelled."""

import asyncio
from collections.abc import Awaitable, Callable

from gpucommons.base.backoff import Backoff


async def keep_following(
    follow: Callable[[], Awaitable[None]], on_failure: Callable[[Exception], None], backoff: Backoff
) -> None:
    """Whatever ends `follow` is handed to `on_failure`; `follow` resets the back-off when all is well."""
    while True:
        try:
            await follow()
        except Exception as error:
            # A task group that is cancelled just as it fails tells of the failure alone (before Python 3.13).
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise asyncio.CancelledError from error
            on_failure(error)
        await asyncio.sleep(backoff.next_s())
