"""The scheduler in its own thread: input arrives, output is available, and it stops."""

import asyncio
import ctypes
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import pytest

from gpucommons.base.processes import start_ticks
from gpucommons.base.unix_listener import ListenError
from gpucommons.faces.documents.turns import turn_pieces
from gpucommons.model.process_identity import ProcessKey
from gpucommons.model.sharing import SharingReading
from gpucommons.scheduler.policy.devices import GpuFacts
from gpucommons.scheduler.policy.quotas import PodName, QuotaValues
from gpucommons.scheduler.policy.state import GIB
from gpucommons.scheduler.protocol.wire import MessageType
from gpucommons.scheduler.service.state_reader import ProcessNames
from gpucommons.scheduler.service.thread import SchedulerThread
from scheduler.served import PATIENCE_S, PRIVACY, Scripted, scheduler_settings

PR_GET_TIMERSLACK = 30


async def until(scheduler: SchedulerThread, condition: Callable[[SharingReading], bool]) -> SharingReading:
    for _ in range(int(PATIENCE_S / 0.02)):
        reading = scheduler.reading
        if reading is not None and condition(reading):
            return reading
        await asyncio.sleep(0.02)
    raise AssertionError("never came to be")


def this_process() -> ProcessKey:
    return ProcessKey(os.getpid(), start_ticks(Path("/proc/self/stat").read_bytes()))


async def play(path: str) -> None:
    scheduler = SchedulerThread(scheduler_settings(path), turn_pieces, privacy=PRIVACY)
    assert scheduler.reading is None
    scheduler.update_gpus([])
    refusals: list[str] = []
    scheduler.park({1}, refusals.append)
    assert refusals == ["the scheduler does not run"]
    await scheduler.start()
    answers: SimpleQueue[str] = SimpleQueue()
    scheduler.park({1}, answers.put)
    assert await asyncio.to_thread(answers.get, timeout=PATIENCE_S) == "programs are not parked on this node"
    assert answers.empty(), "it is called once"
    slack_ns: SimpleQueue[int] = SimpleQueue()
    scheduler.park({1}, lambda _: slack_ns.put(ctypes.CDLL(None).prctl(PR_GET_TIMERSLACK)))
    assert await asyncio.to_thread(slack_ns.get, timeout=PATIENCE_S) == 1, "its waits end in time"
    client = await asyncio.to_thread(lambda: Scripted(path).register("pod", "ns").ask().granted())
    await until(scheduler, lambda reading: [row.client_id for row in reading.clients] == [client.id])
    scheduler.update_gpus([GpuFacts("GPU-7", 0, 80 * GIB)])
    await until(scheduler, lambda reading: reading.gpus[0].total_memory_bytes == 80 * GIB)
    scheduler.set_names(ProcessNames(pods={this_process(): PodName("ns", "pod")}))
    scheduler.set_annotations({("ns", "pod"): QuotaValues(core_percent=50)})
    await asyncio.to_thread(client.expect, MessageType.UPDATE_CORE_LIMIT)
    with pytest.raises(ListenError, match="another process"):
        await SchedulerThread(scheduler_settings(path), turn_pieces, privacy=PRIVACY).start()
    await scheduler.stop()
    assert await asyncio.to_thread(client.closed)
    scheduler.update_gpus([])


async def start_meanwhile(path: str) -> list[str]:
    """The answers to an order during which the scheduler starts."""
    scheduler = SchedulerThread(scheduler_settings(path), turn_pieces, privacy=PRIVACY)
    answers: list[str] = []
    is_answered, has_started = threading.Event(), threading.Event()

    def answer(why: str) -> None:
        answers.append(why)
        is_answered.set()
        has_started.wait(PATIENCE_S)

    order = asyncio.create_task(asyncio.to_thread(scheduler.park, {1}, answer))
    assert await asyncio.to_thread(is_answered.wait, PATIENCE_S)
    await scheduler.start()
    has_started.set()
    await order
    # What was sent to the scheduler's thread before this has been carried out.
    last: SimpleQueue[str] = SimpleQueue()
    scheduler.park({1}, last.put)
    await asyncio.to_thread(last.get, timeout=PATIENCE_S)
    await scheduler.stop()
    return answers


def test_an_order_is_answered_once_also_while_the_scheduler_starts(tmp_path: Path) -> None:
    interval_s = sys.getswitchinterval()
    try:
        assert asyncio.run(start_meanwhile(str(tmp_path / "s.sock"))) == ["the scheduler does not run"]
    finally:
        sys.setswitchinterval(interval_s)


def test_a_life(tmp_path: Path) -> None:
    interval_s = sys.getswitchinterval()
    try:
        asyncio.run(play(str(tmp_path / "s.sock")))
        assert not (tmp_path / "s.sock").exists()
        assert sys.getswitchinterval() < 0.001
    finally:
        sys.setswitchinterval(interval_s)
    assert "scheduler" not in {thread.name for thread in threading.enumerate()}
