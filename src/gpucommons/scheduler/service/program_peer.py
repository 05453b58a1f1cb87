"""One plain program as a client: carries out what the policy sends it, with the pauser. It decides nothing.

The policy's LOCK_OK resumes the program, DROP_LOCK pauses it. Both take time, and the policy may change its mind
meanwhile: one task at a time brings the program to the state that was requested last. Whatever takes longer than
`HANGS_AFTER_S` is reported to the policy, so that no other program waits for it. A program that its user has stopped,
or for which a call of the driver hangs, takes no turns until the pauser reports that it goes on.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from time import monotonic
from typing import Final, NamedTuple

from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser.backend import Code
from gpucommons.pauser.client import LOCK_TIMEOUT_MS, LONGER, MOST_LONGER, Pauser
from gpucommons.pauser.protocol import Notice, NoticeKind, Reply
from gpucommons.scheduler.policy.state import Action, Client
from gpucommons.scheduler.protocol.wire import MessageType
from gpucommons.scheduler.service.turn_loop import TurnLoop

# A program that could not be paused runs for so long before the next attempt. What time it needed is kept for the next
# turns: an attempt that fails lets it run on while others wait.
_AGAIN_S: Final = 0.25
# Whatever takes longer than this keeps no other program waiting.
HANGS_AFTER_S: Final = 0.3


class HeldUp(NamedTuple):
    """Why a program takes no turns for a while, in words: its user has stopped it, or a call for it hangs."""

    is_stopped: bool
    sentence: str


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
        self._locked: set[ProcessKey] = set()
        self._held_up: dict[ProcessKey, HeldUp] = {}
        # The present task has taken long; that, or a call that hangs, is known to the policy.
        self._is_slow = False
        self._hangs = False
        self._task: asyncio.Task[None] | None = None
        self._requests: set[asyncio.Task[Reply]] = set()

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
            before, self.processes = self.processes, dict(processes)
            for process in self.processes.keys() - before.keys():
                self._ask(self._pauser.watch(process))
            for process in before.keys() - self.processes.keys():
                self._ask(self._pauser.unwatch(process))
                self._held_up.pop(process, None)
            self._report_hang()
            if self._pause:
                self._request(pause=True)

    def leave(self) -> None:
        """It no longer takes part, and runs freely. The policy is about to forget it."""
        self.run_freely()
        for process in self.processes:
            self._ask(self._pauser.unwatch(process))

    @property
    def held_up(self) -> HeldUp | None:
        """What its processes are held up by: one that is stopped counts first."""
        return max(self._held_up.values(), default=None)

    def hear(self, notice: Notice) -> None:
        """What the pauser reports of one of its processes."""
        process = notice.process
        if notice.kind is NoticeKind.RESUMED:
            self._resumed(process)
            return
        if notice.kind is NoticeKind.GOES_ON:
            self._held_up.pop(process, None)
        else:
            self._held_up[process] = HeldUp(notice.kind is NoticeKind.STOPPED, notice.reason)
            # The pauser resumes it as soon as that is possible.
            self._locked.discard(process)
            self._request(pause=False)
            now = monotonic()
            self._turns.apply(self._turns.policy.withdraw(self.client, now), now)
        self._report_hang()

    def _report_hang(self) -> None:
        """The policy hears whether others must not wait for this program."""
        hangs = self._is_slow or any(not one.is_stopped for one in self._held_up.values())
        if hangs == self._hangs:
            return
        self._hangs = hangs
        now = monotonic()
        policy = self._turns.policy
        self._turns.apply((policy.hang if hangs else policy.returned)(self.client, now), now)

    def _resumed(self, process: ProcessKey) -> None:
        """The pauser resumed it on its own: it was paused for too long."""
        if process not in self._locked:
            return
        self._locked.discard(process)
        self._request(pause=False)
        now = monotonic()
        rest_s = self._pauser.max_pause_s
        self._turns.apply(self._turns.policy.resumed(self.client, now + rest_s, now), now)

    def forget(self) -> None:
        """The pauser has ended: the next one resumes what this one had paused, if its watchdog has not."""
        self._locked.clear()
        self._held_up.clear()
        self._pause = False

    async def settle(self) -> None:
        while self._task is not None:
            await asyncio.wait({self._task})

    def _ask(self, request: Coroutine[None, None, Reply]) -> None:
        """Of its answer nothing depends: a pauser that is lost has no programs to watch."""
        task = asyncio.get_running_loop().create_task(request)
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

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
        timer = asyncio.get_running_loop().call_later(HANGS_AFTER_S, self._takes_long)
        try:
            if pause:
                await self._lock_all()
            else:
                await self._unlock_all()
        finally:
            timer.cancel()
            self._is_slow = False
            self._report_hang()
        return pause == self._pause and (self._locked >= self.processes.keys() if pause else not self._locked)

    def _takes_long(self) -> None:
        self._is_slow = True
        self._report_hang()

    async def _lock_all(self) -> None:
        running = {process: device for process, device in self.processes.items() if process not in self._locked}
        timeout_ms = LOCK_TIMEOUT_MS * LONGER**self._failures
        begun_s = monotonic()
        codes = await asyncio.gather(*(self._lock_one(*place, timeout_ms) for place in running.items()))
        if not self._pause:
            # The policy has changed its mind, or the program is held up and has left the turns.
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

    async def _lock_one(self, process: ProcessKey, device: str, timeout_ms: int) -> int | None:
        reply = await self._pauser.lock(process, timeout_ms=timeout_ms, gpu=device)
        if reply.failure is None or reply.failure.code == Code.GONE:
            self._locked.add(process)
            return None
        return reply.failure.code

    async def _unlock_all(self) -> None:
        await asyncio.gather(*(self._pauser.resume(self._locked, process) for process in tuple(self._locked)))
