"""Which GPUs should get no new work: those that are lost or must be reset. Pure.

Slurm's health check and Kubernetes' devices and node condition use this one judgement. A false alarm takes a GPU from
its users, so a fault counts after two readings that show it, and ends after a minute of readings without it. While the
GPUs cannot be read, the judgement stays as it is.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gpucommons.model.gpu import GpuReading
from gpucommons.model.problems import FAULT_KINDS, HealthLevel, Problem
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.problems import own_problems

_READINGS_TO_BEGIN: Final = 2
_GONE_FOR_S: Final = 60.0


def is_fault(problem: Problem) -> bool:
    """Whether the GPU of this problem should get no new work. Heat, slow clocks and XIDs alone do not take it away."""
    return problem.kind in FAULT_KINDS and problem.level >= HealthLevel.CRITICAL and problem.gpu_uuid is not None


class GpuFaults:
    """The faults in force, kept current by one call per snapshot."""

    def __init__(self) -> None:
        self.by_key: Mapping[str, Problem] = MappingProxyType({})
        self._reading: GpuReading | None = None
        self._seen: dict[str, int] = {}
        self._last_seen_s: dict[str, float] = {}

    def observe(self, snapshot: Snapshot) -> bool:
        """Returns whether the faults in force have changed."""
        reading = snapshot.readings.gpus
        if reading is None or reading is self._reading:
            return False
        self._reading = reading
        shown = {problem.key: problem for problem in own_problems(snapshot) if is_fault(problem)}
        self._seen = {key: self._seen.get(key, 0) + 1 for key in shown}
        self._last_seen_s |= dict.fromkeys(shown, snapshot.monotonic_s)
        # The sentence at the beginning stays: a count in it that grows is not another fault.
        now = {
            key: problem
            for key, problem in self.by_key.items()
            if snapshot.monotonic_s - self._last_seen_s[key] < _GONE_FOR_S
        }
        now |= {
            key: problem for key, problem in shown.items() if key not in now and self._seen[key] >= _READINGS_TO_BEGIN
        }
        self._last_seen_s = {key: at_s for key, at_s in self._last_seen_s.items() if key in now or key in shown}
        changed = now.keys() != self.by_key.keys()
        if changed:
            self.by_key = MappingProxyType(now)
        return changed

    @property
    def gpu_uuids(self) -> frozenset[str]:
        return frozenset(problem.gpu_uuid for problem in self.by_key.values() if problem.gpu_uuid is not None)
