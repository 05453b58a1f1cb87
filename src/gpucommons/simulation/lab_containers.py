"""What the lab's containers use of the host: a function of the seconds since the start, one share each by its name."""

from zlib import crc32

from gpucommons.model.container_usage import ContainerUsage, ContainerUsageReading
from gpucommons.model.containers import ContainerReading
from gpucommons.simulation.scenario import wobble

_GIB = 2**30
_UPTIME_S = 7200.0


class LabContainerUsage:
    """Half a core to six cores and 4 to 36 GiB each; every second container has a limit of 64 GiB."""

    def __init__(self, containers: ContainerReading) -> None:
        self._containers = {id: c for id, c in containers.by_id.items() if c.state.has_processes}

    def at(self, elapsed_s: float) -> ContainerUsageReading:
        return ContainerUsageReading(
            {id: self._usage(c.name, c.runtime, elapsed_s) for id, c in self._containers.items()}
        )

    def _usage(self, name: str, runtime: str, elapsed_s: float) -> ContainerUsage:
        lot = crc32(name.encode())
        cores = 0.5 + lot % 56 / 10
        memory = (4 + lot % 33) * _GIB * (1 + 0.05 * wobble(elapsed_s, 71, lot % 7))
        limit = 64 * _GIB if lot % 2 else None
        return ContainerUsage(name, runtime, cores * (_UPTIME_S + elapsed_s), int(memory), limit)
