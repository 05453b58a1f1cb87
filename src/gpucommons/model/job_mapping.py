"""Which jobs of a batch system were given which GPU, by the mapping files that its prolog writes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class MappedJob(NamedTuple):
    """`uid` is the user's where the file tells it: a prolog that runs as root leaves it unknown."""

    id: str
    uid: int | None = None


# A GPU by its index, and the GPU instance of a MIG device; None stands for the whole GPU.
JobPlace = tuple[int, int | None]


@dataclass(frozen=True, slots=True)
class JobMappingReading:
    """`problems` has one line for each file that could not be used, or not entirely."""

    jobs: Mapping[JobPlace, tuple[MappedJob, ...]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def ids(self, gpu_index: int, gpu_instance_id: int | None) -> tuple[str, ...]:
        return tuple(job.id for job in self.jobs.get((gpu_index, gpu_instance_id), ()))
