"""The ds01 dialect: every metric with its labels. An unexpected value does not remove other series."""

from typing import Any

import pytest

from attribution.builders import gpu
from gpucommons.faces.dialects.dcgm import DCGM
from gpucommons.faces.dialects.ds01 import DS01
from gpucommons.faces.exposition.exposition import Exposition
from gpucommons.model.events import EventsReading
from gpucommons.model.gpu import Gpu, MigInstance
from gpucommons.model.snapshot import AgentReading, Readings, Snapshot, SourceState
from gpucommons.model.workloads import Container, Ds01Entry, Ds01Reading, UserSlice, UsersReading
from gpucommons.owners.holding_stage import AllocationStage
from holding.test_allocations import SPLIT, docker, managed, process, readings
from parsing import Series, parsed, types_of

HOSTILE = 'evil"name\n\\\u202e'


def text(given: Readings, openmetrics: bool = False, *sources: SourceState) -> str:
    states = {source.name: source for source in sources}
    snapshot = Snapshot(0, 0.0, 0.0, "host", readings=AllocationStage()(given), sources=states)
    body, _ = Exposition(lambda: snapshot, [DS01]).metrics("ds01", openmetrics, gzip=False)
    return body.decode()


def series(given: Readings) -> Series:
    parsed(text(given, openmetrics=True), openmetrics=True)
    return parsed(text(given))


def value(found: Series, name: str, **labels: str) -> float | None:
    return found.get((name, tuple(sorted(labels.items()))))


def family(found: Series, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    return {labels: number for (each, labels), number in found.items() if each == name}


def lab(*more: Any, **others: Any) -> Readings:
    thesis, busy = managed("thesis", "alice", "1:0"), managed("busy", "bob", "0")
    agent = AgentReading("0.9", 0.0, None, None, None, None)
    return readings(thesis, busy, *more, gpus=(gpu(0), SPLIT), processes=[process(busy)], agent=agent, **others)


def test_examples_of_ds01s_documentation() -> None:
    found = series(lab())
    assert value(found, "ds01_exporter_info", version="0.9", type="gpucommons") == 1
    labels = {"gpu_slot": "1.0", "container": "thesis", "user": "alice", "interface": "orchestration"}
    assert value(found, "ds01_gpu_allocated", **labels, profile="3g.30gb") == 1
    whole = {**labels, "gpu_slot": "0", "container": "busy", "user": "bob", "profile": "full"}
    assert value(found, "ds01_gpu_allocated", **whole) == 1
    assert value(found, "ds01_containers_total", status="running", interface="orchestration") == 2
    assert value(found, "ds01_containers_total", status="stopped", interface="atomic") == 0
    assert value(found, "ds01_user_mig_allocated", user="alice") == 1
    assert value(found, "ds01_user_containers_count", user="alice") == 1


def test_equivalents_and_slots() -> None:
    found = series(lab(managed("second", "alice", "0")))
    assert value(found, "ds01_user_gpu_equivalents", user="alice") == 0.5 + 3 / 7
    assert value(found, "ds01_user_gpus_allocated", user="alice") == 2
    assert value(found, "ds01_user_mig_allocated", user="bob") == 0.5, "a slot shared by two counts as a half for each"
    labels = {"gpu_slot": "0", "user": "bob", "interface": "orchestration", "profile": "full"}
    assert value(found, "ds01_gpu_equivalents", **labels) == 0.5


def test_a_gpu_is_a_slot_or_has_slots() -> None:
    """DS01 adds the two families: a split GPU in both would count more slots than there are."""
    found = series(lab())
    assert family(found, "ds01_gpu_slot_info") == {
        (("gpu", "0"), ("gpu_uuid", "GPU-0"), ("mig_enabled", "false"), ("slot", "0")): 1
    }
    assert family(found, "ds01_mig_slot_info") == {
        (("gpu", "1"), ("gpu_i_id", "1"), ("mig_uuid", "MIG-1-1"), ("slot", "1.0")): 1,
        (("gpu", "1"), ("gpu_i_id", "5"), ("mig_uuid", "MIG-1-5"), ("slot", "1.1")): 1,
    }


def test_a_gpu_that_cannot_be_split_is_a_slot() -> None:
    older = gpu(0)._replace(mig_enabled=None)
    assert len(family(series(readings(gpus=(older,))), "ds01_gpu_slot_info")) == 1


def mapping(*gpus: Gpu) -> dict[tuple[tuple[str, str], ...], float]:
    return family(series(readings(gpus=gpus)), "ds01_mig_mapping_status")


def test_the_mapping_of_mig_devices_to_dcgm() -> None:
    first, second = SPLIT.mig
    unread = second._replace(gpm=None, memory=None)
    assert mapping(gpu(0), SPLIT) == {(("mapped", "2"), ("unmapped", "0")): 1}
    assert mapping(SPLIT._replace(mig=(first, unread))) == {(("mapped", "1"), ("unmapped", "1")): 0}
    assert mapping(SPLIT._replace(mig_without_id=1)) == {(("mapped", "2"), ("unmapped", "1")): 0}
    assert mapping(gpu(0)) == {}, "without MIG there is nothing to map"
    assert mapping(SPLIT._replace(mig=())) == {}, "nor without MIG devices"


@pytest.mark.parametrize("reading", [SPLIT.mig[1]._replace(gpm=None, memory=None), SPLIT.mig[1]])
def test_a_device_is_mapped_if_the_dcgm_dialect_has_a_series_for_it(reading: MigInstance) -> None:
    given = readings(gpus=(SPLIT._replace(mig=(reading,)),))
    snapshot = Snapshot(0, 0.0, 0.0, "host", readings=AllocationStage()(given))
    body, _ = Exposition(lambda: snapshot, [DCGM]).metrics("dcgm", False, gzip=False)
    served = any(("GPU_I_ID", "5") in labels for _, labels in parsed(body.decode()))
    (status,) = family(series(given), "ds01_mig_mapping_status").values()
    assert status == served


def test_the_whole_of_a_split_gpu_counts_its_slots() -> None:
    found = series(readings(managed("whole", "alice", "1"), gpus=(SPLIT,)))
    assert value(found, "ds01_user_mig_allocated", user="alice") == 2


def test_unmanaged_containers() -> None:
    sneaky = docker("sneaky", count=-1, labels={"ds01.user": "eve"})
    found = series(lab(sneaky, docker("old", "0", running=False)))
    assert value(found, "ds01_unmanaged_gpu_count") == 2
    assert value(found, "ds01_unmanaged_gpu_running") == 1
    assert value(found, "ds01_unmanaged_gpu_all_access") == 1
    labels = {"container": "sneaky", "user": "eve", "gpu_count": "ALL", "access_type": "all", "running": "true"}
    assert value(found, "ds01_unmanaged_gpu_container", **labels) == 1
    labels = {"container": "old", "user": "unknown", "gpu_count": "1", "access_type": "specific", "running": "false"}
    assert value(found, "ds01_unmanaged_gpu_container", **labels) == 1
    assert not any(("container", "sneaky") in labels for labels in family(found, "ds01_gpu_allocated"))
    assert value(found, "ds01_user_gpu_equivalents", user="eve") == 0


@pytest.mark.parametrize(
    ("container", "count"),
    [
        (docker("by-count", count=2), "2"),
        (docker("by-name", "0", "1:0"), "2"),
        (docker("by-variable", visible_devices="all"), "ALL"),
        (docker("privileged", privileged=True), "ALL"),
    ],
)
def test_how_many_gpus_an_unmanaged_container_may_use(container: Container, count: str) -> None:
    ((labels, _),) = family(series(lab(container)), "ds01_unmanaged_gpu_container").items()
    assert dict(labels)["gpu_count"] == count


def test_ds01s_monitoring_containers_are_not_unmanaged() -> None:
    monitors = (
        docker("ds01-dcgm-exporter", count=-1),
        docker("cadvisor", privileged=True, labels={"ds01.protected": "true"}),
    )
    found = series(lab(*monitors))
    assert value(found, "ds01_unmanaged_gpu_count") == 0
    assert value(found, "ds01_unmanaged_gpu_running") == 0
    assert family(found, "ds01_unmanaged_gpu_container") == {}


def test_the_root_of_a_protected_container_is_not_a_user() -> None:
    labels = {"ds01.protected": "true", "ds01.monitoring": "true", "ds01.container_type": "infrastructure"}
    exporter, named = docker("dcgm", count=-1, labels=labels), docker("x", labels={**labels, "ds01.user": "ops"})
    tool = docker("tool", labels={"ds01.monitoring": "false"})
    ids = dict.fromkeys((exporter.id, named.id, tool.id), 0)
    users = UsersReading(names={0: "root"}, container_uids=ids)
    found = series(lab(exporter, named)._replace(users=users))
    assert value(found, "ds01_containers_total", status="running", interface="docker") == 2
    for name in ("mig_allocated", "gpus_allocated", "gpu_equivalents", "containers_count"):
        assert {dict(labels)["user"] for labels in family(found, f"ds01_user_{name}")} == {"alice", "bob", "ops"}
    assert value(series(lab(tool)._replace(users=users)), "ds01_user_containers_count", user="root") == 0, (
        "not protected"
    )


def test_containers_are_those_that_ds01_tracks() -> None:
    without_gpu = docker("notes", labels={"ds01.user": "carol", "ds01.interface": "orchestration"})
    found = series(lab(docker("past-ds01", "0"), without_gpu))
    assert value(found, "ds01_containers_total", status="running", interface="docker") == 0
    assert value(found, "ds01_containers_total", status="running", interface="orchestration") == 3
    assert value(found, "ds01_user_containers_count", user="carol") == 0, "as DS01: those with a GPU"
    for name in ("ds01_user_gpus_allocated", "ds01_user_gpu_equivalents", "ds01_user_mig_allocated"):
        assert value(found, name, user="carol") == 0


def test_allocations_of_the_state_file_alone() -> None:
    plain, gone = docker("plain", "0"), Ds01Entry("gone", "dave", "1.0", stopped=True)
    entries = (Ds01Entry("plain", "carol", "0"), gone)
    found = series(lab(plain, ds01=Ds01Reading(entries, 3, 2, 1)))
    assert value(found, "ds01_unmanaged_gpu_count") == 0, "the state file allocated it"
    labels = {"interface": "atomic", "profile": "full", "gpu_slot": "0"}
    assert value(found, "ds01_gpu_allocated", container="plain", user="carol", **labels) == 1
    assert value(found, "ds01_containers_total", status="running", interface="atomic") == 1
    assert value(found, "ds01_containers_total", status="stopped", interface="atomic") == 1
    assert value(found, "ds01_user_containers_count", user="dave") == 1


def test_a_name_that_the_node_has_no_slot_for_has_no_profile() -> None:
    found = series(readings(managed("lost", "alice", "GPU-gone")))
    ((labels, _),) = family(found, "ds01_gpu_allocated").items()
    assert dict(labels)["gpu_slot"] == "GPU-gone"
    assert "profile" not in dict(labels)
    assert value(found, "ds01_user_gpu_equivalents", user="alice") is None, "its size is not known"


def test_a_stopped_container_still_holds_and_is_counted_as_stopped() -> None:
    found = series(readings(managed("kept", "alice", "0", running=False)))
    assert value(found, "ds01_containers_total", status="stopped", interface="orchestration") == 1
    assert value(found, "ds01_user_gpu_equivalents", user="alice") == 1


def test_an_unexpected_interface_or_name_removes_no_series() -> None:
    odd = docker(HOSTILE, "0", labels={"ds01.user": HOSTILE, "ds01.interface": HOSTILE})
    found = series(lab(odd))
    assert value(found, "ds01_containers_total", status="running", interface=HOSTILE) == 1
    assert value(found, "ds01_user_containers_count", user=HOSTILE) == 1
    assert value(found, "ds01_containers_total", status="running", interface="orchestration") == 2
    assert len(family(found, "ds01_gpu_allocated")) == 3


def test_two_containers_of_one_name_make_no_duplicate() -> None:
    found = series(readings(managed("same", "alice", "0"), managed("same", "alice", "0")._replace(id="f" * 64)))
    assert len(family(found, "ds01_gpu_allocated")) == 1


def lifecycle(found: Series) -> dict[str, float]:
    return {dict(labels)["action"]: count for labels, count in family(found, "ds01_lifecycle_events_total").items()}


def test_events() -> None:
    events = EventsReading({"gpu.allocated": 12, HOSTILE: 1})
    found = series(lab(events=events))
    assert value(found, "ds01_events_24h_total", event_type="gpu.allocated") == 12
    assert value(found, "ds01_events_24h_total", event_type=HOSTILE) == 1


def test_enforcement_is_seven_actions_and_nothing_else() -> None:
    counts = {
        "maintenance.idle_kill": 1,
        "maintenance.runtime_kill": 2,
        "resource.oom_kill": 3,
        "alert.gpu_warning": 4,
        "alert.memory_warning": 5,
        "alert.container_warning": 6,
        "bare_metal.warning": 7,
        "maintenance.cleanup": 100,
        "container.create": 100,
        "container.started": 100,
        "container.stop": 100,
        "container.removed": 100,
        "alert.disk_warning": 100,
        "gpu.allocated": 100,
    }
    assert lifecycle(series(lab(events=EventsReading(counts)))) == {
        "idle_kill": 1,
        "runtime_kill": 2,
        "oom_kill": 3,
        "gpu_warning": 4,
        "memory_warning": 5,
        "container_warning": 6,
        "bare_metal_warning": 7,
    }


def test_actions_without_events_are_0() -> None:
    quiet = lifecycle(series(lab(events=EventsReading({}))))
    assert len(quiet) == 7
    assert set(quiet.values()) == {0}
    assert lifecycle(parsed(text(lab(), False, SourceState("events", absent=True)))) == quiet, "no log, no event"
    unreadable = SourceState("events", failures={"unreadable": 1})
    assert lifecycle(parsed(text(lab(), False, unreadable))) == {}, "a log that cannot be read is not an empty one"


def test_users_groups_and_sessions() -> None:
    users = UsersReading(
        {},
        {"alice": "staff"},
        {"staff": frozenset({"alice", "carol"})},
        (UserSlice("alice", "staff", 12.5, 100), UserSlice("4711", "", None, 7)),
        {"alice": 2, "bob": 1},
    )
    found = series(lab()._replace(users=users))
    assert value(found, "ds01_ssh_sessions_active", user="alice") == 2
    assert value(found, "ds01_ssh_sessions_total") == 3
    assert value(found, "ds01_user_group_info", user="alice", group="staff") == 1
    assert value(found, "ds01_group_members_total", group="staff") == 2
    assert value(found, "ds01_user_cpu_usage_seconds_total", user="alice", group="staff") == 12.5
    assert value(found, "ds01_user_memory_current_bytes", user="4711") == 7
    assert value(found, "ds01_user_cpu_usage_seconds_total", user="4711") is None
    unrecorded = series(lab()._replace(users=users._replace(ssh_sessions=None)))
    assert value(unrecorded, "ds01_ssh_sessions_total") == 0, "as who prints no line"
    assert family(unrecorded, "ds01_ssh_sessions_active") == {}


def test_the_disk() -> None:
    found = series(lab(ds01=Ds01Reading(None, 1000, 300, 700)))
    assert [value(found, "ds01_state_disk_bytes", type=type) for type in ("total", "used", "free")] == [1000, 700, 300]


def test_values_that_were_not_read_are_absent() -> None:
    assert series(Readings()) == {}
    without_docker = series(lab()._replace(docker=None))
    assert "ds01_containers_total" not in {name for name, _ in without_docker}


def test_every_metric_of_the_catalogue_can_be_served() -> None:
    users = UsersReading(
        {}, {"alice": "staff"}, {"staff": frozenset({"alice"})}, (UserSlice("alice", "staff", 1, 1),), {"alice": 1}
    )
    everything = lab(docker("bare", devices=("/dev/nvidia0",)))._replace(
        users=users,
        events=EventsReading({"gpu.allocated": 1}),
        ds01=Ds01Reading((), 3, 2, 1),
    )
    served = {name for name, _ in series(everything)}
    assert served == {metric.name for metric in DS01.catalogue}
    assert types_of(text(everything))["ds01_user_cpu_usage_seconds"] == "counter"
