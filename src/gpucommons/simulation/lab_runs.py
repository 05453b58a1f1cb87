"""The commands that users of the lab run with `gpucommons run`, again and again. There are more than free slots."""

from typing import Final, NamedTuple

from gpucommons.simulation.lab_people import ALICE, BOB, CHEN, DANA, EMEKA, FARAH, Person

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
