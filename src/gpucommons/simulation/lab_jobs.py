"""The thirteen jobs on the lab's GPUs: their processes, GPUs, and utilisation by day and by night."""

from typing import NamedTuple

from gpucommons.model.process_identity import ProcessKey
from gpucommons.simulation import lab_turns
from gpucommons.simulation.lab_turns import Rota
from gpucommons.simulation.scenario import daylight, wobble


class LabJob(NamedTuple):
    """`by_night` and `by_day` are shares of its GPU or MIG instance.

    A job that takes turns on its GPU has a `rota`, and is idle while another client has the turn.
    """

    key: ProcessKey
    name: str
    gpu: int
    kind: str
    memory_gib: float
    by_night: float
    by_day: float
    cpu_cores: float
    rss_gib: float
    gpu_instance_id: int | None = None
    rota: Rota | None = None

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
    name: str,
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
    return LabJob(key, name, gpu, kind, memory_gib, by_night, by_day, cores, rss_gib, instance, rota)


JOBS: tuple[LabJob, ...] = (
    # One training job on three GPUs, day and night.
    *(_job(rank, f"python train.py --rank {rank}", rank, 118.0, 0.97, 0.94) for rank in range(3)),
    # A notebook that holds a whole GPU: loaded once, idle since.
    _job(3, "jupyter-kernel", 3, 38.0, 0.0, 0.0),
    # Two jobs that take turns on a GPU by day.
    _job(4, "python finetune.py", 4, 64.0, 0.1, 0.95, rota=lab_turns.FINETUNE),
    _job(5, "jupyter-kernel", 4, 22.0, 0.0, 0.85, rota=lab_turns.NOTEBOOK),
    # A service with its worker, and an evaluation that runs at night.
    _job(6, "python serve.py", 5, 58.0, 0.3, 0.9, kind="compute+mps", rota=lab_turns.SERVE),
    _job(7, "ray::worker", 5, 12.0, 0.1, 0.7, kind="mps", rota=lab_turns.WORKER),
    _job(8, "python eval.py", 5, 31.0, 0.9, 0.3, rota=lab_turns.EVALUATION),
    # Students on MIG devices.
    _job(9, "python assignment2.py", 6, 40.0, 0.02, 0.7, instance=1),
    _job(10, "jupyter-kernel", 6, 9.0, 0.0, 0.4, instance=5),
    _job(11, "python infer.py", 7, 13.0, 0.3, 0.8, instance=7),
    # A system service.
    _job(12, "ollama", 7, 8.0, 0.05, 0.45, instance=13),
)
