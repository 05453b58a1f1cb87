"""The scheduler's state as one SharingReading: at once, or every second in small steps so that no hand-off waits."""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from time import monotonic
from typing import Final, TypedDict

from gpucommons.base.text import printable
from gpucommons.model.sharing import (
    ClientSharing,
    GpuSharing,
    HistogramReading,
    LeftAlone,
    ParkingReading,
    PauserReading,
    SharingReading,
)
from gpucommons.scheduler.policy.devices import DeviceTable
from gpucommons.scheduler.policy.quotas import LimitLookup
from gpucommons.scheduler.policy.state import Client, ClientStanding, GpuQueue
from gpucommons.scheduler.programs.exemptions import Exemption
from gpucommons.scheduler.protocol.wire import MessageType
from gpucommons.scheduler.service.process_names import ProcessNames
from gpucommons.scheduler.service.programs import Programs
from gpucommons.scheduler.service.reading import FRONT, QueuePosition, read_client, read_gpu
from gpucommons.scheduler.service.turn_loop import TurnLoop

log = logging.getLogger(__name__)

_INTERVAL_S: Final = 1.0
# Rows made before the sockets are served again: a fraction of a millisecond of work.
_ROWS_PER_STEP: Final = 8
_MOST_DEPARTED: Final = 10_000


class _ParkingParts(TypedDict, total=False):
    parking: ParkingReading
    park_seconds: HistogramReading
    wake_seconds: HistogramReading


class StateReader:
    """`latest` is the reading of the last second. `connections` returns the number of open connections.

    `names` are those of processes and users, as the agent last read them.
    """

    def __init__(
        self,
        turns: TurnLoop,
        devices: DeviceTable,
        limits: LimitLookup,
        disconnects: Counter[str],
        connections: Callable[[], int],
        programs: Programs | None = None,
    ) -> None:
        self._turns = turns
        self._policy = turns.policy
        self._settings = turns.policy.settings
        self._devices = devices
        self._limits = limits
        self._disconnects = disconnects
        self._connections = connections
        self._programs = programs
        self.names = ProcessNames()
        self._departed: deque[tuple[float, ClientSharing]] = deque(maxlen=_MOST_DEPARTED)
        self.latest = self.read_now()

    def read_now(self) -> SharingReading:
        return self._assemble(list(self._rows()))

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            try:
                self.latest = await self.read_in_steps()
            except Exception:
                log.exception("cannot read the scheduler's state; the last reading is kept")

    def keep_departed(self, client: Client, now: float) -> None:
        """Keeps the last row of a client that disconnects, if `metrics_stale_ttl_s` is set."""
        if self._settings.metrics_stale_ttl_s > 0:
            self._departed.append((now + self._settings.metrics_stale_ttl_s, self._row(client, FRONT)))

    async def read_in_steps(self) -> SharingReading:
        rows: list[ClientSharing] = []
        for _ in self._count_hand_overs():
            await asyncio.sleep(0)
        for row in self._rows():
            rows.append(row)
            if len(rows) % _ROWS_PER_STEP == 0:
                await asyncio.sleep(0)
        return self._assemble(rows)

    def _count_hand_overs(self) -> Iterator[None]:
        """Updates the histograms, a part at a time."""
        for gpu in list(self._policy.gpus.values()):
            while gpu.count_some():
                yield

    def _rows(self) -> Iterator[ClientSharing]:
        """One row per client. Clients may connect and disconnect between two rows."""
        for gpu in list(self._policy.gpus.values()):
            # In the order of the queue: a client's expected wait follows from that of the client ahead.
            queue = list(gpu.in_order())
            others = [client for client in gpu.clients.values() if client.id not in gpu.waiting]
            position = FRONT
            for client in queue:
                row = self._row(client, position)
                yield row
                expected_s = None if row.wait is None else row.wait.expected_s
                position = QueuePosition(position.ahead + 1, client, expected_s)
            for client in others:
                yield self._row(client, FRONT)

    def _row(self, client: Client, position: QueuePosition) -> ClientSharing:
        now = monotonic()
        client.gpu.clock.advance(now)
        program = None if self._programs is None else self._programs.program_of(client)
        name = self.names.of_client(client) if program is None else program.display_name
        row = read_client(self._policy.terms, client, self._limits.of(client), position, now, name)
        own = self._policy.gpus.get(client.device)
        if own is not None and own is not client.gpu:
            row = row._replace(gpu_index=own.index)
        if program is None:
            return row
        row = row._replace(program=program.key, processes=tuple(process.pid for process in program.processes))
        held_up = None if self._programs is None else self._programs.held_up(client)
        if held_up is not None:
            standing = "stopped" if held_up.is_stopped else "hanging"
            return row._replace(standing=standing, held_up=printable(held_up.sentence))
        rests = self._policy.on and client.standing is ClientStanding.IDLE
        return row._replace(standing="resting" if rests else row.standing)

    def _gpu(self, gpu: GpuQueue, present: bool, now: float) -> GpuSharing:
        row = read_gpu(self._policy, gpu, present, now)
        return replace(row, way="linked", way_reason="linked") if self._devices.is_linked(gpu) else row

    def _assemble(self, rows: list[ClientSharing]) -> SharingReading:
        now = monotonic()
        policy, present = self._policy, self._devices.present
        while self._departed and self._departed[0][0] <= now:
            self._departed.popleft()
        gpus = list(policy.gpus.values())
        for gpu in gpus:
            gpu.clock.advance(now)
        return SharingReading(
            on=policy.on,
            mode=policy.terms.mode.value,
            fixed_quantum_s=policy.terms.operator_quantum_s,
            gpus=tuple(self._gpu(gpu, gpu.key in present, now) for gpu in gpus),
            clients=tuple(rows),
            departed=tuple(row for _, row in self._departed),
            messages={kind.name: self._turns.messages[kind] for kind in MessageType},
            disconnects=dict(self._disconnects),
            refusals=dict(policy.refusals),
            handoff_seconds=self._turns.handoffs.reading(),
            window_s=self._settings.compute_window_ms / 1000,
            debug_labels=self._settings.metrics_debug_labels,
            connections=self._connections(),
            share_programs=self._settings.share_programs,
            **self._parking(),
            pauser=self._pauser(),
            left_alone=() if self._programs is None else tuple(map(_left_alone, self._programs.exempt)),
        )

    def _pauser(self) -> PauserReading | None:
        if self._programs is None:
            return None
        return self._programs.pauser.reading()

    def _parking(self) -> _ParkingParts:
        parking = None if self._programs is None else self._programs.parking
        if parking is None:
            return {}
        return {
            "parking": parking.reading(),
            "park_seconds": parking.log.park_seconds.reading(),
            "wake_seconds": parking.log.wake_seconds.reading(),
        }


def _left_alone(exemption: Exemption) -> LeftAlone:
    program = exemption.program
    return LeftAlone(program.display_name, exemption.why.value, exemption.sentence, program.uid, program.devices)
