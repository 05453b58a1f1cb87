"""What a user gets does not fall with the number of programs that another user starts."""

import pytest

from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.scheduler.corun.facts import FIRST_MINUTE_RATIO
from gpucommons.scheduler.policy.state import Client
from scheduler.test_linked_gpus import GPUS, Node

OVER_S = 60.0


def share_and_longest_pause(node: Node, client: Client) -> tuple[float, float]:
    """The share of time in which a client runs, and the longest time for which it does not."""
    end_s, ran_s, longest_s, stopped_s = node.now + OVER_S, 0.0, 0.0, node.now
    while node.now < end_s:
        runs, since_s = client.id in client.gpu.turns.running, node.now
        node.run(min(0.01, end_s - node.now) + 1e-9)
        if runs:
            ran_s += node.now - since_s
            stopped_s = node.now
        longest_s = max(longest_s, node.now - stopped_s)
    return ran_s / OVER_S, longest_s


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 4, 16, 40])
def test_many_programs_of_one_user_get_what_one_program_of_another_gets(count: int) -> None:
    node = Node()
    bob = node.program(GPUS[0], "uid:1002")
    for _ in range(count):
        node.program(GPUS[0], "uid:1001")
    node.run(5.0)
    share, longest_s = share_and_longest_pause(node, bob)
    # Turns are not shorter than 0.05 s: very many programs cost the others a part.
    assert share == pytest.approx(0.5, abs=0.03) if count < 40 else share > 0.35
    assert longest_s < SchedulerSettings().max_pause_s


@pytest.mark.parametrize(
    ("settings", "others"), [(SchedulerSettings(), 1), (SchedulerSettings(fair_between="clients"), 3)]
)
def test_where_each_has_its_share_together_no_program_is_paused(settings: SchedulerSettings, others: int) -> None:
    """One program of each owner; or any programs, where each client counts for itself. No look is answered here: they
    take their budget of the first minute."""
    node = Node(settings)
    bob = node.program(GPUS[0], "uid:1002")
    for _ in range(others):
        node.program(GPUS[0], "uid:1001")
    node.run(5.0)
    share, longest_s = share_and_longest_pause(node, bob)
    assert share >= 1.0 - FIRST_MINUTE_RATIO
    assert longest_s <= 0.5
