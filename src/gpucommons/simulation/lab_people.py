"""The users of scenario lab: six users in two groups, their batch jobs, and the commands that they run with leases."""

import pwd
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from gpucommons.model.names import short_command
from gpucommons.model.workloads import JobMappingReading, MappedJob, UserSlice, UsersReading
from gpucommons.simulation.day import daylight, wobble

# The users of scenario lab: six users in two groups, usage of their slices, and SSH sessions.


class Person(NamedTuple):
    """`cores` and `gib` are the usage of the user's slice; `sessions` are open in the afternoon."""

    name: str
    uid: int
    group: str
    cores: float
    gib: float
    sessions: int


# Simulated users have uids that no tool assigns, so that none is a user of this machine who tries the lab.
FIRST_UID: Final = 2_000_000_000
ALICE = Person("alice", FIRST_UID + 1, "vision", 9.0, 96.0, 2)
BOB = Person("bob", FIRST_UID + 2, "vision", 4.5, 52.0, 1)
CHEN = Person("chen", FIRST_UID + 3, "vision", 2.2, 24.0, 3)
DANA = Person("dana", FIRST_UID + 4, "students", 1.4, 18.0, 1)
EMEKA = Person("emeka", FIRST_UID + 5, "students", 0.2, 14.0, 0)
FARAH = Person("farah", FIRST_UID + 6, "students", 3.3, 21.0, 2)

PEOPLE = (ALICE, BOB, CHEN, DANA, EMEKA, FARAH)
OLLAMA_UID = FIRST_UID + 990
NAMES: Mapping[int, str] = {0: "root", OLLAMA_UID: "ollama", **{person.uid: person.name for person in PEOPLE}}
GROUP_OF: Mapping[str, str] = {person.name: person.group for person in PEOPLE}
MEMBERS: Mapping[str, frozenset[str]] = {
    group: frozenset(person.name for person in PEOPLE if person.group == group) for group in set(GROUP_OF.values())
}


class LabNames:
    """User names by uid: those of the lab, and those of the users of this machine who run commands in it."""

    def __init__(self) -> None:
        self.known: Mapping[int, str] = NAMES

    def see(self, uids: Iterable[int]) -> Mapping[int, str]:
        for uid in uids:
            if uid not in self.known:
                self.known = {**self.known, uid: _name_here(uid)}
        return self.known


def _name_here(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class LabUsers:
    """The reading of the users source. `container_uids` are the uids of the containers' first processes."""

    def __init__(self, container_uids: Mapping[str, int]) -> None:
        self._container_uids = container_uids

    def at(self, elapsed_s: float) -> UsersReading:
        by_day = daylight(elapsed_s)
        return UsersReading(
            names=NAMES,
            group_of=GROUP_OF,
            members=MEMBERS,
            slices=tuple(_slice(person, elapsed_s) for person in PEOPLE),
            ssh_sessions={p.name: count for p in PEOPLE if (count := round(p.sessions * by_day))},
            container_uids=self._container_uids,
        )


def _slice(person: Person, elapsed_s: float) -> UserSlice:
    memory = person.gib * 2**30 * (1 + 0.04 * wobble(elapsed_s, 71, person.uid))
    return UserSlice(person.name, person.group, person.cores * (7200 + elapsed_s), int(memory))


# The batch jobs of scenario lab, as Slurm's prolog maps them to MIG devices: one is active, one has not started.

SLURM_JOB = "48213"
# Its script still copies data: it holds its MIG device without a process on it.
IDLE_SLURM_JOB = "48220"

_MAPPING = JobMappingReading(
    {(6, 1): (MappedJob(SLURM_JOB),), (6, 6): (MappedJob(IDLE_SLURM_JOB, EMEKA.uid),)},
)


def jobs(elapsed_s: float) -> JobMappingReading:
    return _MAPPING


# The commands that users of the lab run with `gpucommons run`, again and again. There are more than free slots.

_FIRST_PID: Final = 5000


class LabRun(NamedTuple):
    """`first_s` is when it is first requested; then it runs for `runs_s`, and is requested again after `away_s`.

    It asks for `memory_gib` and a time limit, and uses less.
    """

    number: int
    person: Person
    command: str
    first_s: float
    runs_s: float
    away_s: float
    memory_gib: float
    level: float
    share: bool = False

    @property
    def pid(self) -> int:
        return _FIRST_PID + 53 * self.number

    @property
    def name(self) -> str:
        return f"{self.command} (simulated)"

    @property
    def program(self) -> str:
        """What other users see of it."""
        return f"{short_command(self.command.split(), self.command)} (simulated)"

    @property
    def limit_s(self) -> float:
        return 1.25 * self.runs_s

    @property
    def used_gib(self) -> float:
        return 0.6 * self.memory_gib

    @property
    def cgroup(self) -> str:
        uid = self.person.uid
        return f"0::/user.slice/user-{uid}.slice/session-{60 + self.number}.scope\n"


# Three MIG devices are free; two of these accept to share one that another program uses.
RUNS: Final = (
    LabRun(0, FARAH, "python sweep.py", 1.0, 70.0, 12.0, 12.0, 0.8),
    LabRun(1, CHEN, "python ablation.py", 2.0, 95.0, 15.0, 14.0, 0.7),
    LabRun(2, EMEKA, "python thesis.py", 3.0, 55.0, 10.0, 10.0, 0.5),
    LabRun(3, DANA, "python homework.py", 6.0, 60.0, 14.0, 10.0, 0.6),
    LabRun(4, BOB, "python profile.py", 9.0, 80.0, 20.0, 12.0, 0.9),
    LabRun(5, ALICE, "python tokenise.py", 4.0, 50.0, 30.0, 2.0, 0.3, share=True),
    LabRun(6, CHEN, "python metrics.py", 12.0, 65.0, 25.0, 3.0, 0.4, share=True),
)
