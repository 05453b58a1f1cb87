"""The users of scenario lab: six users in two groups, usage of their slices, and SSH sessions."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpucommons.model.workloads import UserSlice, UsersReading
from gpucommons.simulation.scenario import daylight, wobble


class Person(NamedTuple):
    """`cores` and `gib` are the usage of the user's slice; `sessions` are open in the afternoon."""

    name: str
    uid: int
    group: str
    cores: float
    gib: float
    sessions: int


ALICE = Person("alice", 1001, "vision", 9.0, 96.0, 2)
BOB = Person("bob", 1002, "vision", 4.5, 52.0, 1)
CHEN = Person("chen", 1003, "vision", 2.2, 24.0, 3)
DANA = Person("dana", 1004, "students", 1.4, 18.0, 1)
EMEKA = Person("emeka", 1005, "students", 0.2, 14.0, 0)
FARAH = Person("farah", 1006, "students", 3.3, 21.0, 2)

PEOPLE = (ALICE, BOB, CHEN, DANA, EMEKA, FARAH)
OLLAMA_UID = 990
NAMES: Mapping[int, str] = {0: "root", OLLAMA_UID: "ollama", **{person.uid: person.name for person in PEOPLE}}
GROUP_OF: Mapping[str, str] = {person.name: person.group for person in PEOPLE}
MEMBERS: Mapping[str, frozenset[str]] = {
    group: frozenset(person.name for person in PEOPLE if person.group == group) for group in set(GROUP_OF.values())
}


class LabNames:
    """User names by uid, always known."""

    known: Mapping[int, str] = NAMES

    def see(self, uids: Iterable[int]) -> Mapping[int, str]:
        return self.known


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
