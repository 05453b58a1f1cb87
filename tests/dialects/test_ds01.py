"""The ds01 dialect: every metric with its labels, over allocations, events and people; one oddity silences nothing."""

from dataclasses import replace
from typing import Any

from attribution.builders import gpu
from attribution.test_allocations import SPLIT, docker, managed, process, readings
from gpucommons import __version__
from gpucommons.attribution.allocation_stage import AllocationStage
from gpucommons.dialects.ds01 import DS01
from gpucommons.exposition.exposition import Exposition
from gpucommons.model.ds01 import Ds01Reading
from gpucommons.model.events import EventsReading
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.model.users import UserSlice, UsersReading
from parsing import Series, parsed, types_of

HOSTILE = 'evil"name\n\\\u202e'


def text(given: Readings, openmetrics: bool = False) -> str:
    snapshot = Snapshot(0, 0.0, 0.0, "host", readings=AllocationStage()(given))
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
    return readings(thesis, busy, *more, gpus=(gpu(0), SPLIT), processes=[process(busy)], **others)


def test_the_seeds_examples() -> None:
    found = series(lab())
    assert value(found, "ds01_exporter_info", version=__version__, type="gpucommons") == 1
    labels = {"gpu_slot": "1.0", "container": "thesis", "user": "alice", "interface": "orchestration"}
    assert value(found, "ds01_gpu_allocated", **labels, profile="3g.30gb") == 1
    assert value(found, "ds01_gpu_allocated", **{**labels, "gpu_slot": "0", "container": "busy", "user": "bob"}) == 1
    assert value(found, "ds01_containers_total", status="running", interface="orchestration") == 2
    assert value(found, "ds01_containers_total", status="stopped", interface="atomic") == 0
    assert value(found, "ds01_user_mig_allocated", user="alice") == 1
    assert value(found, "ds01_user_containers_count", user="alice") == 1


def test_equivalents_and_slots() -> None:
    found = series(lab(managed("second", "alice", "0")))
    assert value(found, "ds01_user_gpu_equivalents", user="alice") == 0.5 + 3 / 7
    assert value(found, "ds01_user_gpus_allocated", user="alice") == 2
    assert value(found, "ds01_user_mig_allocated", user="bob") == 0.5, "a slot that two share is a half for each"
    assert value(found, "ds01_gpu_equivalents", gpu_slot="0", user="bob", interface="orchestration") == 0.5
    assert family(found, "ds01_gpu_slot_info").keys() == {
        (("gpu", "0"), ("gpu_uuid", "GPU-0"), ("mig_enabled", "false"), ("slot", "0")),
        (("gpu", "1"), ("gpu_uuid", "GPU-1"), ("mig_enabled", "true"), ("slot", "1")),
    }
    assert value(found, "ds01_mig_slot_info", gpu="1", gpu_i_id="5", slot="1.1", mig_uuid="MIG-1-5") == 1


def test_the_whole_of_a_split_gpu_counts_its_slots() -> None:
    found = series(readings(managed("whole", "alice", "1"), gpus=(SPLIT,)))
    assert value(found, "ds01_user_mig_allocated", user="alice") == 2


def test_bypasses() -> None:
    sneaky = docker("sneaky", count=-1, labels={"ds01.user": "eve"})
    found = series(lab(sneaky, docker("old", "0", running=False)))
    assert value(found, "ds01_unmanaged_gpu_count") == 2
    labels = {"container": "sneaky", "user": "eve", "gpu_count": "2", "access_type": "all", "running": "true"}
    assert value(found, "ds01_unmanaged_gpu_container", **labels) == 1
    assert not any(("container", "sneaky") in labels for labels in family(found, "ds01_gpu_allocated"))
    assert value(found, "ds01_user_gpu_equivalents", user="eve") is None


def test_a_stopped_container_still_holds_and_is_counted_as_stopped() -> None:
    found = series(readings(managed("kept", "alice", "0", running=False)))
    assert value(found, "ds01_containers_total", status="stopped", interface="orchestration") == 1
    assert value(found, "ds01_user_gpu_equivalents", user="alice") == 1


def test_one_unexpected_interface_or_name_silences_nothing() -> None:
    odd = docker(HOSTILE, "0", labels={"ds01.user": HOSTILE, "ds01.interface": HOSTILE})
    found = series(lab(odd))
    assert value(found, "ds01_containers_total", status="running", interface=HOSTILE) == 1
    assert value(found, "ds01_user_containers_count", user=HOSTILE) == 1
    assert value(found, "ds01_containers_total", status="running", interface="orchestration") == 2
    assert len(family(found, "ds01_gpu_allocated")) == 3


def test_two_containers_of_one_name_make_no_duplicate() -> None:
    series(readings(managed("same", "alice", "0"), replace(managed("same", "alice", "0"), id="f" * 64)))


def test_events() -> None:
    events = EventsReading(
        {"gpu.allocated": 12, "container.started": 8, "container.start": 1, "maintenance.idle_kill": 3, HOSTILE: 1}
    )
    found = series(lab(events=events))
    assert value(found, "ds01_events_24h_total", event_type="gpu.allocated") == 12
    assert value(found, "ds01_events_24h_total", event_type=HOSTILE) == 1
    actions = {dict(labels)["action"]: n for labels, n in family(found, "ds01_lifecycle_events_total").items()}
    assert actions == {
        "idle_kill": 3,
        "runtime_kill": 0,
        "cleanup": 0,
        "oom_kill": 0,
        "create": 0,
        "start": 9,
        "stop": 0,
        "remove": 0,
    }


def test_people() -> None:
    users = UsersReading(
        {},
        {"alice": "staff"},
        {"staff": frozenset({"alice", "carol"})},
        (UserSlice("alice", "staff", 12.5, 100), UserSlice("4711", "", None, 7)),
        {"alice": 2, "bob": 1},
    )
    found = series(replace(lab(), users=users))
    assert value(found, "ds01_ssh_sessions_active", user="alice") == 2
    assert value(found, "ds01_ssh_sessions_total") == 3
    assert value(found, "ds01_user_group_info", user="alice", group="staff") == 1
    assert value(found, "ds01_group_members_total", group="staff") == 2
    assert value(found, "ds01_user_cpu_usage_seconds_total", user="alice", group="staff") == 12.5
    assert value(found, "ds01_user_memory_current_bytes", user="4711") == 7
    assert value(found, "ds01_user_cpu_usage_seconds_total", user="4711") is None
    unknown = series(replace(lab(), users=replace(users, ssh_sessions=None)))
    assert value(unknown, "ds01_ssh_sessions_total") is None, "no record is not nobody"


def test_the_disk() -> None:
    found = series(lab(ds01=Ds01Reading(None, 0, 1000, 300, 700)))
    assert [value(found, "ds01_state_disk_bytes", type=type) for type in ("total", "used", "free")] == [1000, 700, 300]


def test_what_was_not_read_is_absent() -> None:
    found = series(Readings())
    assert {name for name, _ in found} == {"ds01_exporter_info"}
    without_docker = series(replace(lab(), docker=None))
    assert "ds01_containers_total" not in {name for name, _ in without_docker}


def test_every_metric_of_the_catalogue_can_be_served() -> None:
    users = UsersReading(
        {}, {"alice": "staff"}, {"staff": frozenset({"alice"})}, (UserSlice("alice", "staff", 1, 1),), {"alice": 1}
    )
    everything = replace(
        lab(docker("bare", devices=("/dev/nvidia0",))),
        users=users,
        events=EventsReading({"gpu.allocated": 1}),
        ds01=Ds01Reading((), 0, 3, 2, 1),
    )
    served = {name for name, _ in series(everything)}
    assert served == {metric.name for metric in DS01.catalogue}
    assert types_of(text(everything))["ds01_user_cpu_usage_seconds"] == "counter"
