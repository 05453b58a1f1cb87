"""Slots by each kind of name: index, DS01's 1.0, NVIDIA's 1:0, UUIDs, device files, device plugins' ids."""

from dataclasses import replace

import pytest

from attribution.builders import gpu, mig_instance
from gpucommons.model.allocations import Slot
from gpucommons.model.gpu import Gpu
from gpucommons.model.workloads import DeviceId
from gpucommons.owners.slots import Slots, SlotTable


def split_gpu(index: int = 1, slices: int | None = 7) -> Gpu:
    instances = (mig_instance(1, 3, 0.5, index), mig_instance(5, 2, None, index))
    return gpu(index, mig=instances)._replace(mig_slices=slices)


TABLE = SlotTable((gpu(0, minor=2), split_gpu(), gpu(2, minor=0)))


def names(slots: Slots) -> list[str]:
    return [info.slot.name for info in slots]


def test_the_slots_of_a_node() -> None:
    assert names(TABLE.all) == ["0", "1.0", "1.1", "1", "2"]
    assert names(TABLE.usable) == ["0", "1.0", "1.1", "2"]
    whole, first, second, rest, _ = TABLE.all
    assert whole.slot == Slot("GPU-0", "GPU-0", "0", 1, 1)
    assert first.slot == Slot("MIG-1-1", "GPU-1", "1.0", 3, 7)
    assert (second.slot.slices, rest.slot.slices, rest.is_rest) == (2, 2, True)
    assert sum(info.slot.slices or 0 for info in TABLE.all if info.gpu_index == 1) == 7


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", ["0"]),
        ("1", ["1.0", "1.1"]),
        ("1.1", ["1.1"]),
        ("1:0", ["1.0"]),
        ("0.0", []),
        ("1.2", []),
        ("9", []),
        ("GPU-2", ["2"]),
        ("GPU-1", ["1.0", "1.1"]),
        ("MIG-1-5", ["1.1"]),
        ("MIG-1", []),
        ("", []),
        ("nonsense", []),
        ("-1", []),
        ("٣", []),
        ("9" * 50, []),
    ],
)
def test_names(text: str, expected: list[str]) -> None:
    assert names(TABLE.find(text)) == expected


def test_a_unique_uuid_prefix_is_enough() -> None:
    def with_uuid(index: int, uuid: str) -> Gpu:
        whole = gpu(index)
        return whole._replace(identity=replace(whole.identity, uuid=uuid))

    mig = mig_instance(1, 3, 0.5)._replace(uuid="MIG-abcd0003-x")
    table = SlotTable((with_uuid(0, "GPU-abcd0001-x"), with_uuid(1, "GPU-abcd0002-x"), gpu(2, mig=(mig,))))
    assert names(table.find("GPU-abcd0002")) == ["1"]
    assert names(table.find("GPU-abcd")) == [], "it could be either"
    assert names(table.find("MIG-abcd")) == ["2.0"]
    assert names(table.find("MIG-abc")) == [], "too short to be meant"


def test_device_files_are_numbered_separately() -> None:
    assert names(TABLE.minor(2)) == ["0"]
    assert names(TABLE.minor(0)) == ["2"]
    assert names(TABLE.minor(7)) == []
    assert names(TABLE.first(2)) == ["0", "1.0", "1.1"]


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (DeviceId("x", gpu_uuid="GPU-0"), ["0"]),
        (DeviceId("x", gpu_uuid="GPU-0", replica=3), ["0"]),
        (DeviceId("x", mig_uuid="MIG-1-5"), ["1.1"]),
        (DeviceId("x", gpu_uuid="GPU-1", gpu_instance=5, compute_instance=0), ["1.1"]),
        (DeviceId("x", gpu_index=0), ["2"]),
        (DeviceId("x", gpu_index=1, gpu_instance=1), ["1.0"]),
        (DeviceId("x", gpu_uuid="GPU-1"), ["1.0", "1.1"]),
        (DeviceId("x", gpu_uuid="GPU-7"), []),
        (DeviceId("x"), []),
    ],
)
def test_device_plugins_ids(device: DeviceId, expected: list[str]) -> None:
    assert names(TABLE.device(device)) == expected


def test_where_a_process_runs() -> None:
    def at(uuid: str, instance: int | None, compute: int | None = None) -> str | None:
        info = TABLE.at(uuid, instance, compute)
        return info.slot.name if info else None

    assert at("GPU-0", None) == "0"
    assert at("GPU-1", 5) == "1.1"
    assert at("GPU-1", None) is None
    assert at("GPU-1", 9) is None
    assert at("GPU-7", None) is None


def test_where_a_process_of_a_split_gpu_runs() -> None:
    half, whole = mig_instance(1, 3, None), mig_instance(1, 7, None)
    other_half = half._replace(uuid="MIG-0-2", compute_instance_id=1)
    table = SlotTable((gpu(0, mig=(half, other_half)), gpu(1, mig=(whole,))))

    def at(uuid: str, instance: int | None, compute: int | None) -> list[str]:
        info = table.at(uuid, instance, compute)
        return names((info,) if info else ())

    assert [at("GPU-0", 1, compute) for compute in (0, 1)] == [["0.0"], ["0.1"]]
    assert at("GPU-0", 1, None) == ["0.0"], "it could be either: the first"
    assert at("GPU-1", None, None) == [], "its instance is not known, although there is only one"


def test_sm_time_of_a_mig_device_is_scaled_from_that_of_the_whole_gpu() -> None:
    half, rest = mig_instance(1, 3, None), mig_instance(5, 2, None)
    other_half = half._replace(uuid="MIG-0-2", compute_instance_id=1)
    table = SlotTable((gpu(0, mig=(half, other_half, rest)), gpu(1)))
    assert [info.sm_scale for info in table.all] == pytest.approx([5 / 1.5, 5 / 1.5, 5 / 2, 1.0])


def test_a_gpu_that_is_split_completely_has_no_rest() -> None:
    assert names(SlotTable((split_gpu(slices=5),)).all) == ["1.0", "1.1"]


def test_unknown_slices_are_not_assumed() -> None:
    table = SlotTable((split_gpu(slices=None),))
    assert [info.slot.slices for info in table.all] == [None, None]
    assert not any(info.is_rest for info in table.all)


def test_a_split_gpu_without_instances_and_a_lost_one() -> None:
    empty = gpu(3)._replace(mig_enabled=True, mig_slices=4)
    table = SlotTable((empty, gpu(4, up=False)))
    assert [(info.slot.name, info.slot.slices, info.is_rest, info.mig_enabled) for info in table.all] == [
        ("3", 4, True, True)
    ]
    assert table.usable == ()
