"""A limit that is set for a pid, such as `pid:4711`, is for one process: it ends when another has the pid. Pure."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from gpucommons.model.process_identity import ProcessKey
from gpucommons.scheduler.programs.jobs import GpuUser


class PidTargets:
    def __init__(self) -> None:
        # The process that each target means: that of the last reading, and for a target with a limit the last one seen.
        self._processes: dict[str, ProcessKey] = {}

    def see(self, targets: AbstractSet[str], processes: Iterable[GpuUser]) -> list[str]:
        """One reading, and the targets that have a limit. Returns the targets whose process has ended."""
        seen = {f"pid:{process.pid}": process.key for process in processes if process.key is not None}
        ended = [one for one in targets if one in seen and self._processes.get(one, seen[one]) != seen[one]]
        self._processes = {one: key for one, key in self._processes.items() if one in targets} | seen
        return ended
