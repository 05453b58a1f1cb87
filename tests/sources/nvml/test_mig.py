"""MIG: current instances, each GPU instance counted once, and no use of stale handles."""

import logging

import pytest

from fakes.nvml.control import mig_device, process
from fakes.nvml.rig import Rig
from gpucommons.model.gpu import Gpu, MigMemory
from gpucommons.sources.source import SourceError

MIB = 2**20
SPLIT = (
    "mig_mode 0 1 1",
    mig_device(0, 1, profile="3g.71gb", gi_slices=3, ci_slices=3, memory_mb=71168, used_mb=500, start=0, size=4),
    mig_device(0, 5, profile="1g.18gb", memory_mb=16384, used_mb=100, start=4, size=1),
    mig_device(0, 6, profile="1g.18gb", memory_mb=16384, used_mb=200, start=5, size=1),
)
SHARED = (
    "mig_mode 0 1 1",
    mig_device(0, 1, ci=0, profile="1c.3g.71gb", gi_slices=3, ci_slices=1, memory_mb=71168, used_mb=500, size=4),
    mig_device(0, 1, ci=1, profile="2c.3g.71gb", gi_slices=3, ci_slices=2, memory_mb=71168, used_mb=500, size=4),
)


def profiles(gpu: Gpu) -> list[str]:
    return [instance.profile for instance in gpu.mig]


def test_a_whole_gpu_has_no_instances(rig: Rig) -> None:
    gpu = rig.gpu()
    assert gpu.mig_enabled is False
    assert gpu.mig_slices is None
    assert gpu.mig == ()


def test_a_gpu_without_mig_support(rig: Rig) -> None:
    rig.fake.say("fail nvmlDeviceGetMigMode 3")
    assert rig.gpu().mig_enabled is None


def test_the_instances_with_profile_slices_memory_and_place(rig: Rig) -> None:
    rig.fake.say(*SPLIT)
    gpu = rig.read_for(2).gpus[0]
    assert gpu.mig_enabled is True
    assert gpu.mig_slices == 7
    first, second, third = gpu.mig
    assert (first.profile, first.gpu_instance_slices, first.compute_slices) == ("3g.71gb", 3, 3)
    assert (first.gpu_instance_id, first.compute_instance_id) == (1, 0)
    assert first.uuid == "MIG-00000000-0001-0000-0000-000000000000"
    assert (first.placement_start, first.placement_size) == (0, 4)
    assert (third.placement_start, third.placement_size) == (5, 1)
    assert first.memory_bytes == 71168 * MIB
    assert second.memory == MigMemory(16384 * MIB, 100 * MIB, 16284 * MIB, 0)


def test_each_gpu_instance_has_its_own_gpm(rig: Rig) -> None:
    rig.fake.say("recording busy", *SPLIT)
    gpu = rig.read_for(3).gpus[0]
    assert [instance.gpm is not None and instance.gpm.sm_ratio for instance in gpu.mig] == [
        pytest.approx(0.9646873)
    ] * 3
    assert rig.fake.counter("misuses") == 0


def test_unsupported_gpm_of_instances_is_missing_and_not_called_again(rig: Rig) -> None:
    rig.fake.say(*SPLIT, "fail nvmlGpmMigSampleGet 4")
    gpu = rig.read_for(4).gpus[0]
    assert [instance.gpm for instance in gpu.mig] == [None] * 3
    assert rig.fake.calls("nvmlGpmMigSampleGet") == 1
    assert gpu.mig[0].memory is not None


def test_compute_instances_of_one_gpu_instance_share_its_memory_which_counts_once(rig: Rig) -> None:
    rig.fake.say(*SHARED)
    gpu = rig.read_for(2).gpus[0]
    assert profiles(gpu) == ["1c.3g.71gb", "2c.3g.71gb"]
    assert [instance.gpu_instance_profile for instance in gpu.mig] == ["3g.71gb", "3g.71gb"]
    assert gpu.mig[0].memory == gpu.mig[1].memory
    assert sum(instance.memory.used_bytes for instance in gpu.gpu_instances() if instance.memory) == 500 * MIB
    assert gpu.mig[0].gpm is gpu.mig[1].gpm


def test_a_device_that_the_driver_lists_without_an_id_is_counted(rig: Rig) -> None:
    rig.fake.say(*SPLIT)
    assert rig.gpu().mig_without_id == 0
    rig.fake.say("fail nvmlDeviceGetGpuInstanceId 999")
    gpu = rig.read_for(11).gpus[0]
    assert (gpu.mig, gpu.mig_without_id) == ((), 3)


def test_processes_belong_to_their_instance(rig: Rig) -> None:
    rig.fake.say(*SPLIT, process(0, 10, MIB, gi=5, ci=0), process(0, 11, MIB, gi=6, ci=0))
    rows = rig.gpu().processes or ()
    assert {row.pid: (row.gpu_instance_id, row.compute_instance_id) for row in rows} == {
        10: (5, 0),
        11: (6, 0),
    }


def test_one_process_in_two_instances_is_two_rows(rig: Rig) -> None:
    rig.fake.say(*SPLIT, process(0, 10, MIB, gi=5, ci=0), process(0, 10, 2 * MIB, gi=6, ci=0))
    rows = rig.gpu().processes or ()
    assert sorted((row.gpu_instance_id, row.used_memory_bytes) for row in rows) == [(5, MIB), (6, 2 * MIB)]


def test_without_permission_for_the_whole_gpu_each_instance_is_queried(rig: Rig) -> None:
    rig.fake.say(*SPLIT, "unprivileged", process(0, 10, MIB, gi=5, ci=0), process(0, 11, MIB, gi=6, ci=0))
    gpu = rig.read_for(3).gpus[0]
    assert {row.pid: row.gpu_instance_id for row in gpu.processes or ()} == {10: 5, 11: 6}
    assert gpu.mig[0].placement_start is None


def test_utilisation_of_a_split_gpu_is_missing_not_zero(rig: Rig) -> None:
    rig.fake.say("recording busy", *SPLIT, process(0, 10, MIB, gi=5, ci=0))
    gpu = rig.read_for(3).gpus[0]
    assert gpu.readings.utilization_percent is None
    assert [row.sm_percent for row in gpu.processes or ()] == [None]
    assert gpu.readings.power_watts is not None


def test_a_change_is_seen_within_10_s_without_a_new_session(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig.fake.say(*SPLIT)
    rig.read_for(2)
    rig.fake.replace("mig_mode 0 1 1", mig_device(0, 9, profile="7g.141gb", gi_slices=7, ci_slices=7, size=8))
    for _ in range(10):
        gpu = rig.gpu()
        if profiles(gpu) == ["7g.141gb"]:
            break
    assert profiles(gpu) == ["7g.141gb"]
    assert rig.fake.counter("inits") == 1
    assert rig.gpu().mig[0].memory is not None
    said = [record.message for record in caplog.records if "MIG" in record.message]
    assert said == [
        "GPU 0: MIG instances are now: 3g.71gb, 1g.18gb, 1g.18gb",
        "GPU 0: MIG instances are now: 7g.141gb",
    ]


def test_a_removed_instance_is_noticed_in_the_next_pass(rig: Rig) -> None:
    rig.fake.say(*SPLIT)
    rig.read_for(2)
    rig.fake.replace(*SPLIT[:-1])
    rig.read()
    assert profiles(rig.gpu()) == ["3g.71gb", "1g.18gb"]


def test_an_added_instance_is_seen_within_10_s(rig: Rig) -> None:
    rig.fake.say(*SPLIT[:-1])
    rig.read_for(2)
    rig.fake.say(SPLIT[-1])
    assert len(rig.read_for(10).gpus[0].mig) == 3


def test_the_same_uuid_with_another_profile_is_another_instance(rig: Rig) -> None:
    """UUIDs of MIG devices are derived from their ids: a new layout can contain an old UUID."""
    rig.fake.say("mig_mode 0 1 1", mig_device(0, 1, profile="1g.18gb"))
    rig.read_for(2)
    rig.fake.replace("mig_mode 0 1 1", mig_device(0, 1, profile="3g.71gb", gi_slices=3, ci_slices=3, memory_mb=71168))
    gpu = rig.read_for(6).gpus[0]
    assert (profiles(gpu), gpu.mig[0].memory_bytes) == (["3g.71gb"], 71168 * MIB)


def test_no_handle_of_an_earlier_layout_is_used(rig: Rig) -> None:
    """The fake counts every use of a handle of an earlier layout."""
    rig.fake.say("unprivileged", process(0, 10, MIB, gi=5, ci=0))
    for turn in range(12):
        rig.fake.unsay("mig_")
        rig.fake.say("mig_mode 0 1 1", *(SPLIT, SHARED, ("mig_mode 0 0 0",))[turn % 3])
        rig.read_for(3)
    assert rig.fake.counter("stale_mig_uses") == 0
    assert rig.fake.counter("misuses") == 0
    rig.source.close()
    assert rig.fake.counter("gpm_samples") == 0


def test_changing_the_mig_mode_checks_again_what_is_supported(rig: Rig) -> None:
    rig.fake.say("recording busy")
    assert rig.read_for(2).gpus[0].readings.utilization_percent == 100
    rig.fake.replace("recording busy", *SPLIT)
    split = rig.read_for(10).gpus[0]
    assert (split.mig_enabled, split.readings.utilization_percent) == (True, None)
    rig.fake.replace("recording busy")
    joined = rig.read_for(10).gpus[0]
    assert (joined.mig_enabled, joined.mig) == (False, ())
    assert joined.readings.utilization_percent == 100
    assert joined.processes is not None
    assert joined.processes[0].sm_percent == 90


def test_the_reader_disconnects_for_a_pending_mode_change(rig: Rig) -> None:
    """The MIG mode of an Ampere GPU changes once no process uses it: the reader disconnects and reconnects."""
    rig.read()
    rig.fake.say("mig_mode 0 0 1", mig_device(0, 1))
    with pytest.raises(SourceError, match="MIG mode change") as aside:
        rig.read_for(6)
    assert aside.value.reason == "stepping_aside"
    assert rig.fake.counter("references") == 0
    with pytest.raises(SourceError, match="MIG mode change"):
        rig.read()
    gpu = rig.gpu(after_s=3)
    assert (gpu.mig_enabled, profiles(gpu)) == (True, ["1g.18gb"])


def test_disconnects_for_a_mode_change_that_stays_pending_become_rare(rig: Rig) -> None:
    rig.fake.say("mig_mode 0 0 1", "held")
    missed = []
    for second in range(600):
        try:
            rig.read()
        except SourceError:
            missed.append(second)
    assert rig.fake.counter("shutdowns") == 4, "at once, then after one, two and four minutes"
    assert len(missed) == 4 * 3
    assert rig.gpu().mig_enabled is False
