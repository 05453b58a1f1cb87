"""One plain program as a client: carries out what the policy sends it, with the pauser. It decides nothing.

The policy's LOCK_OK resumes the program, DROP_LOCK pauses it. Both take time, and the policy may change its mind
meanwhile: one task at a time brings the program to the state that was requested last.
"""

import asyncio
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Final

from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser.backend import Code
from gpucommons.pauser.client import LOCK_TIMEOUT_MS, LONGER, MOST_LONGER, Pauser
from gpucommons.scheduler.policy.state import Action, Client
from gpucommons.scheduler.protocol.wire import MessageType
from gpucommons.scheduler.service.turn_loop import TurnLoop

# A program that could not be paused runs for so long before the next attempt. What time it needed is kept for the next
# turns: an attempt that fails lets it run on while others wait.
_AGAIN_S: Final = 0.25


class ProgramPeer:
    """`processes` are those of the program, each with the device that it is on."""

    lock_ok: Final = b""
    closing: Final = ""

    def __init__(self, turns: TurnLoop, pauser: Pauser, client: Client) -> None:
        self.client = client
        self.processes: Mapping[ProcessKey, str] = {}
        self._turns = turns
        self._pauser = pauser
        self._pause = False
        self._failures = 0
        self._locked: dict[ProcessKey, str] = {}
        self._task: asyncio.Task[None] | None = None

    # The policy's messages

    def write(self, frame: bytes) -> None:
        """LOCK_OK, the only message that is written without `send`."""
        self._request(pause=False)

    def send(self, message: MessageType, value: int) -> None:
        if message is MessageType.DROP_LOCK:
            self._request(pause=True)
        elif message is MessageType.SCHED_OFF:
            self._request(pause=False)

    def close(self, reason: str) -> None:
        """A program has no connection that could be closed."""

    # The server's

    def run_freely(self) -> None:
        """It no longer takes part."""
        self._request(pause=False)

    def set_processes(self, processes: Mapping[ProcessKey, str]) -> None:
        """A process that began while the program is paused is paused, too."""
        if processes != self.processes:
            self.processes = dict(processes)
            if self._pause:
                self._request(pause=True)

    def resumed(self, process: ProcessKey) -> None:
        """The pauser resumed it on its own: it was paused for too long."""
        if self._locked.pop(process, None) is None:
            return
        self._request(pause=False)
        now = monotonic()
        rest_s = self._pauser.max_pause_s
        self._turns.apply(self._turns.policy.resumed(self.client, now + rest_s, now), now)

    def forget(self) -> None:
        """The pauser has ended: the next one resumes what this one had paused."""
        self._locked.clear()
        self._pause = False

    async def settle(self) -> None:
        while self._task is not None:
            await asyncio.wait({self._task})

    def _request(self, *, pause: bool) -> None:
        self._pause = pause
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._bring_about())
            self._task.add_done_callback(asyncio.Task.result)

    async def _bring_about(self) -> None:
        try:
            while not await self._try():
                pass
        finally:
            # Here, and not in a callback of the task: a request that came before the callback would be lost.
            self._task = None

    async def _try(self) -> bool:
        """Whether the program is in the state that was requested last."""
        pause = self._pause
        if pause:
            await self._lock_all()
        else:
            await self._unlock_all()
        return pause == self._pause and (self._locked.keys() >= self.processes.keys() if pause else not self._locked)

    async def _lock_all(self) -> None:
        running = {process: lane for process, lane in self.processes.items() if process not in self._locked}
        timeout_ms = LOCK_TIMEOUT_MS * LONGER**self._failures
        begun_s = monotonic()
        codes = await asyncio.gather(*(self._lock_one(*place, timeout_ms) for place in running.items()))
        if not self._pause:
            return
        now = monotonic()
        if any(code is not None for code in codes):
            self._pause = False
            self._failures = min(self._failures + 1, MOST_LONGER)
            await self._unlock_all()
            now = monotonic()
            actions: Sequence[Action] = self._turns.policy.not_paused(self.client, now + _AGAIN_S, now)
        else:
            if now - begun_s < timeout_ms / 1000 / LONGER:
                self._failures = max(0, self._failures - 1)
            actions = self._turns.policy.paused(self.client, now)
        self._turns.apply(actions, now)

    async def _lock_one(self, process: ProcessKey, lane: str, timeout_ms: int) -> int | None:
        reply = await self._pauser.lock(process, lane=lane, timeout_ms=timeout_ms, gpu=lane)
        if reply.failure is None or reply.failure.code == Code.GONE:
            self._locked[process] = lane
            return None
        return reply.failure.code

    async def _unlock_all(self) -> None:
        await asyncio.gather(*(self._pauser.resume(self._locked, process) for process in tuple(self._locked)))
