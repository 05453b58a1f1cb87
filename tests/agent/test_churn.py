"""An owner that keeps starting programs, with real processes under a whole agent: the steady owner keeps its share."""

import time

import pytest

from fakes.shared_gpu import MATMUL, SharedProgram
from shared_node import SharedNode, shared_node

pytestmark = pytest.mark.long

STEADY, CHURNING = 20010, 20011
SETTLE_S, MEASURED_S = 14.0, 16.0


class Churn:
    """A program every so often, each for so long."""

    def __init__(self, node: SharedNode, every_s: float, life_s: float) -> None:
        self._node = node
        self._every_s = every_s
        self._life_s = life_s
        self._living: list[tuple[float, SharedProgram]] = []

    def go_on(self, seconds: float) -> None:
        end_s = start_s = time.monotonic()
        end_s += seconds
        while (now_s := time.monotonic()) < end_s:
            while self._living and self._living[0][0] <= now_s:
                self._living.pop(0)[1].end()
            if now_s >= start_s:
                program = self._node.program(MATMUL[8192], uid=CHURNING)
                self._living.append((now_s + self._life_s, program))
                start_s = max(now_s, start_s + self._every_s)
            time.sleep(0.02)


# Two programs of the other owner at any time, four and eight.
@pytest.mark.parametrize(("every_s", "life_s"), [(0.5, 1.0), (1.0, 4.0), (0.5, 4.0)])
def test_an_owner_that_keeps_starting_programs_does_not_starve_another(every_s: float, life_s: float) -> None:
    with shared_node() as node:
        steady = node.program(MATMUL[8192], uid=STEADY)
        node.start_agent()
        node.wait_for(lambda: node.standing(steady), "it takes part")
        churn = Churn(node, every_s, life_s)
        churn.go_on(SETTLE_S)
        before = node.shared.works()
        churn.go_on(MEASURED_S)
        share = node.shared.rates_since(before).of(steady)
        assert share >= 0.45, share
