"""The log has one line for the beginning of a problem and one for its end."""

import pytest

from demo_node import DemoNode
from gpucommons.agent.parts import ProblemLog
from gpucommons.model.snapshot import Readings
from played import snapshot_of


def test_a_problem_is_logged_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    well, ill = DemoNode(), DemoNode(lost=7)
    seen = ProblemLog()
    caplog.set_level("INFO")

    def at(node: DemoNode, second: float) -> list[str]:
        caplog.clear()
        readings = Readings(gpus=node.gpu_reading(second))
        seen.observe(snapshot_of(readings, second)._replace(sources={}))
        return [line for line in caplog.messages if "is lost" in line]

    assert at(well, 0) == []
    (begun,) = at(ill, 1)
    assert begun.startswith("problem: GPU 7 is lost")
    assert at(ill, 2) == []
    assert at(well, 3) == [], "a problem that returns within a minute has not ended"
    (ended,) = at(well, 70)
    assert ended.startswith("problem ended: GPU 7 is lost")
    assert at(well, 71) == []
