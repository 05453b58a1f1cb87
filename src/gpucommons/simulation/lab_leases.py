"""The users of the lab that run commands with `gpucommons run`: simulated clients of the lease service.

Each requests a slot, runs its command for a while once it has one, is away for a while, and requests again. There are
more of them than free slots, so that some wait. Their names in the queue say that they are simulated.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from gpucommons.leases.policy.values import LeaseRefused
from gpucommons.leases.protocol import Line, RunRequest
from gpucommons.leases.service.desk import LeaseClient, LeaseDesk
from gpucommons.model.process_identity import ProcessKey
from gpucommons.simulation.lab_gpus import LabGpus
from gpucommons.simulation.lab_jobs import LabJob
from gpucommons.simulation.lab_runs import LabRun
from gpucommons.simulation.shared_load import SharedLoad

_GIB: Final = 2**30
# A client that was refused tries again after so long.
_AGAIN_S: Final = 20.0
# A command starts its program on the GPU a moment after it has its slot.
_START_S: Final = 2.0


@dataclass(slots=True)
class _Player:
    """`id` is that of its lease or request; `begins_s` and `ends_s` are set once it has its slot."""

    run: LabRun
    next_s: float
    times: int = 0
    id: str = ""
    slot: str = ""
    begins_s: float = 0.0
    ends_s: float | None = None
    job: ProcessKey | None = None


class LabLeaseUsers:
    """Call `step` about once a second, on the thread of the lease service. `own` is the process of the agent.

    The agent is the process that the record names for their leases: after a restart they are not waited for.
    """

    def __init__(self, load: SharedLoad, gpus: LabGpus, clock: Callable[[], float], runs: Iterable[LabRun]) -> None:
        self._load = load
        self._gpus = gpus
        self._clock = clock
        self._players = [_Player(run, run.first_s) for run in runs]

    def step(self, desk: LeaseDesk, own: ProcessKey) -> None:
        now_s = self._clock()
        for player in self._players:
            if not player.id and now_s >= player.next_s:
                self._request(player, desk, own)
            elif player.ends_s is not None and now_s >= player.ends_s:
                id = player.id
                self._leave(player, player.run.away_s)
                desk.done(id, report=False)
            elif player.ends_s is not None and player.job is None and now_s >= player.begins_s:
                self._start(player)

    def _request(self, player: _Player, desk: LeaseDesk, own: ProcessKey) -> None:
        run = player.run

        def hear(line: Line) -> None:
            self._hear(player, line)

        client = LeaseClient(run.person.uid, run.person.name, own.pid, own.start_ticks, False, hear)
        request = RunRequest(
            memory_bytes=int(run.memory_gib * _GIB), share=run.share, limit_s=run.limit_s, name=run.name
        )
        player.times += 1
        try:
            player.id = desk.open(client, request)
        except LeaseRefused:
            self._leave(player, _AGAIN_S)

    def _hear(self, player: _Player, line: Line) -> None:
        match line:
            case {"event": "queued", "id": str(id)}:
                player.id = id
            case {"event": "granted", "slots": [{"uuid": str(uuid)}]}:
                player.slot = uuid
                player.begins_s = self._clock() + _START_S
                player.ends_s = player.begins_s + player.run.runs_s
            case {"event": "cancelled" | "error"}:
                self._leave(player, _AGAIN_S)

    def _start(self, player: _Player) -> None:
        place = self._gpus.place(player.slot)
        if place is None:
            return
        run = player.run
        # A program is its pid and its start time: each run is another one.
        key = player.job = ProcessKey(run.pid, 1000 * (run.number + 1) + player.times)
        gpu, instance = place
        job = LabJob(key, run.command, gpu, "compute", run.used_gib, run.level, run.level, 1.0, 2.0, instance)
        self._load.start(job)

    def _leave(self, player: _Player, away_s: float) -> None:
        if player.job is not None:
            self._load.end(player.job)
        player.id, player.slot, player.ends_s, player.job = "", "", None, None
        player.next_s = self._clock() + away_s
