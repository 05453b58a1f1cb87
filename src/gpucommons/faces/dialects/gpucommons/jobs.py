"""gpucommons_job_*: what each batch job, lease or pod uses of its GPUs, and Slurm's jobs of the host.

The label is `job_id`: Prometheus gives `job` to the scrape. Series end with the job.
"""

from collections.abc import Callable, Iterator

from gpucommons.faces.exposition.families import Family, Metric, counter, gauge, sum_points
from gpucommons.model.allocations import Allocation
from gpucommons.model.ownership import WHOLE_SM
from gpucommons.model.snapshot import Snapshot
from gpucommons.model.workloads import JobHostUse
from gpucommons.rules.placement import memory_shares

_ON_SLOT = ("job_id", "user", "slot", "uuid")

SM = gauge(
    "gpucommons_job_gpu_sm_ratio",
    "Share of a slot's SM time that a job uses, 0 to 1; 0 if it holds the slot without a process.",
    *_ON_SLOT,
)
MEMORY = gauge("gpucommons_job_gpu_memory_bytes", "GPU memory that a job uses on a slot.", *_ON_SLOT)
TOTAL = gauge("gpucommons_job_gpu_memory_total_bytes", "GPU memory of a slot that a job holds.", *_ON_SLOT)
SHARE = gauge(
    "gpucommons_job_gpu_memory_share_bytes", "GPU memory that goes with the shards of a Slurm job.", *_ON_SLOT
)
CPUS = gauge("gpucommons_job_cpus", "CPUs that Slurm gave to a job on this node.", "job_id")
CPU_SECONDS = counter("gpucommons_job_cpu_seconds_total", "CPU time of a Slurm job on this node.", "job_id")
HOST_MEMORY = gauge(
    "gpucommons_job_memory_bytes", "Host memory of a Slurm job without reclaimable file cache.", "job_id"
)
HOST_LIMIT = gauge("gpucommons_job_memory_limit_bytes", "Host memory that Slurm gave to a job on this node.", "job_id")
RUN = gauge("gpucommons_job_run_seconds", "Time since a Slurm job began on this node.", "job_id")

CATALOGUE = (SM, MEMORY, TOTAL, SHARE, CPUS, CPU_SECONDS, HOST_MEMORY, HOST_LIMIT, RUN)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    readings = snapshot.readings
    held = () if readings.allocations is None else readings.allocations.allocations
    rows = [
        (_labels(allocation), allocation)
        for allocation in held
        if allocation.account.job and not allocation.is_access_only
    ]
    yield SM.of(
        sum_points(
            (labels, _sm_ratio(allocation))
            for labels, allocation in rows
            if not allocation.processes or allocation.sm is not None
        )
    )
    yield MEMORY.of(
        sum_points(
            (labels, allocation.memory_bytes or 0)
            for labels, allocation in rows
            if not allocation.processes or allocation.memory_bytes is not None
        )
    )
    totals = {
        status.slot.uuid: status.memory_total_bytes for status in (readings.slots.slots if readings.slots else ())
    }
    yield TOTAL.of(
        {
            labels: total for labels, allocation in rows if (total := totals.get(allocation.slot.uuid)) is not None
        }.items()
    )
    shares = memory_shares(readings)
    given = ((labels, shares.get((allocation.account.job, allocation.slot.gpu_uuid))) for labels, allocation in rows)
    yield SHARE.of({labels: share.bytes for labels, share in given if share is not None}.items())
    if readings.job_hosts is None:
        return
    by_id = readings.job_hosts.by_id

    def of_hosts(metric: Metric, value: Callable[[JobHostUse], float | None]) -> Family:
        numbers = ((id, value(use)) for id, use in by_id.items())
        return metric.of(((id,), number) for id, number in numbers if number is not None)

    yield of_hosts(CPUS, lambda use: use.cpus)
    yield of_hosts(CPU_SECONDS, lambda use: use.cpu_seconds)
    yield of_hosts(HOST_MEMORY, lambda use: use.memory_bytes)
    yield of_hosts(HOST_LIMIT, lambda use: use.memory_limit_bytes)
    yield of_hosts(RUN, lambda use: use.run_s)


def _labels(allocation: Allocation) -> tuple[str, str, str, str]:
    return allocation.account.job, allocation.account.user, allocation.slot.name, allocation.slot.uuid


def _sm_ratio(allocation: Allocation) -> float:
    return 0.0 if allocation.sm is None else allocation.sm / WHOLE_SM
