"""Enforcement of leases with a pauser and a thread of its own, for an agent that does not share programs."""

from collections.abc import Callable

from gpucommons.base.threads import LoopThread
from gpucommons.pauser.client import Pauser, PauserSettings
from gpucommons.scheduler.programs.jobs import ProgramReading
from gpucommons.scheduler.programs.trespass import TrespassReport, TrespassStanding
from gpucommons.scheduler.service.enforcement import Enforcement, EnforcementTerms


class EnforcementThread:
    """Call `start` and `stop` from the agent's loop, the other methods from any thread."""

    def __init__(self, pauser: PauserSettings, terms: EnforcementTerms) -> None:
        self._settings = pauser
        self._terms = terms
        self._pauser: Pauser | None = None
        self._enforcement: Enforcement | None = None
        self._thread = LoopThread("enforcement", self._close)

    async def start(self) -> None:
        await self._thread.start(self._open)

    async def stop(self) -> None:
        await self._thread.stop()

    def update_programs(self, reading: ProgramReading, nvshare_pids: frozenset[int]) -> None:
        self._call(lambda enforcement: enforcement.see(reading.processes, nvshare_pids))

    def update_trespassers(self, report: TrespassReport) -> None:
        self._call(lambda enforcement: enforcement.update(report))

    @property
    def trespass_standing(self) -> TrespassStanding:
        return TrespassStanding() if self._enforcement is None else self._enforcement.standing

    def _call(self, event: Callable[[Enforcement], None]) -> None:
        enforcement = self._enforcement
        if enforcement is not None:
            self._thread.call(lambda: event(enforcement))

    async def _open(self) -> None:
        self._pauser = Pauser(
            self._settings,
            on_notice=lambda notice: enforcement.hear(notice),
            on_change=lambda: enforcement.pauser_changed(),
        )
        enforcement = self._enforcement = Enforcement(self._pauser, self._terms)
        await self._pauser.start()

    async def _close(self) -> None:
        if self._enforcement is not None and self._pauser is not None:
            await self._enforcement.stop()
            await self._pauser.stop()
