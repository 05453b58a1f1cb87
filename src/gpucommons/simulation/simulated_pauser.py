"""A pauser for simulated programs: it speaks the pauser's protocol, and pauses entries of a table.

It has no driver, sends no signal, and opens nothing in /proc: a process of this machine that happens to have the pid of
a simulated one is out of its reach.
"""

import asyncio
import os
import random
import socket
from collections.abc import Coroutine
from contextlib import suppress
from typing import Final

from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser.backend import Code, Failure, State, failure
from gpucommons.pauser.protocol import (
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    Hello,
    Notice,
    Operation,
    Paused,
    PauserRequest,
    Reply,
    decode_request,
    encode_message,
)
from gpucommons.pauser.record import Stage
from gpucommons.simulation.shared_load import SharedLoad

# Seconds, as measured on an H200.
_LOCK_S: Final = (0.00045, 0.0008)
_UNLOCK_S: Final = (0.0002, 0.0004)
_SEED: Final = 14
# Simulated programs are not stopped by their users, and use no CPU by which their work could be noticed.
_NOTHING_TO_DO: Final = frozenset(
    {
        Operation.RESUME_ALL,
        Operation.LIST,
        Operation.WATCH,
        Operation.UNWATCH,
        Operation.WATCH_ARRIVALS,
        Operation.GUARD,
        Operation.YIELD_TO,
        Operation.LEAVE_GROUPS,
    }
)


class SimulatedPauser:
    """`connect` returns the agent's end of a connection to a new pauser, on the running loop."""

    def __init__(self, load: SharedLoad, max_pause_s: float) -> None:
        self._load = load
        self._max_pause_s = max_pause_s
        self._dice = random.Random(_SEED)
        self._states: dict[ProcessKey, State] = {}
        self._since_s: dict[ProcessKey, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=theirs, limit=MAX_REQUEST_BYTES)
        self._begin(self._serve(reader, writer))
        return await asyncio.open_unix_connection(sock=ours, limit=MAX_REPLY_BYTES)

    def _begin(self, work: "Coroutine[None, None, None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode_message(Hello(os.getpid(), "simulated", self._max_pause_s)))
        with suppress(ConnectionError):
            while line := await reader.readline():
                self._begin(self._answer(decode_request(line.rstrip(b"\n")), writer))
        # The agent has ended the connection: everything runs again, as with the real pauser.
        self._resume_all()
        writer.close()

    async def _answer(self, request: PauserRequest, writer: asyncio.StreamWriter) -> None:
        begun_s = asyncio.get_running_loop().time()
        failed = await self._carry_out(request, writer)
        if writer.is_closing():
            return
        paused = self._list_paused() if request.operation is Operation.LIST else ()
        state = self._state(request.process) if request.operation is Operation.STATE else None
        duration_s = asyncio.get_running_loop().time() - begun_s
        writer.write(encode_message(Reply(request.number, failed, duration_s, state, paused)))

    async def _carry_out(self, request: PauserRequest, writer: asyncio.StreamWriter) -> Failure | None:
        process, operation = request.process, request.operation
        if operation is Operation.RESUME_ALL:
            self._resume_all()
        # No user stops a simulated program: there is nothing to watch.
        if operation in _NOTHING_TO_DO:
            return None
        if self._load.job(process) is None:
            self._states.pop(process, None)
            return failure(Code.GONE)
        match operation:
            case Operation.LOCK:
                return await self._lock(process, writer)
            case Operation.UNLOCK:
                return await self._unlock(process)
            case Operation.CHECKPOINT:
                return await self._move(process, State.LOCKED, State.CHECKPOINTED)
            case Operation.RESTORE:
                return await self._move(process, State.CHECKPOINTED, State.LOCKED)
        return None

    def _state(self, process: ProcessKey) -> State:
        return self._states.get(process, State.RUNNING)

    def _set(self, process: ProcessKey, state: State) -> None:
        self._since_s[process] = asyncio.get_running_loop().time()
        self._states[process] = state

    async def _lock(self, process: ProcessKey, writer: asyncio.StreamWriter) -> Failure | None:
        if self._state(process) is not State.RUNNING:
            return failure(Code.WRONG_STATE)
        await asyncio.sleep(self._dice.uniform(*_LOCK_S))
        self._load.pause(process, True)
        self._set(process, State.LOCKED)
        since_s = self._since_s[process]
        asyncio.get_running_loop().call_later(self._max_pause_s, self._overdue, process, since_s, writer)
        return None

    async def _unlock(self, process: ProcessKey) -> Failure | None:
        if self._state(process) is not State.LOCKED:
            return failure(Code.NOT_PAUSED)
        await asyncio.sleep(self._dice.uniform(*_UNLOCK_S))
        self._resume(process)
        return None

    async def _move(self, process: ProcessKey, before: State, after: State) -> Failure | None:
        if self._state(process) is not before:
            return failure(Code.WRONG_STATE)
        # From now on the longest pause does not count: memory that moves cannot be stopped.
        self._set(process, State.CHECKPOINTED)
        await asyncio.sleep(self._load.begin_move(process, out=after is State.CHECKPOINTED))
        self._load.end_move(process)
        self._set(process, after)
        return None

    def _resume(self, process: ProcessKey) -> None:
        self._load.pause(process, False)
        self._states.pop(process, None)

    def _resume_all(self) -> None:
        for process, state in list(self._states.items()):
            if state is State.LOCKED:
                self._resume(process)

    def _overdue(self, process: ProcessKey, since_s: float, writer: asyncio.StreamWriter) -> None:
        if self._state(process) is State.LOCKED and self._since_s[process] == since_s:
            self._resume(process)
            if not writer.is_closing():
                writer.write(encode_message(Notice(process, f"it was paused for {self._max_pause_s:g} s")))

    def _list_paused(self) -> tuple[Paused, ...]:
        now_s = asyncio.get_running_loop().time()
        stages = {State.LOCKED: Stage.LOCKED, State.CHECKPOINTED: Stage.PARKED}
        return tuple(
            Paused(process, stages[state], now_s - self._since_s[process]) for process, state in self._states.items()
        )
