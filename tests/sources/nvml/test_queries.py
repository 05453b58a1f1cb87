"""What commands ask the driver, outside of the readings of an agent."""

from pathlib import Path

import pytest

from fakes.nvml.control import FakeNvml
from fakes.nvml.rig import Rig
from gpucommons.sources.nvml import library as driver_library
from gpucommons.sources.nvml import queries

GIB = 1 << 30


@pytest.fixture
def fake(rig: Rig) -> FakeNvml:
    rig.fake.load_here()
    rig.fake.say("gpus 2", f"set nvmlDeviceGetMemoryInfo_v2 0 0 {8 * GIB} 0 {3 * GIB} {5 * GIB}")
    return rig.fake


def test_a_gpu_by_its_index_and_by_its_uuid(fake: FakeNvml) -> None:
    with queries.open_session():
        assert queries.count_gpus() == 2
        first = queries.gpu_at(0)
        same = queries.device_of(queries.uuid_of(first))
        assert queries.uuid_of(same) == queries.uuid_of(first) != queries.uuid_of(queries.gpu_at(1))
        assert queries.name_of(same)
        assert queries.free_bytes(same) == 3 * GIB
        assert 0 <= queries.utilization(same) <= 1
    assert fake.counter("references") == 0


def test_free_memory_of_those_that_can_be_read(fake: FakeNvml) -> None:
    with queries.open_session():
        uuids = [queries.uuid_of(queries.gpu_at(index)) for index in range(2)]
    fake.say("fail nvmlDeviceGetMemoryInfo_v2 15 1")
    assert queries.free_memory([*uuids, "GPU-unknown"]) == {uuids[0]: 3 * GIB}
    fake.say("fail nvmlInit 9")
    assert queries.free_memory(uuids) == {}
    assert fake.counter("references") == 0


@pytest.mark.parametrize("name", ["nvmlDeviceGetUUID", "nvmlDeviceGetName"])
def test_a_name_that_cannot_be_read_is_not_an_empty_one(fake: FakeNvml, name: str) -> None:
    """A command would use the wrong GPU, or none."""
    with queries.open_session():
        gpu = queries.gpu_at(0)
        fake.say(f"fail {name} 15")
        with pytest.raises(queries.DriverError):
            (queries.uuid_of if name == "nvmlDeviceGetUUID" else queries.name_of)(gpu)


def test_a_refusal_is_in_the_words_of_the_driver(fake: FakeNvml) -> None:
    fake.say("fail nvmlInit 18")
    with pytest.raises(queries.DriverError, match="Driver/library version mismatch"), queries.open_session():
        pass
    fake.unsay("fail")
    with pytest.raises(queries.DriverError), queries.open_session():
        queries.gpu_at(7)
    assert fake.counter("references") == 0


def test_the_library_is_not_unloaded_while_another_thread_has_a_session(fake: FakeNvml, library: Path) -> None:
    """The reader unloads it after an upgrade: the functions that a borrower has must stay where they are."""
    with queries.open_session():
        driver_library.unload()
        assert queries.count_gpus() == 2
    driver_library.unload()
    with pytest.raises(queries.DriverError):
        queries.count_gpus()
    with queries.open_session():
        assert queries.count_gpus() == 2
