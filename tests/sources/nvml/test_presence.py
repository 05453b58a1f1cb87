"""GPUs that should be there: on the PCI bus, or listed in the last days."""

import json
from pathlib import Path

import pytest

from fakes.nvml.rig import START_WALL_S, Rig
from gpucommons.model.gpu import GpuReading
from gpucommons.sources.nvml import presence
from gpucommons.sources.nvml.presence import REMEMBERED_S, DriverReader, GpuRecord, read_pci_gpus, same_place
from gpucommons.sources.source import SourceAbsent, SourceError

LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED = 12, 9


def test_only_gpus_of_nvidia_that_this_kernel_drives_are_counted(rig: Rig) -> None:
    assert read_pci_gpus(rig.sysfs) == (), "no PCI bus"
    rig.pci_device("0000:18:00.0", driver="nvidia")
    rig.pci_device("0000:29:00.0", kind="0x030000")
    rig.pci_device("0000:29:00.1", kind="0x040300")
    rig.pci_device("0000:3a:00.0", vendor="0x1002")
    rig.pci_device("0000:4b:00.0", driver="vfio-pci")
    rig.pci_device("0000:5c:00.4")
    (rig.sysfs / "bus/pci/devices/0000:5c:00.4/physfn").mkdir()
    assert read_pci_gpus(rig.sysfs) == ("0000:18:00.0", "0000:29:00.0")


@pytest.mark.parametrize("written", ["00000000:3A:00.0", "0000:3A:00.0", "0000:3a:00.0"])
def test_an_address_has_one_spelling(written: str) -> None:
    assert same_place(written) == "0000:3a:00.0"


@pytest.mark.parametrize(("code", "remedy"), [(LIBRARY_NOT_FOUND, "install"), (DRIVER_NOT_LOADED, "modprobe nvidia")])
def test_without_a_driver_a_machine_with_gpus_has_a_fault(rig: Rig, code: int, remedy: str) -> None:
    rig.fake.say(f"fail nvmlInit {code}")
    with pytest.raises(SourceAbsent):
        rig.read()
    rig.pci_device("0000:18:00.0")
    with pytest.raises(SourceError) as failed:
        rig.read()
    assert remedy in failed.value.remedy
    rig.fake.unsay("fail")
    assert rig.read(after_s=70).present == 1


def test_a_gpu_on_the_bus_that_the_driver_does_not_list_is_expected(rig: Rig) -> None:
    listed = rig.read().gpus[0].identity.pci_bus_id
    rig.pci_device(same_place(listed))
    rig.pci_device("0000:aa:00.0")
    reading = rig.read_for(20)
    assert reading.unlisted == ("0000:aa:00.0",)
    assert (reading.expected, reading.present) == (2, 1)


def test_a_container_with_some_of_the_gpus_misses_none(rig: Rig) -> None:
    rig.environment = {"NVIDIA_VISIBLE_DEVICES": "0"}
    rig.pci_device("0000:aa:00.0")
    assert rig.read_for(20).unlisted == ()


def restarted(rig: Rig, record: Path) -> None:
    """The agent of the next day, with the record of the one before."""
    rig.close()
    rig._source = None
    rig.record = GpuRecord(record)
    rig.clock.elapsed_s += 3600


def test_a_gpu_of_yesterday_is_lost_today(rig: Rig, tmp_path: Path) -> None:
    record = tmp_path / "state" / "gpus.json"
    rig.record = GpuRecord(record)
    rig.fake.say("gpus 3")
    before = rig.read().gpus
    rig.fake.say("absent 1")
    restarted(rig, record)
    reading = rig.read()
    (gone,) = (gpu for gpu in reading.gpus if not gpu.up)
    assert gone.identity.uuid == before[1].identity.uuid
    assert gone.since_wall_s == START_WALL_S + 1, "when it was seen last"
    assert (reading.expected, reading.present) == (3, 2)
    rig.fake.unsay("absent")
    restarted(rig, record)
    assert rig.read().present == 3


def test_a_lost_gpu_is_forgotten_after_days_or_when_another_takes_its_place(rig: Rig, tmp_path: Path) -> None:
    record = tmp_path / "gpus.json"
    place = rig.read().gpus[0].identity.pci_bus_id
    seen = {"index": 0, "name": "NVIDIA H200", "last_seen_unix_s": rig.clock.wall()}
    replaced = {**seen, "uuid": "GPU-replaced", "pci_bus_id": place}
    old = {**seen, "uuid": "GPU-old", "pci_bus_id": "0000:BB:00.0", "last_seen_unix_s": START_WALL_S - REMEMBERED_S}
    record.write_text(json.dumps([replaced, old]))
    restarted(rig, record)
    assert [gpu.up for gpu in rig.read().gpus] == [True]


@pytest.mark.parametrize("content", ["", "{", '{"a": 1}', "[5]", '[{"uuid": "x"}]'])
def test_a_damaged_record_costs_only_itself(rig: Rig, tmp_path: Path, content: str) -> None:
    record = tmp_path / "gpus.json"
    record.write_text(content)
    rig.record = GpuRecord(record)
    assert rig.read().present == 1
    assert len(json.loads(record.read_text())) == 1


def test_a_record_that_cannot_be_written_is_reported_once(
    rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    rig.record = GpuRecord(tmp_path / "file" / "gpus.json")
    rig.read()
    rig.read(after_s=4000)
    assert sum("cannot be written" in line.message for line in caplog.records) == 1


class _Reader:
    def read(self) -> GpuReading:
        raise SourceError("driver_not_loaded", "the driver of this machine does not answer")


@pytest.mark.parametrize("has_driver", [False, True])
def test_the_reader_is_loaded_for_a_driver_or_a_gpu_on_the_bus(
    has_driver: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests of this process load the fake driver's library, and the machine may have a real one.
    monkeypatch.setattr(presence, "has_library", lambda: has_driver)
    loads = []

    def load() -> _Reader:
        loads.append(1)
        return _Reader()

    reader = DriverReader(tmp_path, load)
    assert bool(loads) is has_driver
    if not has_driver:
        with pytest.raises(SourceAbsent, match=r"libnvidia-ml\.so\.1 is not found"):
            reader.read()
        assert not loads
    device = tmp_path / "bus/pci/devices/0000:18:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    for _ in range(2):
        with pytest.raises(SourceError, match="does not answer"):
            reader.read()
    assert len(loads) == 1
