"""Loss and return of a GPU, the driver, the library: each is logged in one line, and nothing grows."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.nvml.rig import START_WALL_S, Rig
from gpucommons.model.gpu import GpuIdentity
from gpucommons.sources.nvml.reader_state import Roster
from gpucommons.sources.source import SourceAbsent, SourceError

UNINITIALIZED, DRIVER_NOT_LOADED, GPU_IS_LOST, VERSION_MISMATCH, UNKNOWN = 1, 9, 15, 18, 999


def said(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= level]


# -- one GPU


def test_a_lost_gpu_is_down_and_the_others_are_read(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.fake.say("gpus 3")
    before = rig.read_for(3).gpus[1]
    rig.fake.say("lose 1")
    reading = rig.read()
    assert [gpu.identity.index for gpu in reading.gpus] == [0, 2, 1]
    lost = reading.gpus[-1]
    assert (lost.up, lost.down_reason) == (False, "gpu_is_lost")
    assert lost.identity == before.identity
    assert lost.identity.pci_bus_id == "00000000:00:07.0"
    assert lost.since_wall_s == START_WALL_S + 4
    assert lost.readings.temperature_celsius is None
    assert lost.processes is None
    assert (reading.expected, reading.present) == (3, 2)
    assert reading.gpus[0].readings.temperature_celsius == 42
    rig.read_for(5)
    assert said(caplog) == [f"GPU 1 ({lost.identity.uuid}) at 00000000:00:07.0: gpu_is_lost"]


def test_a_lost_gpu_is_not_queried_every_second(rig: Rig) -> None:
    rig.fake.say("gpus 2", "lose 1")
    rig.read()
    before = sum(counts[1] for counts in rig.fake.all_calls().values())
    rig.read_for(5)
    assert sum(counts[1] for counts in rig.fake.all_calls().values()) == before


def test_a_lost_gpu_returns(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig.fake.say("gpus 2")
    rig.read()
    rig.fake.say("lose 1")
    lost = rig.read()
    rig.fake.unsay("lose")
    back = rig.read_for(11)
    assert [gpu.up for gpu in back.gpus] == [True, True]
    assert back.gpus[1].identity == lost.gpus[1].identity
    assert back.gpus[1].readings.temperature_celsius == 43
    assert (back.expected, back.present, back.connections) == (2, 2, 2)
    assert said(caplog)[-1] == f"GPU 1 ({lost.gpus[1].identity.uuid}) is back"
    rig.read_for(60)
    assert rig.read().connections == 2, "all GPUs are present: no reason to search again"


def test_a_lost_gpu_is_searched_for_less_and_less_often(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.fake.say("gpus 2")
    rig.read()
    rig.fake.say("lose 1")
    reading = rig.read_for(600)
    assert 5 <= reading.connections <= 8
    assert [gpu.up for gpu in reading.gpus] == [True, False]
    assert (reading.expected, reading.present) == (2, 1)
    assert len(said(caplog)) == 1


def test_a_gpu_that_is_missing_from_the_list_is_lost(rig: Rig) -> None:
    """After a restart the driver may not count it, and give its index to another GPU."""
    rig.fake.say("gpus 3")
    rig.read()
    rig.fake.say("lose 1", "absent 1")
    rig.read()
    reading = rig.read_for(11)
    assert reading.connections == 2
    assert [(gpu.identity.index, gpu.up) for gpu in reading.gpus] == [(0, True), (1, True), (1, False)]
    assert reading.gpus[1].readings.temperature_celsius == 44, "the third GPU, now second"
    assert (reading.expected, reading.present) == (3, 2)


def test_a_gpu_that_cannot_be_opened_from_the_start_is_expected_but_not_present(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.fake.say("gpus 2", "lose 1")
    reading = rig.read_for(100)
    assert (reading.expected, reading.present, len(reading.gpus)) == (2, 1, 1)
    assert reading.connections > 3
    assert said(caplog) == ["GPU 1 cannot be opened: gpu_is_lost"]


def test_a_gpu_on_which_every_call_fails_is_lost(rig: Rig) -> None:
    rig.fake.say("gpus 2")
    rig.read()
    rig.fake.say("fail * 999 1")
    reading = rig.read()
    assert [(gpu.up, gpu.down_reason) for gpu in reading.gpus] == [(True, ""), (False, "unresponsive")]


def test_an_added_gpu_is_seen_when_the_kernel_has_it(rig: Rig) -> None:
    kernel = rig.procfs / "driver" / "nvidia" / "gpus"
    (kernel / "0000:00:06.0").mkdir(parents=True)
    assert rig.read_for(20).connections == 1
    rig.fake.say("gpus 2")
    (kernel / "0000:00:07.0").mkdir()
    reading = rig.read_for(16)
    assert (len(reading.gpus), reading.connections, reading.present) == (2, 2, 2)


# -- the driver


@pytest.mark.parametrize("code", [UNINITIALIZED, DRIVER_NOT_LOADED, VERSION_MISMATCH])
def test_the_driver_is_unloaded_and_comes_back(rig: Rig, code: int) -> None:
    rig.fake.say("gpus 2")
    before = rig.read_for(3)
    rig.fake.say(f"fail * {code}", f"fail nvmlInit {code}")
    with pytest.raises(SourceError) as first:
        rig.read()
    for _ in range(20):
        with pytest.raises(SourceError) as later:
            rig.read()
        assert later.value.reason == first.value.reason
    rig.fake.load_here()
    rig.fake.unsay("fail")
    for _ in range(60):
        try:
            after = rig.read()
            break
        except SourceError:
            continue
    assert [gpu.identity for gpu in after.gpus] == [gpu.identity for gpu in before.gpus]
    assert after.connections == 2
    assert rig.fake.counter("references") == 1


def test_an_unloaded_driver_is_retried_with_back_off(rig: Rig) -> None:
    rig.read()
    rig.fake.say("fail * 9", "fail nvmlInit 9")
    for _ in range(300):
        with pytest.raises(SourceError):
            rig.read()
    assert rig.fake.counter("inits") - 1 == 9, "after 1, 2, 4, 8, 16, 32, 60, 60, 60 seconds"
    assert rig.fake.counter("references") == 0
    assert rig.fake.counter("gpm_samples") == 0
    assert rig.fake.counter("event_sets") == 0


def test_a_driver_that_was_never_loaded_is_absent_with_a_remedy(rig: Rig) -> None:
    rig.fake.say("fail nvmlInit 9")
    with pytest.raises(SourceAbsent) as absent:
        rig.read()
    assert "not loaded" in str(absent.value)
    assert "modprobe" in absent.value.remedy
    rig.fake.unsay("fail")
    assert rig.read().present == 1


def test_a_refused_session_reports_why(rig: Rig) -> None:
    rig.fake.say("fail nvmlInit 4")
    with pytest.raises(SourceError, match="Insufficient Permissions") as refused:
        rig.read()
    assert refused.value.reason == "no_permission"


def test_a_driver_that_is_unloaded_during_the_start_of_a_session_leaks_nothing(rig: Rig) -> None:
    rig.fake.say("gpus 2", "fail nvmlDeviceGetHandleByIndex_v2 1 1")
    with pytest.raises(SourceError):
        rig.read()
    assert rig.fake.counter("references") == 0
    assert rig.fake.counter("event_sets") == 0


def test_a_driver_without_gpus_gives_an_empty_reading(rig: Rig) -> None:
    rig.fake.say("absent 0")
    reading = rig.read()
    assert (reading.gpus, reading.expected, reading.present) == ((), 0, 0)


def test_a_hundred_lost_sessions_leak_nothing(rig: Rig) -> None:
    rig.fake.say("gpus 2", "recording busy")
    for _ in range(100):
        rig.read()
        rig.fake.say("fail nvmlDeviceGetPowerUsage 1")
        with pytest.raises(SourceError):
            rig.read()
        rig.fake.unsay("fail")
        rig.clock.elapsed_s += 5
    rig.read()
    assert rig.fake.counter("gpm_samples") == 4
    assert rig.fake.counter("event_sets") == 1
    assert rig.fake.counter("references") == 1


# -- the rules, without a driver


def identity(number: int, index: int) -> GpuIdentity:
    return GpuIdentity(f"GPU-{number}", index, "NVIDIA H200", f"00000000:00:{number:02X}.0")


@given(st.lists(st.one_of(st.sets(st.integers(0, 5)), st.integers(0, 5)), max_size=30))
def test_the_roster_forgets_no_gpu(steps: list[set[int] | int]) -> None:
    """Enumerations (a set) and losses (a number), in any order."""
    roster, ever, present = Roster(), set[int](), set[int]()
    for wall_s, step in enumerate(steps):
        if isinstance(step, set):
            roster.record_count(len(step))
            for index, number in enumerate(sorted(step)):
                returned = roster.record_found(identity(number, index), wall_s)
                assert returned == (number in ever and number not in present)
            gone = roster.missing({f"GPU-{number}" for number in step}, wall_s)
            assert {entry.identity.uuid for entry in gone} == {f"GPU-{n}" for n in present - step}
            ever |= step
            present = set(step)
        elif step in ever:
            assert roster.record_lost(f"GPU-{step}", "test", wall_s) == (step in present)
            present.discard(step)
        assert roster.present == len(present)
        assert roster.expected == len(ever)
        assert {entry.identity.uuid for entry in roster.absentees()} == {f"GPU-{n}" for n in ever - present}
