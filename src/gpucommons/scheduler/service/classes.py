"""Which programs the pauser holds back for which others, by their classes. Programs are named to it as groups.

On each GPU there are two groups. In the first, programs of class latency guard and the others yield: these are held
back while one of the former works. Of several others, one stays, each for a second in turn, owner by owner: a server
leaves the GPU idle between its kernels, and trainers that all stood still lost a quarter of their throughput by this.
The server then shares the GPU with one program instead of all. In the second group, programs of class background yield
to every resting program of another class: one that returns is noticed by its CPU time, before a reading of the GPU
shows it.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from gpucommons.model.process_identity import ProcessKey
from gpucommons.model.words import SharingClass
from gpucommons.scheduler.policy.state import Client, ClientStanding

# How much of the time a program that rests may hold background ones back: the CPU work of one that does not use the GPU
# costs them no more.
_RETURN_SHARE_PERCENT: Final = 20
# For so long one of the programs that yield to class latency stays on the GPU, then the next one.
_STAYS_S: Final = 1.0


class Role(NamedTuple):
    """What one process is in one group: a guard, with its share of the time, or a program that yields (None)."""

    group: str
    share_percent: int | None = None


class Grouped(NamedTuple):
    """A program that may be named: its client, and its processes."""

    client: Client
    processes: AbstractSet[ProcessKey]


def roles(programs: Iterable[Grouped], now_s: float) -> Mapping[ProcessKey, frozenset[Role]]:
    """What each process is, where it is named at all: a group without guards, or without others, has no members."""
    by_gpu: dict[str, list[Grouped]] = {}
    for program in programs:
        by_gpu.setdefault(program.client.gpu.key, []).append(program)
    by_process: dict[ProcessKey, set[Role]] = {}
    for gpu, members in by_gpu.items():
        latency = [program for program in members if _guards(program.client, now_s)]
        others = [program for program in members if program not in latency and _competes(program.client)]
        _add(
            by_process,
            f"{gpu}/latency",
            [(program, _share_percent(program.client)) for program in latency],
            _yielding(others, now_s),
        )
        background = [program for program in others if program.client.sharing_class is SharingClass.BACKGROUND]
        resting = [program for program in members if program not in background and not _competes(program.client)]
        _add(by_process, f"{gpu}/background", [(program, _RETURN_SHARE_PERCENT) for program in resting], background)
    return {process: frozenset(of_process) for process, of_process in by_process.items()}


def _guards(client: Client, now_s: float) -> bool:
    return client.sharing_class is SharingClass.LATENCY and not client.gpu.phases.coruns.is_over_share(
        client.owner, now_s
    )


def _competes(client: Client) -> bool:
    return client.standing is not ClientStanding.IDLE


def _yielding(others: list[Grouped], now_s: float) -> list[Grouped]:
    """The programs without the one that stays: of those that run now, those of each owner in turn."""
    running: dict[str, list[Grouped]] = {}
    for program in sorted(others, key=lambda program: program.client.id):
        if (
            program.client.standing is ClientStanding.RUNNING
            and program.client.sharing_class is not SharingClass.BACKGROUND
        ):
            running.setdefault(program.client.owner, []).append(program)
    if sum(map(len, running.values())) < 2:
        return others
    turn, owner_at = divmod(int(now_s / _STAYS_S), len(running))
    of_owner = running[sorted(running)[owner_at]]
    stays = of_owner[turn % len(of_owner)]
    return [program for program in others if program is not stays]


def _share_percent(client: Client) -> int:
    return round(100 * client.gpu.phases.coruns.latency_share(client.owner))


def _add(
    by_process: dict[ProcessKey, set[Role]], group: str, guards: list[tuple[Grouped, int]], yielding: list[Grouped]
) -> None:
    if not guards or not yielding:
        return
    for program, share_percent in guards:
        for process in program.processes:
            by_process.setdefault(process, set()).add(Role(group, share_percent))
    for program in yielding:
        for process in program.processes:
            by_process.setdefault(process, set()).add(Role(group))
