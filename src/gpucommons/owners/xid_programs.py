"""Which program an XID error hit, and whose it is. Computed at each snapshot, after attribution, on the event loop.

The kernel log names the process, if the agent may read it. Otherwise, and where the driver does not know it, the only
program on the GPU is taken, and none if there are several. An XID often ends its program: a process that has left a
GPU is remembered for a while. Those on the GPUs are only looked up when an XID comes: there may be tens of thousands.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import NamedTuple

from gpucommons.model.allocations import AllocationReading
from gpucommons.model.gpu import RECENT_S, Gpu, XidLine, XidProgram, XidProgramsReading
from gpucommons.model.names import account_names, billing_name, short_command
from gpucommons.model.ownership import ProcessShare
from gpucommons.model.process_identity import ProcessContext, ProcessKey
from gpucommons.model.snapshot import Readings

_REMEMBERED_S = 120.0
# The kernel log has the line within this time of the driver's event, or it has none.
_SETTLED_S = 3.0
_KEPT = 64
_place_of = attrgetter("place.gpu_uuid", "pid")


class _Process(NamedTuple):
    pid: int
    program: str
    user: str
    uid: int | None
    seen_s: float


class _OnGpus(NamedTuple):
    """The processes on the GPUs at an instant, and what names them."""

    shares: tuple[ProcessShare, ...] = ()
    contexts: Mapping[ProcessKey, ProcessContext] = {}
    allocations: AllocationReading | None = None
    seen_s: float = -_REMEMBERED_S

    def processes(self, gpu_uuid: str) -> Iterator[_Process]:
        names = account_names(self.allocations)
        return (self._process(share, names) for share in self.shares if share.place.gpu_uuid == gpu_uuid)

    def _process(self, share: ProcessShare, names: Mapping[str, str]) -> _Process:
        context = self.contexts.get(share.key) if share.key else None
        program = short_command(context.command_line if context else (), share.workload.process_name)
        user = billing_name(share, names) or ""
        return _Process(share.pid, program, user, share.workload.uid, self.seen_s)

    def without(self, later: tuple[ProcessShare, ...]) -> Iterator[tuple[str, _Process]]:
        """The processes, and their GPUs, that are not among the later ones."""
        # Nearly always the same processes, and most of them unchanged: then they are the same objects.
        changed = [(old, new) for old, new in zip(self.shares, later, strict=False) if old is not new]
        same = all(old.place == new.place and old.pid == new.pid for old, new in changed)
        if same and len(self.shares) == len(later):
            return
        names, present = account_names(self.allocations), set(map(_place_of, later))
        for share in self.shares:
            if _place_of(share) not in present:
                yield share.place.gpu_uuid, self._process(share, names)


class _Event(NamedTuple):
    """New XIDs of one code, and the processes that were on the GPU."""

    gpu: Gpu
    code: int
    wall_s: float
    on_gpu: tuple[_Process, ...]


class XidProgramStage:
    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._on_gpus = _OnGpus()
        # By GPU and pid, for a while.
        self._departed: dict[tuple[str, int], _Process] = {}
        self._counts: dict[tuple[str, int], int] = {}
        self._lines_taken = 0
        self._open: list[_Event] = []
        self._found: deque[XidProgram] = deque(maxlen=_KEPT)
        self._count = 0

    def __call__(self, readings: Readings) -> Readings:
        if readings.gpus is None:
            return readings
        now_s = self._wall()
        self._remember(readings, now_s)
        gpus = readings.gpus.gpus
        for line in readings.kernel_log.lines if readings.kernel_log else ():
            if line.number > self._lines_taken:
                self._lines_taken = line.number
                self._take_line(line, gpus, now_s)
        self._open += [event for gpu in gpus for event in self._new_events(gpu, now_s)]
        settled = [event for event in self._open if now_s - event.wall_s >= _SETTLED_S]
        self._open = [event for event in self._open if now_s - event.wall_s < _SETTLED_S]
        for event in settled:
            self._take_only_program(event)
        while self._found and now_s - self._found[0].wall_s > RECENT_S:
            self._found.popleft()
        return readings._replace(xid_programs=XidProgramsReading(tuple(self._found)))

    def _remember(self, readings: Readings, now_s: float) -> None:
        if readings.attribution is not None:
            shares = readings.attribution.processes
            for uuid, process in self._on_gpus.without(shares):
                self._departed[uuid, process.pid] = process
            self._on_gpus = _OnGpus(shares, readings.process_contexts or {}, readings.allocations, now_s)
        self._departed = {
            key: process for key, process in self._departed.items() if now_s - process.seen_s < _REMEMBERED_S
        }

    def _processes_of(self, gpu_uuid: str, now_s: float) -> dict[int, _Process]:
        """By pid, those that have left the GPU included."""
        processes = {pid: process for (uuid, pid), process in self._departed.items() if uuid == gpu_uuid}
        if now_s - self._on_gpus.seen_s < _REMEMBERED_S:
            processes |= {process.pid: process for process in self._on_gpus.processes(gpu_uuid)}
        return processes

    def _take_line(self, line: XidLine, gpus: tuple[Gpu, ...], now_s: float) -> None:
        gpu = next((gpu for gpu in gpus if _same_place(gpu.identity.pci_bus_id, line.pci)), None)
        if gpu is None or line.pid is None:
            return
        listed = self._processes_of(gpu.identity.uuid, now_s).get(line.pid)
        process = listed or _Process(line.pid, line.program, "", None, line.wall_s)
        self._add(gpu, line.code, line.wall_s, process, certain=True)

    def _new_events(self, gpu: Gpu, now_s: float) -> list[_Event]:
        events = []
        for code, count in gpu.xid.counts.items():
            key = (gpu.identity.uuid, code)
            if count > self._counts.get(key, 0):
                processes = self._processes_of(gpu.identity.uuid, now_s).values()
                recent = tuple(process for process in processes if now_s - process.seen_s < _SETTLED_S)
                events.append(_Event(gpu, code, now_s, recent))
            self._counts[key] = count
        return events

    def _take_only_program(self, event: _Event) -> None:
        uuid = event.gpu.identity.uuid
        named = any(
            program.gpu_uuid == uuid
            and program.code == event.code
            and abs(program.wall_s - event.wall_s) <= 2 * _SETTLED_S
            for program in self._found
        )
        if not named and len(event.on_gpu) == 1:
            self._add(event.gpu, event.code, event.wall_s, event.on_gpu[0], certain=False)

    def _add(self, gpu: Gpu, code: int, wall_s: float, process: _Process, certain: bool) -> None:
        """One entry for each process and code, with the time of the last one."""
        uuid = gpu.identity.uuid
        same = [
            program
            for program in self._found
            if (program.gpu_uuid, program.code, program.pid) == (uuid, code, process.pid)
        ]
        for program in same:
            self._found.remove(program)
        self._count += not same
        number = same[0].number if same else self._count
        self._found.append(
            XidProgram(
                number,
                uuid,
                gpu.identity.index,
                code,
                wall_s,
                process.pid,
                process.program,
                process.user,
                process.uid,
                certain,
            )
        )


def _same_place(pci_bus_id: str, of_line: str) -> bool:
    """NVML writes 00000000:C1:00.0, the kernel log 0000:c1:00."""
    domain, _, rest = pci_bus_id.lower().partition(":")
    return f"{domain[-4:].rjust(4, '0')}:{rest}".partition(".")[0] == of_line.partition(".")[0]
