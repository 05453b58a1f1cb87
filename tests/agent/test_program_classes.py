"""Classes of programs under a whole agent: real processes on a fake GPU, orders and rules as users give them."""

import json

import pytest

from fakes.gpu.account import Phase
from fakes.shared_gpu import MATMUL, SharedProgram
from parsing import parsed
from shared_node import SharedNode, shared_node
from waiting import until

pytestmark = pytest.mark.long

CLASSES = "gpucommons_sharing_class_programs"


def class_of(node: SharedNode, program: SharedProgram) -> str:
    row = node.client(program)
    return "" if row is None else str(row["sharing_class"])


def test_a_background_program_waits_while_another_uses_the_gpu_and_goes_on_when_it_does_not() -> None:
    with shared_node() as node:
        background = node.program(MATMUL[8192], uid=20010)
        batch = node.program(MATMUL[8192], uid=20011)
        node.start_agent()
        node.wait_for(lambda: node.standing(background) and node.standing(batch), "they take part")
        node.scheduler("set-class", f"pid:{background.pid}", "background")
        node.wait_for(lambda: node.standing(background) == "waiting", "it waits")
        node.wait_for(lambda: node.reason() == "class_precedence", "the reason is shown")
        assert "it is of class background" in node.scheduler("explain", f"pid:{background.pid}")
        # The bar is 0.97 of its speed alone; a busy machine pauses later.
        node.wait_for_rates(lambda rates: rates.of(batch) >= 0.85 and 0.0 < rates.of(background) <= 0.1, 6.0)
        batch.end()
        node.wait_for(lambda: node.standing(background) == "running", "it runs")
        node.scheduler("set-class", f"pid:{background.pid}", "batch")
        node.wait_for(lambda: class_of(node, background) == "batch", "it is of class batch")


def test_a_latency_program_is_never_paused_and_others_are_held_back_while_it_works() -> None:
    """The CPU work of the fake program is that of its loop: it works all the time."""
    with shared_node() as node:
        server = node.program(MATMUL[512], uid=20010)
        trainers = [node.program(MATMUL[8192], uid=uid) for uid in (20011, 20011, 20012)]
        node.start_agent(sections='[sharing_quotas]\nserving = { uid = "20010", class = "latency" }\n')
        node.wait_for(lambda: class_of(node, server) == "latency", "the rule gives it its class")
        node.wait_for(lambda: any(trainer.locked for trainer in trainers), "the owners of the trainers take turns")
        status = json.loads(node.scheduler("status", "--json"))["turns"]
        (row,) = (one for one in status["clients"].values() if one["pid"] == server.pid)
        assert row["class_source"] == "config"
        assert "it is never paused" in row["class_sentence"]
        locks = server.program.locks
        node.shared.let_pass(6.0)
        assert server.program.locks == locks == 0, "it was paused"
        metrics = parsed(node.agent.get("/metrics")[1])
        of_class = {dict(labels)["class"]: value for (name, labels), value in metrics.items() if name == CLASSES}
        assert of_class == {"batch": 3, "latency": 1, "background": 0}


def test_a_resting_program_that_works_again_holds_a_background_one_back_before_a_reading_shows_it() -> None:
    with shared_node() as node:
        background = node.program(MATMUL[8192], uid=20010)
        returning = node.program(phases=[Phase(None)], uid=20011)
        returning.program.wait_for_user()
        node.start_agent()
        node.wait_for(lambda: node.standing(background) == "running", "it runs")
        node.wait_for(lambda: node.standing(returning) == "resting", "the other one rests")
        node.scheduler("set-class", f"pid:{background.pid}", "background")
        # The cell uses the CPU, and not yet the GPU.
        returning.program.run_cell(1.0)
        until(lambda: background.locked, "it is held back")
        until(lambda: not background.locked, "it runs again")
        assert node.standing(background) == "running", "the scheduler has not paused it"
