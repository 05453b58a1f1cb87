"""Moves the GPU memory of a program to host memory and back, with the pauser. It decides nothing.

A program may have several processes: all of them are locked before any is moved. They are then moved at once, because a
locked process is resumed after the longest pause.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser.backend import Code, Failure, State
from gpucommons.pauser.client import Pauser
from gpucommons.pauser.protocol import Reply

MAX_PROCESSES: Final = 8
# An idle program has no work submitted; one that its owner parks may have much.
_LOCK_TIMEOUT_MS: Final = 5000
# The pauser has ended or does not answer: what it did is known once the next one has started.
_UNSURE: Final = frozenset({Code.UNAVAILABLE, Code.DEADLINE, Code.NOT_PAUSED, Code.BUSY})


class ProcessMemory(NamedTuple):
    """Where a process of a program is, and how much memory it holds there."""

    device: str
    bytes: int


Places = Mapping[ProcessKey, ProcessMemory]


@dataclass(slots=True)
class Moved:
    """What came of a move. `parked` are the processes whose memory is in host memory now.

    `unsure`: the pauser ended meanwhile. `stranded`: the driver gave up a process. `locked`: all could be locked.
    """

    parked: set[ProcessKey] = field(default_factory=set)
    failure: Failure | None = None
    unsure: bool = False
    stranded: bool = False
    locked: bool = True


class ProgramMover:
    def __init__(self, pauser: Pauser) -> None:
        self._pauser = pauser

    async def park(self, places: Places) -> Moved:
        locks = await asyncio.gather(
            *(
                self._pauser.lock(process, timeout_ms=_LOCK_TIMEOUT_MS, gpu=place.device)
                for process, place in places.items()
            )
        )
        moved = Moved()
        locked = [process for process, reply in zip(places, locks, strict=True) if reply.failure is None]
        failures = [reply.failure for reply in locks if reply.failure is not None]
        if failures:
            moved.failure, moved.locked = failures[0], False
            moved.unsure = failures[0].code in (Code.UNAVAILABLE, Code.DEADLINE)
            await asyncio.gather(*(self._pauser.unlock(process) for process in locked))
            return moved
        replies = await asyncio.gather(
            *(self._pauser.checkpoint(process, memory_bytes=place.bytes) for process, place in places.items())
        )
        for process, reply in zip(places, replies, strict=True):
            await self._settle(process, reply, moved, wakes=False)
        return moved

    async def wake(self, places: Places) -> Moved:
        """One after another: the caller has made sure of the room for all of them."""
        moved = Moved()
        left = dict(places)
        while left and moved.failure is None:
            process, _ = left.popitem()
            await self._settle(process, await self._pauser.restore(process), moved, wakes=True)
        moved.parked |= left.keys()
        if not moved.unsure:
            back = [process for process in places if process not in moved.parked]
            await asyncio.gather(*(self._pauser.unlock(process) for process in back))
        return moved

    async def _settle(self, process: ProcessKey, reply: Reply, moved: Moved, *, wakes: bool) -> None:
        """Takes in the outcome for one process. After a failure the driver says where its memory is."""
        if reply.failure is None:
            if not wakes:
                moved.parked.add(process)
            return
        if reply.failure.code == Code.GONE:
            return
        moved.failure = reply.failure
        if reply.failure.code in _UNSURE:
            moved.unsure = True
            return
        if reply.failure.code == Code.STOPPED and wakes:
            # No call was made: it is where it was.
            moved.parked.add(process)
            return
        state = (await self._pauser.state(process)).state
        if state is State.CHECKPOINTED:
            moved.parked.add(process)
        elif state is State.FAILED:
            moved.stranded = True
        elif not wakes:
            await self._pauser.unlock(process)
