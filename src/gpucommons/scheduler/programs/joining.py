"""Which programs compete for the GPU now, and which GPUs are one queue because of them. Pure."""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from gpucommons.model.process_identity import ProcessKey
from gpucommons.scheduler.programs.jobs import Program, ProgramActivity

# Which programs compete for the GPU now. Pure: a state machine per program, fed with readings and ended turns.
#
# A joined program takes turns: it is paused while others run. A resting program is not paused and takes no turns.
#
# 1. A program joins when it uses the GPU. Before that it rests. Where turns are taken, or owners compete and programs
#    of one of them come and go, it joins as soon as it is seen: the driver's first sample of a process comes up to a
#    second later, and an owner that keeps starting programs would have the GPU for that second each time. If it does
#    not use its first turn, it rests.
# 2. A joined program rests when it was idle for a whole turn of its own while others waited, or in the readings of
#    IDLE_RESTS_S in which it was not paused.
# 3. A resting program joins again at the first reading that shows it use the GPU: within 2 s, for readings each second.
# 4. Unknown is not idle: a program whose activity cannot be measured joins, and a turn of unknown activity does not
#    make it rest. If it rests after an idle turn, it joins again after a second, to be measured in a turn.
# 5. A program that is not in a reading has ended, unless the processes of one of its GPUs could not be listed.
# 6. A program without any process in common with the last reading is a new one: its key may be that of a session id or
#    pid that was used before.
#
# An idle reading of a program that was paused since the last one proves nothing: it is idle by force.

# With a reading each second, a program of unknown activity is back within 2 s.
UNKNOWN_RESTS_S: Final = 1.0
# Longer than the time between two bursts of a notebook or a server that is in use.
IDLE_RESTS_S: Final = 8.0


class Standing(StrEnum):
    JOINED = "joined"
    RESTING = "resting"


class ProgramTurn(NamedTuple):
    """A turn that ended: what the program did in it, from beginning to end, and whether others waited throughout."""

    begin_s: float
    end_s: float
    activity: ProgramActivity
    others_waited: bool


class Observation(NamedTuple):
    """One program in one reading. `as_of_s` is when the GPUs were read; `ran`: it was not paused since the last one;
    `contested`: turns are taken on its GPU, or programs come and go there."""

    processes: AbstractSet[ProcessKey]
    devices: tuple[str, ...]
    activity: ProgramActivity
    as_of_s: float
    ran: bool = False
    contested: bool = False


@dataclass(frozen=True, slots=True)
class ProgramStanding:
    """`since_s` is when it joined or began to rest, `used_s` the last reading that showed it use the GPU, `idle_s` the
    first of those since then that showed it idle although it was not paused."""

    processes: AbstractSet[ProcessKey]
    devices: tuple[str, ...]
    standing: Standing
    since_s: float
    used_s: float | None = None
    idle_s: float | None = None

    @property
    def joined(self) -> bool:
        return self.standing is Standing.JOINED


def judge_reading(before: ProgramStanding | None, seen: Observation, now_s: float) -> ProgramStanding:
    """What a program is after a reading."""
    used_s = seen.as_of_s if seen.activity is ProgramActivity.ACTIVE else None
    if before is None or not before.processes & seen.processes:
        idle = seen.activity is ProgramActivity.IDLE and not seen.contested
        standing = Standing.RESTING if idle else Standing.JOINED
        return ProgramStanding(seen.processes, seen.devices, standing, now_s, used_s)
    used_s = before.used_s if used_s is None else used_s
    idle_s = None
    if seen.activity is ProgramActivity.IDLE and seen.ran:
        idle_s = seen.as_of_s if before.idle_s is None else before.idle_s
    after = replace(before, processes=seen.processes, devices=seen.devices, used_s=used_s, idle_s=idle_s)
    if before.joined and idle_s is not None and seen.as_of_s - idle_s >= IDLE_RESTS_S:
        return replace(after, standing=Standing.RESTING, since_s=now_s)
    if before.joined or not _joins_again(before, seen):
        return after
    return replace(after, standing=Standing.JOINED, since_s=now_s)


def judge_turn(before: ProgramStanding, turn: ProgramTurn) -> ProgramStanding:
    """What a program is after a turn of its own."""
    idle = turn.activity is ProgramActivity.IDLE and turn.others_waited
    # A turn that began before it joined, or in which a reading showed it active, was not idle from beginning to end.
    disproved = turn.begin_s < before.since_s or (before.used_s is not None and before.used_s > turn.begin_s)
    if not before.joined or not idle or disproved:
        return before
    return replace(before, standing=Standing.RESTING, since_s=turn.end_s)


def _joins_again(before: ProgramStanding, seen: Observation) -> bool:
    rested_s = seen.as_of_s - before.since_s
    if seen.activity is ProgramActivity.UNKNOWN:
        return rested_s >= UNKNOWN_RESTS_S
    # A reading from before it began to rest proves nothing about the time since.
    return seen.activity is ProgramActivity.ACTIVE and rested_s > 0


class ProgramRoster:
    """The memberships of all programs, by key."""

    def __init__(self) -> None:
        self._members: dict[str, ProgramStanding] = {}

    @property
    def members(self) -> Mapping[str, ProgramStanding]:
        return self._members

    def see(
        self,
        programs: Iterable[Program],
        as_of_s: float,
        now_s: float,
        unlisted: AbstractSet[str] = frozenset(),
        ran: AbstractSet[str] = frozenset(),
        contested: AbstractSet[str] = frozenset(),
    ) -> Mapping[str, ProgramStanding]:
        """Take in one reading: the programs that take part. Without a reading, do not call: all would have ended.

        `unlisted` are devices whose processes could not be read; `ran` the keys of programs that were not paused since
        the last reading; `contested` devices on which a new program joins as soon as it is seen.
        """
        hidden = {key: member for key, member in self._members.items() if not unlisted.isdisjoint(member.devices)}
        now = {
            program.key: judge_reading(
                self._members.get(program.key),
                Observation(
                    program.process_keys,
                    program.devices,
                    program.activity,
                    as_of_s,
                    program.key in ran,
                    not contested.isdisjoint(program.devices),
                ),
                now_s,
            )
            for program in programs
        }
        self._members = {**hidden, **now}
        return self._members

    def end_turn(self, key: str, turn: ProgramTurn) -> ProgramStanding | None:
        """None where the program has ended."""
        before = self._members.get(key)
        if before is not None:
            self._members[key] = judge_turn(before, turn)
        return self._members.get(key)


# Which GPUs are one queue: a program on several GPUs runs on all of them at once or not at all. Pure.


class LinkedGpus(NamedTuple):
    """Devices that form one queue, in order, and the keys of the programs on them. `id` is the first device."""

    id: str
    devices: tuple[str, ...]
    programs: tuple[str, ...]


def linked_gpus(programs: Iterable[Program], devices: Iterable[str] = ()) -> tuple[LinkedGpus, ...]:
    """All queues, by id. Each of `devices` that no program is on is a queue of its own.

    The result depends on the sets of programs and devices only, not on their order.
    """
    parents: dict[str, str] = {device: device for device in devices}
    of_program = {program.key: program.devices for program in programs}
    for connected in of_program.values():
        for device in connected:
            parents.setdefault(device, device)
            # The root is the lowest name in the queue, which is the queue's id.
            low, high = sorted((_root(parents, connected[0]), _root(parents, device)))
            parents[high] = low
    queues: dict[str, tuple[list[str], list[str]]] = {}
    for device in sorted(parents):
        queues.setdefault(_root(parents, device), ([], []))[0].append(device)
    for key, connected in sorted(of_program.items()):
        queues[_root(parents, connected[0])][1].append(key)
    return tuple(LinkedGpus(id, tuple(devices), tuple(keys)) for id, (devices, keys) in queues.items())


def _root(parents: Mapping[str, str], device: str) -> str:
    while parents[device] != device:
        device = parents[device]
    return device
