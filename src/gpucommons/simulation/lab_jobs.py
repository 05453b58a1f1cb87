"""The jobs on the lab's GPUs: their processes, their turns, and what they do there by day and by night.

Without sharing, the load is a function of the time alone. How fast several programs on one GPU are is a model.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from gpucommons.model.gpu import DeviceActivity
from gpucommons.model.process_identity import ProcessKey
from gpucommons.simulation.day import daylight, wobble

# The turns of scenario lab: on each of two GPUs the clients run one after the other, in a fixed round.
#
# Each client's part of the round is fixed, so all its counts can be computed for any instant.

# How long the scheduler had been up when the run begins: whole rounds of both GPUs.
UPTIME_S = 3600.0
QUANTUM_S = 10.0
WINDOW_S = 20.0


class TurnPhase(NamedTuple):
    """What a client does now, since when, and for how much longer."""

    standing: str
    since_s: float
    left_s: float


class Rota(NamedTuple):
    """A client's round: it runs, is throttled if its quota is spent, and waits for its next turn."""

    offset_s: float
    run_s: float
    throttled_s: float
    wait_s: float

    @property
    def round_s(self) -> float:
        return self.run_s + self.throttled_s + self.wait_s

    def phase(self, elapsed_s: float) -> TurnPhase:
        at_s = self._up_s(elapsed_s) % self.round_s
        for standing, length_s in (("running", self.run_s), ("throttled", self.throttled_s), ("waiting", self.wait_s)):
            if at_s < length_s:
                return TurnPhase(standing, at_s, length_s - at_s)
            at_s -= length_s
        return TurnPhase("running", 0.0, self.run_s)

    def has_turn(self, elapsed_s: float) -> bool:
        return self.phase(elapsed_s).standing == "running"

    def waited_s(self, elapsed_s: float) -> float:
        """Since the request; the time in which it is throttled counts as well."""
        return self._up_s(elapsed_s) % self.round_s - self.run_s

    def count_begun(self, elapsed_s: float) -> int:
        return int(self._up_s(elapsed_s) // self.round_s) + 1

    def count_ended(self, elapsed_s: float) -> int:
        return self.count_begun(elapsed_s) - self.has_turn(elapsed_s)

    def ran_s(self, elapsed_s: float) -> float:
        """All of its turns, the current one included."""
        whole, part_s = divmod(self._up_s(elapsed_s), self.round_s)
        return whole * self.run_s + min(part_s, self.run_s)

    def _up_s(self, elapsed_s: float) -> float:
        return UPTIME_S + elapsed_s - self.offset_s


# GPU 4: a fine-tuning job uses its whole quantum, a notebook releases early.
FINETUNE = Rota(0.0, 10.0, 0.0, 6.0)
NOTEBOOK = Rota(10.0, 6.0, 0.0, 10.0)
# GPU 5: a service, its worker with a quota of a quarter of the window, and an evaluation job.
SERVE = Rota(0.0, 10.0, 0.0, 10.0)
WORKER = Rota(10.0, 5.0, 5.0, 10.0)
EVALUATION = Rota(15.0, 5.0, 0.0, 15.0)


# The thirteen jobs on the lab's GPUs: their processes, GPUs, and utilisation by day and by night.


class LabJob(NamedTuple):
    """`by_night` and `by_day` are shares of its GPU or MIG instance.

    `command` is its command line. Other users see its `name` alone, as the kernel has it: without arguments.
    A job that takes turns on its GPU has a `rota`, and is idle while another client has the turn.
    """

    key: ProcessKey
    command: str
    gpu: int
    kind: str
    memory_gib: float
    by_night: float
    by_day: float
    cpu_cores: float
    rss_gib: float
    gpu_instance_id: int | None = None
    rota: Rota | None = None

    @property
    def name(self) -> str:
        return self.command.split()[0][:15]

    def activity(self, elapsed_s: float) -> float:
        """The share of its GPU that it keeps busy now, 0 to 1."""
        return self.level(elapsed_s) if self.rota is None or self.rota.has_turn(elapsed_s) else 0.0

    def level(self, elapsed_s: float) -> float:
        """The share that it would keep busy if it had the turn."""
        if not (self.by_night or self.by_day):
            return 0.0
        level = self.by_night + (self.by_day - self.by_night) * daylight(elapsed_s)
        level += 0.06 * wobble(elapsed_s, 23 + self.key.pid % 17, self.key.pid)
        return min(max(level, 0.0), 1.0)

    def memory_bytes(self, elapsed_s: float) -> int:
        """Varies in steps of 64 MiB around its size, as an allocator does."""
        steps = round(8 * wobble(elapsed_s, 61, self.key.pid))
        return max(int(self.memory_gib * 2**30) + steps * 2**26, 2**28)


def _job(
    number: int,
    command: str,
    gpu: int,
    memory_gib: float,
    by_night: float,
    by_day: float,
    *,
    kind: str = "compute",
    instance: int | None = None,
    rota: Rota | None = None,
) -> LabJob:
    # Started at boot: no process may be younger than a reading, however recently the real machine was booted.
    key = ProcessKey(4100 + 53 * number, 10 + number)
    busiest = max(by_night, by_day)
    cores, rss_gib = 0.5 + 3 * busiest, 4 + memory_gib / 4
    return LabJob(key, command, gpu, kind, memory_gib, by_night, by_day, cores, rss_gib, instance, rota)


JOBS: tuple[LabJob, ...] = (
    # One training job on three GPUs, day and night.
    *(_job(rank, f"python train.py --rank {rank}", rank, 118.0, 0.97, 0.94) for rank in range(3)),
    # A notebook that holds a whole GPU: loaded once, idle since.
    _job(3, "jupyter-kernel", 3, 38.0, 0.0, 0.0),
    # Two jobs that take turns on a GPU by day.
    _job(4, "python finetune.py", 4, 64.0, 0.1, 0.95, rota=FINETUNE),
    _job(5, "jupyter-kernel", 4, 22.0, 0.0, 0.85, rota=NOTEBOOK),
    # A service with its worker, and an evaluation that runs at night.
    _job(6, "python serve.py", 5, 58.0, 0.3, 0.9, kind="compute+mps", rota=SERVE),
    _job(7, "ray::worker", 5, 12.0, 0.1, 0.7, kind="mps", rota=WORKER),
    _job(8, "python eval.py", 5, 31.0, 0.9, 0.3, rota=EVALUATION),
    # Students on MIG devices.
    _job(9, "python assignment2.py", 6, 40.0, 0.02, 0.7, instance=1),
    _job(10, "jupyter-kernel", 6, 9.0, 0.0, 0.4, instance=5),
    _job(11, "python infer.py", 7, 13.0, 0.3, 0.8, instance=7),
    # A system service.
    _job(12, "ollama", 7, 8.0, 0.05, 0.45, instance=13),
)


# A model of programs on one GPU: how fast each is while several run, and how active they keep it. Pure.
#
# A program that runs alone keeps the GPU at its own activity. Programs that run together are slowed down by the
# driver's time-slicing: each by the GPU's overbooking and by what switching between them costs. Progress is additive in
# activity, as measured on an H200.


class GpuLoad(NamedTuple):
    """A program that has the GPU for itself: its activity, and the share of time in which one of its kernels runs."""

    activity: DeviceActivity
    kernels: float

    def at_level(self, kernels: float) -> "GpuLoad":
        """The same kind of work with another share of time."""
        part = kernels / self.kernels
        return GpuLoad(DeviceActivity(*(min(1.0, part * value) for value in self.activity.work)), kernels)


# As measured on an H200 for loops of matrix products of n x n in bf16.
MATRIX_LOADS: Final[Mapping[int, GpuLoad]] = {
    8192: GpuLoad(DeviceActivity(0.932, 0.830, 0.22), 0.97),
    4096: GpuLoad(DeviceActivity(0.789, 0.637, 0.23), 0.87),
    2048: GpuLoad(DeviceActivity(0.720, 0.470, 0.05), 0.93),
    1536: GpuLoad(DeviceActivity(0.357, 0.205, 0.00), 0.58),
    1024: GpuLoad(DeviceActivity(0.142, 0.056, 0.00), 0.34),
    512: GpuLoad(DeviceActivity(0.068, 0.008, 0.00), 0.26),
}


def overbooking(loads: Sequence[GpuLoad]) -> float:
    """1 where the kernels of all fit into the time."""
    return max(1.0, sum(load.kernels for load in loads))


def speeds(loads: Sequence[GpuLoad], efficiency: float) -> tuple[float, ...]:
    """The speed of each program, as a share of its speed alone, while these run together.

    `efficiency` is what is left of a program without gaps between its kernels: dense programs lose by switches of
    context, light ones hardly.
    """
    if len(loads) <= 1:
        return (1.0,) * len(loads)
    overbooked = overbooking(loads)
    return tuple((1.0 - (1.0 - efficiency) * load.kernels) / overbooked for load in loads)


# What the jobs of the lab do on its GPUs. Without sharing it is a function of the time alone.

# Training and inference of the lab, at full load.
DENSE: Final = GpuLoad(DeviceActivity(0.95, 0.62, 0.27), 1.0)


class JobUse(NamedTuple):
    """A job's part of its GPU: the share of time in which its kernels run, and the activity that is due to it."""

    busy: float = 0.0
    sm: float = 0.0
    tensor: float = 0.0
    dram: float = 0.0


class LabLoad(Protocol):
    """What the jobs do. `memory_bytes` is on the GPU, without the driver's context; `resident_bytes` on the host."""

    def jobs(self) -> Sequence[LabJob]: ...
    def use(self, job: LabJob, elapsed_s: float) -> JobUse: ...
    def memory_bytes(self, job: LabJob, elapsed_s: float) -> int: ...
    def cpu_seconds(self, job: LabJob, elapsed_s: float) -> float: ...
    def resident_bytes(self, job: LabJob, elapsed_s: float) -> int: ...


def job_use(load: GpuLoad) -> JobUse:
    return JobUse(load.kernels, *load.activity.work)


def total_use(uses: Sequence[JobUse]) -> JobUse:
    """At most the whole GPU."""
    return JobUse(*(min(1.0, sum(values)) for values in zip(*uses, strict=True))) if uses else JobUse()


class FixedLoad:
    """The jobs run as they like, and take the turns of their fixed rounds."""

    def jobs(self) -> Sequence[LabJob]:
        return JOBS

    def use(self, job: LabJob, elapsed_s: float) -> JobUse:
        return job_use(DENSE.at_level(job.activity(elapsed_s)))

    def memory_bytes(self, job: LabJob, elapsed_s: float) -> int:
        return job.memory_bytes(elapsed_s)

    def cpu_seconds(self, job: LabJob, elapsed_s: float) -> float:
        return job.cpu_cores * (1800 + elapsed_s)

    def resident_bytes(self, job: LabJob, elapsed_s: float) -> int:
        return int(job.rss_gib * 2**30)
