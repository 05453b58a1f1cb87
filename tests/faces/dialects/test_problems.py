"""gpucommons_problems: the agent's problems by kind; a kind that cannot be judged is absent, not 0."""

from demo_node import DemoNode
from faces.dialects.test_ds01 import value
from gpucommons.faces.dialects.gpucommons import GPUCOMMONS
from gpucommons.faces.exposition.exposition import Exposition
from gpucommons.model.snapshot import Readings
from parsing import Series, parsed
from played import snapshot_of


def series(readings: Readings) -> Series:
    exposition = Exposition(lambda: snapshot_of(readings), [GPUCOMMONS])
    return parsed(exposition.metrics(None, False, gzip=False)[0].decode())


def test_problems_are_counted_by_kind() -> None:
    found = series(Readings(gpus=DemoNode(lost=7, hot=5).gpu_reading(0.0)))
    assert value(found, "gpucommons_problems", kind="gpu_lost") == 1
    assert value(found, "gpucommons_problems", kind="overheating") == 1
    assert value(found, "gpucommons_problems", kind="ecc") == 0
    assert value(found, "gpucommons_problems", kind="held_idle") is None


def test_without_a_driver_no_kind_of_a_gpu_is_zero() -> None:
    found = series(Readings())
    assert value(found, "gpucommons_problems", kind="gpu_lost") is None
    assert value(found, "gpucommons_problems", kind="source_failing") == 0
    assert value(found, "gpucommons_problems", kind="driver") == 0
