"""The scheduler in its own thread, so that no scrape, page or sample of the agent delays a hand-off.

Its output is one attribute, its input is calls on its loop. Nothing else crosses between the threads.
"""

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from gpucommons.base.process_starts import ProcessStarts
from gpucommons.base.threads import LoopThread
from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.model.leases import TrespassReport
from gpucommons.model.sharing import SharingReading
from gpucommons.rules.privacy import Privacy
from gpucommons.scheduler.parking.arrivals import GpuMemory
from gpucommons.scheduler.parking.values import RoomClaims
from gpucommons.scheduler.policy.devices import GpuFacts
from gpucommons.scheduler.policy.quotas import QuotaRule, QuotaValues
from gpucommons.scheduler.programs.exemptions import TrespassStanding
from gpucommons.scheduler.programs.jobs import ProgramReading
from gpucommons.scheduler.service.control_socket import ControlSocket, Document
from gpucommons.scheduler.service.server import ProgramSharing, SchedulerServer
from gpucommons.scheduler.service.state_reader import ProcessNames
from gpucommons.scheduler.service.turn_loop import PhaseMeter

# How long another thread of the agent may compute before the scheduler's thread runs, twice before a LOCK_OK is sent:
# as its socket becomes readable, and after the read, during which another thread may compute. Python's default is a
# hundred times that, and would delay every hand-off during a scrape.
_SWITCH_INTERVAL_S: Final = 0.00005
# Linux ends the waits of a thread up to 50 us late, as long as the whole interval: not those of this thread.
_TIMER_SLACK_NS: Final = 1
_PR_SET_TIMERSLACK: Final = 29


class SchedulerThread:
    """Call `start` and `stop` from the agent's loop, the other methods from any thread.

    `document` makes the JSON text that the control socket answers with, in pieces; `privacy` says to which peer;
    `control` are the paths that are tried for it, empty for the directory of the client socket.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        document: Document,
        rules: Sequence[QuotaRule] = (),
        *,
        privacy: Privacy,
        sharing: ProgramSharing | None = None,
        meter: PhaseMeter | None = None,
        starts: ProcessStarts | None = None,
        control: Sequence[str] = (),
    ) -> None:
        self._settings = settings
        self._document = document
        self._privacy = privacy
        self._rules = tuple(rules)
        self._sharing = sharing
        self._meter = meter
        self._starts = starts
        self._control_paths = tuple(control)
        self._server: SchedulerServer | None = None
        self._control: ControlSocket | None = None
        self._thread = LoopThread("scheduler", self._close)

    async def start(self) -> None:
        """Raises ListenError if a socket cannot be served; the thread has ended then."""
        sys.setswitchinterval(min(_SWITCH_INTERVAL_S, sys.getswitchinterval()))
        await self._thread.start(self._open)

    async def stop(self) -> None:
        await self._thread.stop()

    @property
    def reading(self) -> SharingReading | None:
        """The latest reading; None before the start."""
        return None if self._server is None else self._server.reading

    def update_gpus(self, facts: Sequence[GpuFacts]) -> None:
        self._to_server(lambda server: server.update_gpus(facts))

    def set_names(self, names: ProcessNames) -> None:
        self._to_server(lambda server: server.set_names(names))

    def update_programs(self, reading: ProgramReading) -> None:
        self._to_server(lambda server: server.update_programs(reading))

    def update_memory(self, memory: Mapping[str, GpuMemory]) -> None:
        self._to_server(lambda server: server.update_memory(memory))

    def update_trespassers(self, report: TrespassReport) -> None:
        self._to_server(lambda server: server.update_trespassers(report))

    @property
    def trespass_standing(self) -> TrespassStanding:
        """Which programs on leased GPUs are paused."""
        programs = None if self._server is None else self._server.programs
        enforcement = None if programs is None else programs.enforcement
        return TrespassStanding() if enforcement is None else enforcement.standing

    @property
    def reads_soon(self) -> bool:
        """Whether programs come and go, so that the next reading should come soon."""
        programs = None if self._server is None else self._server.programs
        return programs is not None and programs.reads_soon

    def set_mps_devices(self, devices: frozenset[str]) -> None:
        self._to_server(lambda server: server.set_mps_devices(devices))

    def set_lease_claims(self, claims: RoomClaims) -> None:
        self._to_server(lambda server: server.set_lease_claims(claims))

    def park(self, pids: AbstractSet[int], done: Callable[[str], None]) -> None:
        """Moves the GPU memory of these processes' programs to host memory.

        Calls `done` once with the reason for a refusal; an empty reason means success. On the scheduler's thread, if
        that runs.
        """

        def park(server: SchedulerServer) -> None:
            if server.parking is None:
                done("programs are not parked on this node")
                return
            order = server.parking.orders.park_processes(pids)
            server.generation += 1
            none = "" if order.keys else "none of its programs can be parked"
            done("; ".join(order.refused) or none)

        server = self._server
        if server is None:
            done("the scheduler does not run")
        else:
            self._thread.call(lambda: park(server))

    def set_annotations(self, annotations: Mapping[tuple[str, str], QuotaValues]) -> None:
        self._to_server(lambda server: server.set_annotations(annotations))

    def _to_server(self, event: Callable[[SchedulerServer], None]) -> None:
        server = self._server
        if server is not None:
            self._thread.call(lambda: event(server))

    async def _open(self) -> None:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _TIMER_SLACK_NS)
        server = SchedulerServer(
            self._settings, self._rules, sharing=self._sharing, meter=self._meter, starts=self._starts
        )
        control = ControlSocket(server, self._document, self._privacy, self._control_paths)
        try:
            await server.start()
            await control.start()
        except Exception:
            await server.stop()
            raise
        self._server, self._control = server, control

    async def _close(self) -> None:
        if self._control is not None:
            await self._control.stop()
        if self._server is not None:
            await self._server.stop()
