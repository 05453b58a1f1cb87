"""Who waits for a turn: one series for each that waits, none for who runs, nothing without a scheduler."""

from demo_node import DemoNode
from gpucommons.faces.dialects.gpucommons import waits
from gpucommons.model.snapshot import Readings, Snapshot


def test_each_that_waits_is_told_with_its_reason() -> None:
    sharing = DemoNode().sharing(3.0)
    snapshot = Snapshot(0, 0.0, 0.0, "h", readings=Readings(sharing=sharing))
    (family,) = waits.collect(snapshot)
    told = {labels[2]: (labels[4], value) for labels, value in family.points}
    waiting = {row.client_id: (row.wait.reason, row.wait.waited_s) for row in sharing.clients if row.wait is not None}
    assert waiting
    assert len(waiting) < len(sharing.clients)
    assert told == waiting


def test_without_a_scheduler_there_is_nothing_to_tell() -> None:
    assert list(waits.collect(Snapshot(0, 0.0, 0.0, "h"))) == []
