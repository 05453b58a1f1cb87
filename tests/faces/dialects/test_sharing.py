"""The scheduler's state in nvshare's names and in ours, read back by Prometheus's own parser."""

from pathlib import Path

import pytest

from demo_node import DemoNode
from gpucommons.faces.dialects.gpucommons import sharing as own
from gpucommons.faces.dialects.nvshare import NVSHARE, clients
from gpucommons.faces.exposition.families import Family, Metric
from gpucommons.faces.exposition.text import FamilyRenderer, bounded_name, prometheus_head
from gpucommons.model.sharing import SharingReading
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.scheduler.policy.devices import GpuFacts
from gpucommons.scheduler.policy.quotas import QuotaValues
from gpucommons.scheduler.policy.state import GIB
from gpucommons.scheduler.protocol.wire import MessageType
from parsing import Series, parsed
from scheduler.served import Scripted, Served, serving

T = MessageType
HOSTILE = ('quo"te\\', "line\nbreak", "../../etc", "x" * 254)


def families(reading: SharingReading | None, *parts: object) -> list[Family]:
    snapshot = Snapshot(1, 0.0, 0.0, "host", readings=Readings(sharing=reading))
    return [family for part in parts for family in part.collect(snapshot)]  # type: ignore[attr-defined]


def text(reading: SharingReading, *parts: object) -> str:
    return "".join(
        prometheus_head(family.metric) + str(FamilyRenderer(family.metric).render(family).lines, "utf-8")
        for family in families(reading, *parts)
    )


def series(reading: SharingReading) -> Series:
    return parsed(text(reading, clients, own))


def one(found: Series, name: str, **labels: str) -> float:
    """The one series of this name with at least these labels."""
    matching = [
        value
        for (series_name, series_labels), value in found.items()
        if series_name == name and labels.items() <= dict(series_labels).items()
    ]
    assert len(matching) == 1, (name, labels, matching)
    return matching[0]


def names(found: Series) -> set[str]:
    return {name for name, _ in found}


def gpu(served: Served, **facts: object) -> None:
    known = GpuFacts("GPU-0", 0, 20 * GIB, **facts)  # type: ignore[arg-type]
    served.call(lambda: served.server.update_gpus([known]))


def test_nothing_is_there_without_a_scheduler() -> None:
    assert families(None, clients, own) == []


def test_an_idle_scheduler_shows_zeros_for_every_gpu_and_no_client(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        gpu(served)
        found = series(served.reading())
    assert one(found, "nvshare_scheduler_running_clients", gpu_uuid="GPU-0", gpu_index="0") == 0
    assert one(found, "nvshare_scheduler_memory_safe_limit_bytes", gpu_uuid="GPU-0") == 18 * GIB
    assert one(found, "nvshare_scheduler_drop_lock_total", gpu_uuid="GPU-0", reason="quota") == 0
    assert sum(name == "nvshare_scheduler_messages_total" for name, _ in found) == 14
    assert not [name for name in names(found) if name.startswith("nvshare_client_")]
    assert one(found, "gpucommons_sharing_way_info", uuid="GPU-0", way="alone", reason="no_contention") == 1


def test_every_family_has_its_head_from_the_start(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        said = text(served.reading(), clients)
    heads = [line.split()[2] for line in said.splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len(clients.CLIENTS_CATALOGUE) + len(clients.SCHEDULER_CATALOGUE) >= 25
    assert {metric.name for metric in NVSHARE.catalogue} >= set(heads)


def test_a_client_in_all_its_families(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        client = Scripted(served.path).register("pod", "ns", core_limit_percent=50).report(4 * GIB).ask().granted()
        client.report(3 * GIB)
        served.call(lambda: served.server.set_limit("ns/pod", QuotaValues(memory_bytes=2 * GIB)))
        served.until(lambda reading: reading.clients[0].allocated_bytes == 3 * GIB)
        pid = served.row(client).pid
        gpu(served, process_bytes={pid: GIB})
        found = series(served.reading())
    base = {"namespace": "ns", "pod": "pod", "client_id": client.id, "gpu_uuid": "GPU-0"}

    def value(name: str, **labels: str) -> float:
        return one(found, f"nvshare_client_{name}", **base, **labels)

    assert value("info", gpu_index="0", host_pid=str(pid)) == 1
    assert value("managed_allocated_bytes") == 3 * GIB
    assert value("managed_allocated_peak_bytes") == 4 * GIB
    assert value("nvml_used_bytes", host_pid=str(pid)) == GIB
    assert value("memory_need_estimated_bytes") == 3 * GIB
    assert value("memory_need_upper_bytes") == 4 * GIB
    assert (value("memory_quota_bytes"), value("memory_quota_exceeded")) == (2 * GIB, 1)
    assert (value("core_quota_config_percent"), value("core_quota_effective_percent")) == (50, 50)
    assert value("core_window_limit_ms") == 1000
    assert 0 < value("core_window_usage_ms") <= 2000
    assert value("core_usage_ratio") == pytest.approx(value("core_window_usage_ms") / 1000)
    assert (value("throttled"), value("pending_drop")) == (0, 0)
    assert 0 <= value("quota_debt_ms") < 1000
    source = {"namespace": "ns", "pod": "pod", "client_id": client.id, "source": "config"}
    assert one(found, "nvshare_client_memory_quota_source_info", **source) == 1
    assert "nvshare_client_memory_overhead_baseline_bytes" not in names(found)
    assert one(found, "nvshare_scheduler_running_memory_bytes", gpu_uuid="GPU-0") == 3 * GIB
    assert one(found, "nvshare_scheduler_messages_total", type="MEM_UPDATE") == 2


def test_the_overhead_shows_once_it_is_known(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        client = Scripted(served.path).register()
        gpu(served, process_bytes={served.row(client).pid: GIB})
        found = series(served.reading())
    assert one(found, "nvshare_client_memory_overhead_baseline_bytes") == GIB
    assert one(found, "nvshare_client_memory_need_estimated_bytes") == GIB


def test_the_running_memory_is_the_managed_memory_without_the_overhead(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        client = Scripted(served.path).register()
        gpu(served, process_bytes={served.row(client).pid: GIB // 2})
        client.report(4 * GIB).ask().granted()
        client.report(3 * GIB)
        served.until(lambda reading: reading.clients[0].allocated_bytes == 3 * GIB)
        running = series(served.reading())
        client.release()
        served.until(lambda reading: not reading.gpus[0].running)
        idle = series(served.reading())
    assert one(running, "nvshare_client_memory_need_estimated_bytes") == 3 * GIB + GIB // 2
    assert one(running, "nvshare_scheduler_running_memory_bytes", gpu_uuid="GPU-0") == 3 * GIB
    assert one(running, "nvshare_scheduler_peak_running_memory_bytes", gpu_uuid="GPU-0") == 4 * GIB
    assert one(idle, "nvshare_scheduler_running_memory_bytes", gpu_uuid="GPU-0") == 0
    assert one(idle, "nvshare_scheduler_peak_running_memory_bytes", gpu_uuid="GPU-0") == 4 * GIB


def test_what_a_v1_client_does_not_report_is_absent(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        client = Scripted(served.path, 1).register("old")
        found = series(served.reading())
    assert one(found, "nvshare_client_info", client_id=client.id) == 1
    for name in ("managed_allocated_bytes", "memory_need_estimated_bytes", "memory_quota_exceeded"):
        assert f"nvshare_client_{name}" not in names(found)


def test_without_debug_labels_a_pod_is_one_series(tmp_path: Path) -> None:
    with serving(tmp_path, metrics_debug_labels=False) as served:
        both = [
            Scripted(served.path).register("pod", "ns", core_limit_percent=25).report(amount * GIB) for amount in (1, 2)
        ]
        for client in both:
            client.ask().granted()
        served.until(lambda reading: sum(row.allocated_bytes for row in reading.clients) == 3 * GIB)
        found = series(served.reading())
    labels = {label for name, labels in found if name.startswith("nvshare_") for label, _ in labels}
    assert not labels & {"client_id", "host_pid"}
    assert one(found, "nvshare_client_managed_allocated_bytes", namespace="ns", pod="pod") == 3 * GIB
    assert one(found, "nvshare_client_core_quota_config_percent", pod="pod") == 50
    assert one(found, "nvshare_client_memory_quota_bytes", pod="pod") == 0
    assert one(found, "nvshare_client_memory_quota_source_info", pod="pod", source="none") == 1


def test_a_departed_client_disappears_at_once_or_after_the_ttl(tmp_path: Path) -> None:
    for ttl_s, lingers in ((0.0, False), (60.0, True)):
        with serving(tmp_path, metrics_stale_ttl_s=ttl_s) as served:
            Scripted(served.path).register("gone").report(GIB).close()
            served.until(lambda reading: reading.disconnects.get("closed") == 1)
            found = series(served.reading())
        assert ("nvshare_client_managed_allocated_bytes" in names(found)) == lingers, ttl_s
    with serving(tmp_path, metrics_stale_ttl_s=0.05) as served:
        Scripted(served.path).register("gone").close()
        served.until(lambda reading: reading.disconnects.get("closed") == 1 and not reading.departed)


def test_hostile_names_are_one_series_each(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        crowd = [Scripted(served.path).register(name, name) for name in HOSTILE]
        found = series(served.reading())
    pods = {dict(labels)["pod"] for name, labels in found if name == "nvshare_client_info"}
    assert pods == {bounded_name(name) for name in HOSTILE}
    assert len(crowd) == len(HOSTILE)


def test_turns_and_waits_are_in_the_histograms(tmp_path: Path) -> None:
    with serving(tmp_path, mode="serial") as served:
        first, second = (Scripted(served.path).register(name) for name in "ab")
        first.ask().granted()
        second.ask()
        served.until(lambda reading: len(reading.gpus[0].request_queue) == 1)
        first.release()
        second.granted().release()
        served.until(lambda reading: not reading.gpus[0].running)
        found = series(served.reading())
    assert one(found, "gpucommons_sharing_wait_seconds_count") == 2
    assert one(found, "gpucommons_sharing_turn_seconds_count") == 2
    assert one(found, "gpucommons_sharing_drop_to_release_seconds_count") == 0
    assert one(found, "gpucommons_sharing_handoff_seconds_count") >= 1
    assert one(found, "gpucommons_sharing_busy_seconds_total") == pytest.approx(
        sum(value for (name, _), value in found.items() if name == "gpucommons_sharing_client_billed_seconds_total")
    )


def test_a_revoked_client_and_its_reason(tmp_path: Path) -> None:
    with serving(tmp_path, mode="serial", revoke_after_s=0.05) as served:
        served.call(lambda: served.server.set_quantum(0.05))
        deaf = Scripted(served.path).register("deaf").ask().granted()
        Scripted(served.path).register("other").ask().granted()
        found = series(served.reading())
    assert one(found, "gpucommons_sharing_client_revoked", client_id=deaf.id) == 1
    assert one(found, "nvshare_scheduler_drop_lock_total", reason="revoked") == 1


def test_each_waiting_client_has_a_series_with_its_reason() -> None:
    sharing = DemoNode().sharing(3.0)
    families = own.collect_sharing(Snapshot(0, 0.0, 0.0, "h", readings=Readings(sharing=sharing)))
    (family,) = [family for family in families if family.metric is own.WAITING]
    found = {labels[2]: (labels[5], value) for labels, value in family.points}
    waiting = {
        row.client_id: (row.wait.reason.value, row.wait.waited_s) for row in sharing.clients if row.wait is not None
    }
    assert waiting
    assert len(waiting) < len(sharing.clients)
    assert found == waiting


def test_without_a_scheduler_there_are_no_families() -> None:
    assert list(own.collect_sharing(Snapshot(0, 0.0, 0.0, "h"))) == []


def points(reading: SharingReading, metric: Metric) -> dict[tuple[str, ...], float]:
    return {
        labels: value for family in families(reading, own) if family.metric is metric for labels, value in family.points
    }


def test_the_gain_is_missing_where_it_is_not_measured() -> None:
    sharing = DemoNode(gpus=2).sharing(3.0)
    first, second = (("0", sharing.gpus[0].uuid), ("1", sharing.gpus[1].uuid))
    assert points(sharing, own.GAIN) == {first: 1.34}
    assert points(sharing, own.COARSE) == {first: 0, second: 1}


def test_programs_are_counted_by_standing() -> None:
    sharing = DemoNode(gpus=2).sharing(3.0)
    standings = ("running", "waiting", "resting", "resting")
    clients = [
        one._replace(program="p", standing=each) for one, each in zip(sharing.clients[:4], standings, strict=True)
    ]
    counted = points(sharing._replace(clients=(*clients, *sharing.clients[4:])), own.SHARING_PROGRAMS)
    shown = {"running": 1, "waiting": 1, "throttled": 0, "resting": 2, "stopped": 0, "left_alone": 2}
    assert counted == {(standing,): count for standing, count in shown.items()}
    assert points(sharing._replace(share_programs="off"), own.SHARING_PROGRAMS) == {}


def test_a_name_is_a_label_and_escaped() -> None:
    sharing = DemoNode(gpus=2).sharing(3.0)
    name = 'alice · "train\\".py (pid 4711)'
    renamed = sharing._replace(clients=(sharing.clients[0]._replace(name=name), *sharing.clients[1:]))
    (family,) = [family for family in families(renamed, own) if family.metric is own.BILLED]
    found = parsed(prometheus_head(own.BILLED) + str(FamilyRenderer(own.BILLED).render(family).lines, "utf-8"))
    assert name in {dict(labels)["name"] for _, labels in found}
    assert not any("name" in metric.labels for metric in clients.CLIENTS_CATALOGUE)
