"""What each running container uses of the host's CPUs and memory at an instant. A container is its full id."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class ContainerUsage(NamedTuple):
    """`memory_bytes` leaves out file cache that can be dropped; `memory_limit_bytes` is None where there is none."""

    name: str
    runtime: str
    cpu_seconds: float | None
    memory_bytes: int | None
    memory_limit_bytes: int | None


@dataclass(frozen=True, slots=True)
class ContainerUsageReading:
    by_id: Mapping[str, ContainerUsage]
