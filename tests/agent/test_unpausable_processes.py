"""A process that cannot be paused does not free the other processes of its program, and costs its owner what it uses.

One user has three programs at work in one job, and another user has one program: each is due half of the GPU. In the
driver's time-slicing the one program has a quarter at most.
"""

from collections.abc import Iterator

import pytest

from fakes.gpu.account import Phase
from fakes.shared_gpu import MATMUL, SharedProgram
from shared_node import SharedNode, shared_node
from stopping import by_signal

pytestmark = pytest.mark.long

DENSE = MATMUL[8192]
USER = 20010
# 0.46 to 0.50 were measured, and 0.18 while one such process freed its whole program. A busy machine spoils windows.
DUE = 0.4
WINDOW_S = 10.0
WINDOWS = 4


@pytest.fixture
def node() -> Iterator[SharedNode]:
    with shared_node() as made:
        made.start_agent()
        yield made


def has_its_due(node: SharedNode, one: SharedProgram) -> None:
    rates = []
    for _ in range(WINDOWS):
        before = node.shared.works()
        node.shared.let_pass(WINDOW_S)
        rates.append(node.shared.rates_since(before).of(one))
        if rates[-1] >= DUE:
            return
    pytest.fail(f"its rates, where {DUE} is due: {rates}")


def test_a_stopped_process_in_a_job(node: SharedNode) -> None:
    for _ in range(3):
        node.program(DENSE, uid=USER, session=False)
    helper = node.program(phases=[Phase(None)], uid=USER, session=False)
    other = node.program(DENSE)
    node.wait_for(lambda: node.client(other) and node.way() == "turns", "they take turns")
    with by_signal(helper.pid, node.shared.calm):
        has_its_due(node, other)


def test_a_process_whose_queue_is_longer_than_any_timeout(node: SharedNode) -> None:
    first, *_ = (node.program(DENSE, uid=USER, session=False) for _ in range(3))
    other = node.program(DENSE)
    node.wait_for(lambda: node.client(other) and node.way() == "turns", "they take turns")
    first.program.drain_in(60.0)
    node.wait_for(lambda: f"pid {first.pid} cannot be paused: timeout" in node.scheduler("status"), "it is left alone")
    has_its_due(node, other)
