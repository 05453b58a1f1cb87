"""The jobs of a batch system on each GPU, from the mapping files that its prolog writes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class MappedJob(NamedTuple):
    """`uid` is that of the job's user if the file shows it: it does not if the prolog runs as root."""

    id: str
    uid: int | None = None


# The index of a GPU, and the GPU instance of a MIG device; None is the whole GPU.
JobPlace = tuple[int, int | None]


@dataclass(frozen=True, slots=True)
class JobMappingReading:
    """`problems` has one line for each file that could not be used completely."""

    jobs: Mapping[JobPlace, tuple[MappedJob, ...]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def ids(self, gpu_index: int, gpu_instance_id: int | None) -> tuple[str, ...]:
        return tuple(job.id for job in self.jobs.get((gpu_index, gpu_instance_id), ()))
