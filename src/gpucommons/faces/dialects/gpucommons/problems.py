"""gpucommons_problems: what the agent itself judges to be wrong, by kind."""

from collections import Counter
from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.rules.problems import ProblemKind, own_problems

PROBLEMS = gauge(
    "gpucommons_problems",
    "Number of problems of a kind that the agent sees now; absent where the kind cannot be judged.",
    "kind",
)

CATALOGUE = (PROBLEMS,)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    found = Counter(problem.kind for problem in own_problems(snapshot))
    yield PROBLEMS.of(((kind.value,), found[kind]) for kind in ProblemKind if _is_judged(kind, snapshot.readings))


def _is_judged(kind: ProblemKind, readings: Readings) -> bool:
    if kind is ProblemKind.ALERT:
        return False
    if kind is ProblemKind.SOURCE_FAILING:
        return True
    if kind is ProblemKind.LEDGER:
        return readings.ledger is not None
    if kind is ProblemKind.HELD_IDLE:
        return readings.slots is not None
    return readings.gpus is not None
