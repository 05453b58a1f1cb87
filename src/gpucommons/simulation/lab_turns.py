"""The turns of scenario lab: on each of two GPUs the clients run one after the other, in a fixed round.

Each client's part of the round is fixed, so all its counts can be computed for any instant.
"""

from typing import NamedTuple

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

    def begun(self, elapsed_s: float) -> int:
        return int(self._up_s(elapsed_s) // self.round_s) + 1

    def ended(self, elapsed_s: float) -> int:
        return self.begun(elapsed_s) - self.has_turn(elapsed_s)

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
