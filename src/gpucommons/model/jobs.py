"""One job in the ledger: what was billed to it, and what else is known of it.

A job is a Slurm job, a lease or a pod.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from gpucommons.model.accounts import Amounts
from gpucommons.model.usage import Account, Slot


class JobFigures(NamedTuple):
    """What is known of one job besides its amounts. None is not known.

    `peak_kib` is the highest memory on one slot at one sample. The idle time of which it is known what the job's
    processes did is `idle_seen_ns`; in `idle_cpu_ns` of it one of them kept a CPU core busy, in `idle_disk_ns` none
    did and one waited for a disk. `waited_ms` and `asked_kib` are those of a lease: its time in the queue, and the
    memory of each slot that it asked for.
    """

    first_s: int
    last_s: int
    peak_kib: int | None = None
    idle_seen_ns: int = 0
    idle_cpu_ns: int = 0
    idle_disk_ns: int = 0
    waited_ms: int | None = None
    asked_kib: int | None = None

    def merged(self, later: Self) -> "JobFigures":
        return JobFigures(
            min(self.first_s, later.first_s),
            max(self.last_s, later.last_s),
            max((peak for peak in (self.peak_kib, later.peak_kib) if peak is not None), default=None),
            self.idle_seen_ns + later.idle_seen_ns,
            self.idle_cpu_ns + later.idle_cpu_ns,
            self.idle_disk_ns + later.idle_disk_ns,
            self.waited_ms if self.waited_ms is not None else later.waited_ms,
            self.asked_kib if self.asked_kib is not None else later.asked_kib,
        )


@dataclass(frozen=True, slots=True)
class JobUsage:
    """All that was billed under the name of one job. `figures` is None where only an older release has billed it.

    `models` are the names of the GPUs' models, by the GPU's UUID.
    """

    name: str
    usage: Mapping[tuple[Slot, Account], Amounts]
    figures: JobFigures | None = None
    models: Mapping[str, str] = field(default_factory=dict)
