"""Owners' and unattributed series add up to the driver's values, GPU by GPU."""

from hypothesis import given
from hypothesis import strategies as st

from attribution.builders import GIB, gpu, gpu_process, identity, reading, table
from gpucommons.faces.dialects.gpucommons import owners
from gpucommons.faces.exposition.families import Family
from gpucommons.model.gpu import AllocationRatioReading, Gpu
from gpucommons.model.ownership import Reason
from gpucommons.model.process_identity import PidScope, PidView
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.owners.attribute import Attributor
from gpucommons.owners.workload import Surroundings

NAMES = Surroundings(user_names={1000: "alice", 1001: "bob", 1002: "bob"})


def series(readings: Readings) -> dict[str, dict[tuple[str, ...], float]]:
    snapshot = Snapshot(1, 0.0, 0.0, "host", readings=readings)
    families: list[Family] = []
    for module in (owners,):
        collected = list(module.collect(snapshot))
        assert {family.metric for family in collected} <= set(module.CATALOGUE)
        families += collected
    assert all(len(family.points) == len(dict(family.points)) for family in families)
    return {family.metric.name: dict(family.points) for family in families}


def readings(*gpus: Gpu, view: PidView | None = None) -> Readings:
    identities = [identity(pid, uid=999 + pid) for pid in (1, 2, 3)]
    known = table(*identities, failures={9: Reason.PROCESS_GONE})
    if view:
        known = table(*identities, view=view)
    taken = reading(*gpus)
    return Readings(gpus=taken, attribution=Attributor().attribute(taken, known, NAMES))


def test_every_family() -> None:
    processes = [gpu_process(1, GIB, 30), gpu_process(9, GIB, 10)]
    found = series(readings(gpu(0, processes, used=3 * GIB, percent=50, watts=100.0)))
    alice = ("0", "GPU-0", "user", "alice", "")
    assert found["gpucommons_owner_gpu_memory_bytes"] == {(*alice, "measured"): GIB}
    assert found["gpucommons_owner_gpu_sm_ratio"] == {(*alice, "measured"): 0.3}
    assert found["gpucommons_owner_gpu_power_watts"] == {(*alice, "apportioned"): 60.0}
    assert found["gpucommons_owner_gpu_processes"] == {alice: 1}
    assert found["gpucommons_gpu_unattributed_bytes"] == {
        ("0", "GPU-0", "process_gone"): GIB,
        ("0", "GPU-0", "driver_reserved"): GIB,
    }
    assert found["gpucommons_gpu_unattributed_sm_ratio"] == {
        ("0", "GPU-0", "process_gone"): 0.1,
        ("0", "GPU-0", "no_utilization_sample"): 0.1,
    }
    assert found["gpucommons_gpu_unattributed_power_watts"] == {
        ("0", "GPU-0", "process_gone"): 20.0,
        ("0", "GPU-0", "no_utilization_sample"): 20.0,
    }
    assert found["gpucommons_attribution_error_bytes"] == {("0", "GPU-0"): 0}
    assert found["gpucommons_attribution_error_sm_ratio"] == {("0", "GPU-0"): 0}
    assert found["gpucommons_attribution_sees_host_processes"] == {(): 1}


def test_owners_of_one_name_share_a_series() -> None:
    found = series(readings(gpu(0, [gpu_process(2, GIB), gpu_process(3, GIB)])))
    bob = ("0", "GPU-0", "user", "bob", "")
    assert found["gpucommons_owner_gpu_memory_bytes"] == {(*bob, "measured"): 2 * GIB}
    assert found["gpucommons_owner_gpu_processes"] == {bob: 2}


def test_unmeasured_values_are_absent() -> None:
    found = series(readings(gpu(0, [gpu_process(1, None)], used=None, percent=None, watts=None)))
    assert not found["gpucommons_owner_gpu_memory_bytes"]
    assert not found["gpucommons_attribution_error_bytes"]
    assert not found["gpucommons_gpu_unattributed_bytes"]


def test_a_pid_namespace_hides_host_processes() -> None:
    found = series(readings(gpu(0), view=PidView(PidScope.NAMESPACE, "")))
    assert found["gpucommons_attribution_sees_host_processes"] == {(): 0}


def test_the_ratio_file_has_a_state_only_if_it_exists() -> None:
    name = "gpucommons_vgpu_allocation_ratio_ok"
    assert series(Readings())[name] == {}
    assert series(Readings(allocation_ratio=AllocationRatioReading(None, "bad")))[name] == {(): 0}
    assert series(Readings(allocation_ratio=AllocationRatioReading(None)))[name] == {(): 1}


@given(st.lists(st.tuples(st.sampled_from([1, 2, 3, 9]), st.none() | st.integers(0, GIB)), max_size=6))
def test_owned_and_unattributed_memory_sum_to_the_used_memory(rows: list[tuple[int, int | None]]) -> None:
    found = series(readings(gpu(0, [gpu_process(pid, memory) for pid, memory in rows], used=2 * GIB)))
    owned = sum(found["gpucommons_owner_gpu_memory_bytes"].values())
    assert owned + sum(found["gpucommons_gpu_unattributed_bytes"].values()) == 2 * GIB
