"""Parking with a real pauser and programs of the fake driver, without the rest of the agent."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path

from fakes.cuda.control import FakeCuda, FakeProgram
from gpucommons.config.scheduler import ParkingSettings
from gpucommons.model.ownership import Workload
from gpucommons.model.words import SharingClass
from gpucommons.pauser.backend import State
from gpucommons.pauser.client import Pauser
from gpucommons.pauser.release import RESERVE_BYTES
from gpucommons.scheduler.parking.host import THIS_HOST, ParkHost
from gpucommons.scheduler.parking.parking import Parking
from gpucommons.scheduler.parking.suspended import BatchSystem
from gpucommons.scheduler.parking.values import RoomClaims, RoomNeed
from gpucommons.scheduler.programs.exemptions import Exempt, Exemption
from gpucommons.scheduler.programs.jobs import DeviceUse, GpuUser, Program, ProgramActivity, ProgramReading, group
from gpucommons.scheduler.programs.matching import ProgramRule
from pauser.rig import settings

GPU = "GPU-0"


class ParkingRig:
    """One fake GPU of `total` bytes. `reserve` stands for the reserve of a restore, whose real size is above it."""

    def __init__(
        self,
        cuda: FakeCuda,
        record: Path,
        total: int,
        given: ParkingSettings,
        reserve: int = 0,
        host: ParkHost = THIS_HOST,
        batch: BatchSystem | None = None,
        rules: Sequence[ProgramRule] = (),
    ) -> None:
        cuda.gpu_has(total)
        self.cuda, self.total, self.reserve = cuda, total, reserve
        self.needs: tuple[RoomNeed, ...] = ()
        self.pauser = Pauser(settings(cuda, record))
        self.parking = Parking(
            given,
            self.pauser,
            self.rooms,
            self._end_turns,
            self._claims,
            host=host,
            batch=batch,
            rules=rules,
            class_of=self._class_of,
        )
        # The pids of programs of class background.
        self.background: set[int] = set()
        # The pids of programs that use neither GPU nor CPU, and of display servers.
        self.idle: set[int] = set()
        self.displays: set[int] = set()
        # The device that the programs use, a GPU or a MIG device.
        self.device = GPU
        # The job of a process that is not one of its own.
        self.jobs: dict[int, str] = {}

    def rooms(self, devices: Iterable[str]) -> Mapping[str, int]:
        used = sum(one.gpu_bytes for one in self.living())
        return dict.fromkeys(devices, self.total - used + RESERVE_BYTES - self.reserve)

    def living(self) -> list[FakeProgram]:
        return [one for one in self.cuda.programs if one.process.poll() is None]

    def _claims(self) -> RoomClaims:
        return RoomClaims(self.needs)

    def _class_of(self, program: Program) -> SharingClass:
        return SharingClass.BACKGROUND if program.first.pid in self.background else SharingClass.BATCH

    async def _end_turns(self, key: str) -> None:
        return

    def read(self, ago_s: float = 0.0) -> None:
        """One reading, as the agent passes it on; or has passed it on so long ago."""
        rows = []
        for one in self.living():
            idle = one.pid in self.idle
            use = DeviceUse(
                self.device, "compute", one.gpu_bytes, ProgramActivity.IDLE if idle else ProgramActivity.ACTIVE
            )
            rows.append(
                GpuUser(
                    one.pid, one.key, self.jobs.get(one.pid, f"process:{one.pid}"), (use,), Workload(uid=0, user="root")
                )
            )
        now = asyncio.get_running_loop().time() - ago_s
        reading = self.parking.without_parked(ProgramReading(tuple(rows), as_of_s=now))
        programs = group(reading.processes)
        alone = [Exemption(one, Exempt.DISPLAY, "it is a display server") for one in programs if self._is_display(one)]
        taking_part = [one for one in programs if not self._is_display(one)]
        classes = {one.key: self._class_of(one) for one in taking_part}
        self.parking.see(taking_part, alone, frozenset(), frozenset(), now, classes)

    def _is_display(self, program: Program) -> bool:
        return program.first.pid in self.displays

    def stage(self, program: FakeProgram) -> str:
        return next((one.stage for one in self.parking.reading().programs if program.pid in one.pids), "held")

    async def until(self, ask: Callable[[], object], what: str, within_s: float = 40) -> None:
        """Readings go on meanwhile, more often than in an agent."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + within_s
        while not ask():
            assert loop.time() < deadline_s, f"{what}; {self.parking.reading()}"
            self.read()
            await asyncio.sleep(0.02)

    def none_stranded(self) -> bool:
        return all(one.state is not State.FAILED for one in self.cuda.programs)

    def run(self, body: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            await self.pauser.start()
            assert await self.pauser.wait_available(30), self.pauser.reason
            self.parking.start()
            try:
                await body()
            finally:
                await self.parking.stop()
                await self.pauser.stop()

        asyncio.run(whole())
