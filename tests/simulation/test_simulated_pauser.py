"""The simulated pauser through the agent's own client: the same answers as from the real one."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser.backend import Code
from gpucommons.pauser.client import Pauser, PauserSettings
from gpucommons.pauser.protocol import Notice
from gpucommons.simulation.lab_jobs import JOBS, LabJob
from gpucommons.simulation.shared_load import SharedLoad
from gpucommons.simulation.simulated_pauser import SimulatedPauser
from pauser.rig import code_of
from waiting import until

# Its memory moves in a fraction of a second.
SMALL = LabJob(ProcessKey(5000, 1), "python small.py", 7, "compute", 0.5, 0.8, 0.8, 1.0, 1.0, 10)
FINETUNE = JOBS[4].key


class Lab:
    """The jobs of the lab, and a pauser for them."""

    def __init__(self, max_pause_s: float = 10.0) -> None:
        begun_s = monotonic()
        self.load = SharedLoad(lambda: monotonic() - begun_s)
        self.heard: list[Notice] = []
        stand_in = SimulatedPauser(self.load, max_pause_s).connect
        self.pauser = Pauser(PauserSettings(max_pause_s=max_pause_s, stand_in=stand_in), on_notice=self.heard.append)

    def progress(self, key: ProcessKey = FINETUNE) -> float:
        return self.load.totals(key).progress

    def play(self, body: Callable[["Lab"], Awaitable[None]]) -> None:
        async def whole() -> None:
            await self.pauser.start()
            assert await self.pauser.wait_available(30)
            await body(self)
            await self.pauser.stop()

        asyncio.run(whole())


async def stands_still(lab: Lab) -> bool:
    before = lab.progress()
    await asyncio.sleep(0.1)
    return lab.progress() == before


def test_pause_and_resume() -> None:
    async def body(lab: Lab) -> None:
        assert not await stands_still(lab)
        assert code_of(await lab.pauser.lock(FINETUNE)) == 0
        assert await stands_still(lab)
        assert code_of(await lab.pauser.lock(FINETUNE)) == Code.WRONG_STATE
        assert code_of(await lab.pauser.checkpoint(JOBS[5].key)) == Code.WRONG_STATE
        assert code_of(await lab.pauser.unlock(FINETUNE)) == 0
        assert not await stands_still(lab)
        assert code_of(await lab.pauser.unlock(FINETUNE)) == Code.NOT_PAUSED
        assert code_of(await lab.pauser.lock(ProcessKey(FINETUNE.pid, 99))) == Code.GONE
        assert (lab.pauser.counters.locks, lab.pauser.counters.unlocks) == (1, 1)

    Lab().play(body)


def test_the_longest_pause_ends_by_itself() -> None:
    async def body(lab: Lab) -> None:
        assert code_of(await lab.pauser.lock(FINETUNE)) == 0
        await asyncio.to_thread(until, lambda: lab.heard, "the agent has the notice")
        assert lab.heard[0].process == FINETUNE
        assert not await stands_still(lab)

    Lab(max_pause_s=0.2).play(body)


def test_memory_moves_and_comes_back() -> None:
    async def body(lab: Lab) -> None:
        job, key = SMALL, SMALL.key
        lab.load.start(job)
        assert code_of(await lab.pauser.lock(key)) == 0
        assert code_of(await lab.pauser.checkpoint(key)) == 0
        assert lab.load.memory_bytes(job, 1.0) == 0
        listed = await lab.pauser.list()
        assert isinstance(listed, tuple)
        assert [one.process for one in listed] == [key]
        assert code_of(await lab.pauser.resume_all()) == 0
        assert lab.load.memory_bytes(job, 1.0) == 0, "it stays parked"
        assert code_of(await lab.pauser.restore(key)) == 0
        assert lab.load.memory_bytes(job, 1.0) > 0
        assert code_of(await lab.pauser.unlock(key)) == 0

    Lab().play(body)


def test_everything_runs_when_the_agent_stops() -> None:
    lab = Lab()

    async def body(lab: Lab) -> None:
        assert code_of(await lab.pauser.lock(FINETUNE)) == 0

    lab.play(body)
    before = lab.progress()
    asyncio.run(asyncio.sleep(0.1))
    assert lab.progress() > before
