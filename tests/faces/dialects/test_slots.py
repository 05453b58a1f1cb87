"""gpucommons_slot_*: one state for each slot, its holders by billed name, and no value that was not read."""

from demo_node import DemoNode
from faces.dialects.test_problems import series
from gpucommons.model.snapshot import Readings
from parsing import Series
from simulation.played_lab import PlayedLab


def value(found: Series, name: str, **labels: str) -> float | None:
    """The series of this name with these labels, among others; None where there is none."""
    values = [number for (each, given), number in found.items() if each == name and labels.items() <= {*given}]
    assert len(values) <= 1
    return values[0] if values else None


def test_every_slot_has_one_state_and_its_readings() -> None:
    readings = PlayedLab().at(100.0)
    assert readings.slots is not None
    found = series(readings)
    states = [dict(labels) for (name, labels) in found if name == "gpucommons_slot_state"]
    shown = {labels["uuid"]: (labels["slot"], labels["state"], labels["gpu_uuid"]) for labels in states}
    judged = readings.slots.slots
    assert len(states) == len(shown)
    assert shown == {each.slot.uuid: (each.slot.name, each.state.value, each.slot.gpu_uuid) for each in judged}
    for status in judged:
        uuid = status.slot.uuid
        held = value(found, "gpucommons_slot_idle_seconds", uuid=uuid)
        assert held == status.idle_s
        assert value(found, "gpucommons_slot_memory_bytes", uuid=uuid, which="free") == status.memory_free_bytes
    assert value(found, "gpucommons_slot_holder_share_ratio", slot="3", holder="emeka") == 1
    busy = value(found, "gpucommons_slot_utilization_ratio", slot="0")
    assert busy is not None
    assert 0.5 < busy <= 1
    instance = value(found, "gpucommons_slot_utilization_ratio", slot="6.0")
    assert instance is not None


def test_a_lost_gpu_has_a_state_and_no_readings() -> None:
    node = DemoNode(lost=7).readings(0.0)
    found = series(Readings(gpus=node.gpus, slots=node.slots))
    (lost,) = [
        dict(labels) for (name, labels) in found if name == "gpucommons_slot_state" and ("state", "lost") in labels
    ]
    for metric in ("utilization_ratio", "memory_bytes", "idle_seconds"):
        assert value(found, f"gpucommons_slot_{metric}", uuid=lost["uuid"]) is None


def test_clients_that_wait_are_counted_for_each_gpu() -> None:
    readings = PlayedLab().at(100.0)
    assert readings.sharing is not None
    found = series(readings)
    waiting = sum(client.wait is not None for client in readings.sharing.clients)
    counted = [
        count for (name, labels), count in found.items() if name == "gpucommons_sharing_queued_clients" and count
    ]
    assert sum(counted) == waiting > 0
    assert value(found, "gpucommons_sharing_queued_clients", gpu="5", queue="parked") == 0


def test_without_gpus_there_is_no_slot() -> None:
    assert not [name for name, _ in series(Readings()) if name.startswith("gpucommons_slot_")]
