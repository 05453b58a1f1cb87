"""A DS01 node as its files and Docker describe it: every series with the value that DS01's exporter would give it.

The differences that are meant are in docs/deploy.md; here they are the version, the interface api, the profiles and
equivalents of MIG devices, ds01_user_mig_allocated (of older exporters) and ds01_unmanaged_gpu_all_access.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from attribution.builders import gpu, mig_instance, reading
from gpucommons.faces.dialects.ds01 import DS01
from gpucommons.faces.exposition.exposition import Exposition
from gpucommons.model.ownership import Attribution
from gpucommons.model.snapshot import AgentReading, Readings, Snapshot
from gpucommons.model.workloads import ContainerReading
from gpucommons.owners.holding_stage import AllocationStage
from gpucommons.owners.slots import slice_owner
from gpucommons.sources.containers.engine import container_of
from gpucommons.sources.ds01.events import Ds01EventsReader
from gpucommons.sources.ds01.state import Ds01StateReader
from gpucommons.sources.people.users import UsersReader
from holding.test_allocations import VIEW
from parsing import parsed
from sources.people.test_utmp import record

NOW_S = 1_795_000_000.0
DAY_S = 86_400
GPUS = (gpu(0), gpu(1), gpu(2, mig=(mig_instance(3, 2, 0.5, 2), mig_instance(9, 1, 0.5, 2)))._replace(mig_slices=7))
EVENTS = {
    "maintenance.idle_kill": 3,
    "resource.oom_kill": 2,
    "alert.gpu_warning": 4,
    "bare_metal.warning": 1,
    "maintenance.cleanup": 5,
    "container.started": 6,
}


def inspected(
    name: str,
    labels: Mapping[str, str] | None = None,
    ids: tuple[str, ...] = (),
    count: int = 0,
    running: bool = True,
    parent: str = "",
) -> dict[str, Any]:
    request = {"Driver": "", "Count": count, "DeviceIDs": list(ids), "Capabilities": [["gpu"]]}
    return {
        "Id": name.encode().hex().ljust(64, "0")[:64],
        "Name": f"/{name}",
        "State": {"Status": "running" if running else "exited", "Pid": 0},
        "Config": {"Labels": labels or {}, "Env": []},
        "HostConfig": {"DeviceRequests": [request] if ids or count else None, "CgroupParent": parent},
    }


CONTAINERS = (
    inspected("train", {"ds01.user": "alice", "ds01.interface": "orchestration"}, ("GPU-0",)),
    inspected("thesis._.1001", {"aime.mlc.USER": "bob"}, ("MIG-2-3",)),
    inspected("notes", {"ds01.user": "carol", "ds01.interface": "atomic"}),
    inspected("kept", {"ds01.user": "dan", "ds01.managed": "true"}, ("GPU-1",), running=False),
    inspected("in-slice", ids=("MIG-2-9",), parent="ds01-student-h_baker.slice"),
    inspected("web-1", {"com.docker.compose.project.working_dir": "/home/eve/web"}, count=2, running=False),
    inspected("curie", count=-1),
    inspected("ds01-dcgm-exporter", {"ds01.protected": "true"}, count=-1),
)

EXPECTED = f"""
ds01_exporter_info{{version="0.9",type="gpucommons"}} 1
ds01_gpu_slot_info{{gpu="0",slot="0",gpu_uuid="GPU-0",mig_enabled="false"}} 1
ds01_gpu_slot_info{{gpu="1",slot="1",gpu_uuid="GPU-1",mig_enabled="false"}} 1
ds01_mig_slot_info{{gpu="2",gpu_i_id="3",slot="2.0",mig_uuid="MIG-2-3"}} 1
ds01_mig_slot_info{{gpu="2",gpu_i_id="9",slot="2.1",mig_uuid="MIG-2-9"}} 1
ds01_mig_mapping_status{{mapped="2",unmapped="0"}} 1
ds01_gpu_allocated{{gpu_slot="0",container="train",user="alice",interface="orchestration",profile="full"}} 1
ds01_gpu_allocated{{gpu_slot="1",container="kept",user="dan",interface="atomic",profile="full"}} 1
ds01_gpu_allocated{{gpu_slot="2.0",container="thesis._.1001",user="bob",interface="atomic",profile="2g.20gb"}} 1
ds01_gpu_allocated{{gpu_slot="2.1",container="in-slice",user="h_baker",interface="docker",profile="1g.10gb"}} 1
ds01_gpu_equivalents{{gpu_slot="0",user="alice",interface="orchestration",profile="full"}} 1
ds01_gpu_equivalents{{gpu_slot="1",user="dan",interface="atomic",profile="full"}} 1
ds01_gpu_equivalents{{gpu_slot="2.0",user="bob",interface="atomic",profile="2g.20gb"}} {2 / 7!r}
ds01_gpu_equivalents{{gpu_slot="2.1",user="h_baker",interface="docker",profile="1g.10gb"}} {1 / 7!r}
ds01_containers_total{{status="running",interface="orchestration"}} 1
ds01_containers_total{{status="running",interface="atomic"}} 2
ds01_containers_total{{status="running",interface="docker"}} 2
ds01_containers_total{{status="running",interface="other"}} 0
ds01_containers_total{{status="running",interface="api"}} 0
ds01_containers_total{{status="stopped",interface="orchestration"}} 0
ds01_containers_total{{status="stopped",interface="atomic"}} 1
ds01_containers_total{{status="stopped",interface="docker"}} 0
ds01_containers_total{{status="stopped",interface="other"}} 0
ds01_containers_total{{status="stopped",interface="api"}} 0
ds01_user_mig_allocated{{user="alice"}} 1
ds01_user_mig_allocated{{user="bob"}} 1
ds01_user_mig_allocated{{user="carol"}} 0
ds01_user_mig_allocated{{user="dan"}} 1
ds01_user_mig_allocated{{user="h_baker"}} 1
ds01_user_gpus_allocated{{user="alice"}} 1
ds01_user_gpus_allocated{{user="bob"}} 1
ds01_user_gpus_allocated{{user="carol"}} 0
ds01_user_gpus_allocated{{user="dan"}} 1
ds01_user_gpus_allocated{{user="h_baker"}} 1
ds01_user_gpu_equivalents{{user="alice"}} 1
ds01_user_gpu_equivalents{{user="bob"}} {2 / 7!r}
ds01_user_gpu_equivalents{{user="carol"}} 0
ds01_user_gpu_equivalents{{user="dan"}} 1
ds01_user_gpu_equivalents{{user="h_baker"}} {1 / 7!r}
ds01_user_containers_count{{user="alice"}} 1
ds01_user_containers_count{{user="bob"}} 1
ds01_user_containers_count{{user="carol"}} 0
ds01_user_containers_count{{user="dan"}} 1
ds01_user_containers_count{{user="h_baker"}} 1
ds01_unmanaged_gpu_container{{container="web-1",user="eve",gpu_count="2",access_type="count",running="false"}} 1
ds01_unmanaged_gpu_container{{container="curie",user="unknown",gpu_count="ALL",access_type="all",running="true"}} 1
ds01_unmanaged_gpu_count 2
ds01_unmanaged_gpu_running 1
ds01_unmanaged_gpu_all_access 1
ds01_events_24h_total{{event_type="maintenance.idle_kill"}} 3
ds01_events_24h_total{{event_type="resource.oom_kill"}} 2
ds01_events_24h_total{{event_type="alert.gpu_warning"}} 4
ds01_events_24h_total{{event_type="bare_metal.warning"}} 1
ds01_events_24h_total{{event_type="maintenance.cleanup"}} 5
ds01_events_24h_total{{event_type="container.started"}} 6
ds01_lifecycle_events_total{{action="idle_kill"}} 3
ds01_lifecycle_events_total{{action="runtime_kill"}} 0
ds01_lifecycle_events_total{{action="oom_kill"}} 2
ds01_lifecycle_events_total{{action="gpu_warning"}} 4
ds01_lifecycle_events_total{{action="memory_warning"}} 0
ds01_lifecycle_events_total{{action="container_warning"}} 0
ds01_lifecycle_events_total{{action="bare_metal_warning"}} 1
ds01_ssh_sessions_active{{user="alice"}} 2
ds01_ssh_sessions_total 2
ds01_user_group_info{{user="alice",group="student"}} 1
ds01_user_group_info{{user="h.baker@example.org",group="student"}} 1
ds01_user_group_info{{user="carol",group="faculty"}} 1
ds01_group_members_total{{group="student"}} 2
ds01_group_members_total{{group="faculty"}} 1
ds01_user_cpu_usage_seconds_total{{user="h.baker@example.org",group="student"}} 5
ds01_user_cpu_usage_seconds_total{{user="zoe",group="guest"}} 1.5
ds01_user_memory_current_bytes{{user="h.baker@example.org",group="student"}} 100
ds01_user_memory_current_bytes{{user="zoe",group="guest"}} 7
"""


def put(file: Path, text: str | bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())


def event_log() -> str:
    """The events of a day: one leaves the window after a minute, one is older than a day."""
    last_day = [(type, NOW_S - 60) for type, count in EVENTS.items() for _ in range(count - 1)]
    leaving = [(type, NOW_S - DAY_S + 60) for type in EVENTS]
    lines = [*last_day, *leaving, ("maintenance.idle_kill", NOW_S - DAY_S - 60)]
    return "".join(
        json.dumps({"timestamp": datetime.fromtimestamp(at, UTC).isoformat(), "event_type": type}) + "\n"
        for type, at in lines
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    put(tmp_path / "etc/passwd", "bob:x:1001:1001::/home/bob:/bin/sh\n")
    put(tmp_path / "run/utmp", record("alice", "10.0.0.7", 1) + record("alice", "10.0.0.8", 1))
    (tmp_path / "proc/1").mkdir(parents=True)
    put(tmp_path / "groups/student.members", "alice\nh.baker@example.org  # thesis\n")
    put(tmp_path / "groups/faculty.members", "carol\n")
    put(tmp_path / "groups/archived.members", "gone\n")
    put(tmp_path / "cgroup/cgroup.controllers", "cpu memory\n")
    for slice, cpu_us, memory in (
        ("ds01.slice/ds01-student.slice/ds01-student-h_baker.slice", 5_000_000, 100),
        ("ds01.slice/ds01-guest.slice/ds01-guest-zoe.slice", 1_500_000, 7),
        ("user.slice/user-1001.slice", 9_000_000, 9),
    ):
        put(tmp_path / "cgroup" / slice / "cpu.stat", f"usage_usec {cpu_us}\n")
        put(tmp_path / "cgroup" / slice / "memory.current", f"{memory}\n")
    put(tmp_path / "log/events.jsonl", event_log())
    return tmp_path


def exposed(root: Path, now_s: float = NOW_S) -> str:
    containers = [found for each in CONTAINERS if (found := container_of(each, "docker"))]
    events = Ds01EventsReader(root / "log/events.jsonl", root / "place", wall=lambda: now_s)
    people = UsersReader(root, root / "proc", root / "cgroup", slice_owner, root / "groups")
    readings = Readings(
        gpus=reading(*GPUS),
        docker=ContainerReading({each.id: each for each in containers}),
        users=people.read(),
        events=events.read(),
        ds01=Ds01StateReader(root / "log/gpu-state.json").read(),
        attribution=Attribution((), (), (), (), VIEW),
        agent=AgentReading("0.9", 0.0, None, None, None, None),
    )
    snapshot = Snapshot(0, 0.0, now_s, "ds01", readings=AllocationStage()(readings))
    body, _ = Exposition(lambda: snapshot, [DS01]).metrics("ds01", False, gzip=False)
    return body.decode()


def test_every_series_of_a_ds01_node(root: Path) -> None:
    found = parsed(exposed(root))
    disk = {dict(labels)["type"]: size for (name, labels), size in found.items() if name == "ds01_state_disk_bytes"}
    assert disk["used"] + disk["free"] == disk["total"] > 0
    rest = {series: value for series, value in found.items() if series[0] != "ds01_state_disk_bytes"}
    assert rest == pytest.approx(parsed(EXPECTED))


def test_the_24_hours_slide(root: Path) -> None:
    found = parsed(exposed(root, NOW_S + 120))
    counts = {dict(labels)["action"]: n for (name, labels), n in found.items() if name == "ds01_lifecycle_events_total"}
    assert counts == {
        "idle_kill": 2,
        "runtime_kill": 0,
        "oom_kill": 1,
        "gpu_warning": 3,
        "memory_warning": 0,
        "container_warning": 0,
        "bare_metal_warning": 0,
    }
