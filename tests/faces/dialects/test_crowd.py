"""An owner with many clients or processes: the number of series is limited, and the sums stay the same."""

from collections import Counter
from collections.abc import Mapping

import pytest

from demo_node import DemoNode
from gpucommons.faces.dialects import node as node_gpus
from gpucommons.faces.dialects import series as crowd
from gpucommons.faces.dialects.dialect import MetricModule
from gpucommons.faces.dialects.gpucommons import gpus
from gpucommons.faces.dialects.gpucommons import sharing as own
from gpucommons.faces.dialects.nvshare import clients as nvshare
from gpucommons.faces.dialects.series import MAX_OF_OWNER
from gpucommons.faces.dialects.xpushare import XPUSHARE
from gpucommons.faces.exposition.families import Metric
from gpucommons.model.gpu import GpuProcess
from gpucommons.model.sharing import ClientSharing, HistogramReading, SharingReading, WaitReading, WaitReason
from gpucommons.model.snapshot import Readings, Snapshot
from played import snapshot_of

GREEDY, MODEST = 1000, 1001
EMPTY = HistogramReading((), (0,), 0.0)


def client(number: int, uid: int, pod: str = "") -> ClientSharing:
    return ClientSharing(
        client_id=f"{number:016x}",
        pod=pod or f"pod-{number}",
        namespace="",
        gpu_uuid=f"GPU-{number % 2}",
        gpu_index=number % 2,
        protocol_version=2,
        pid=number + 1,
        uid=uid,
        gid=uid,
        standing="waiting",
        revoked=number % 5 == 0,
        pending_drop=False,
        turn_s=None,
        turns=1,
        wait=WaitReading(WaitReason.TURN, 2.0, number, 0, None),
        allocated_bytes=1 << 20,
        allocated_peak_bytes=2 << 20,
        nvml_bytes=3 << 20,
        overhead_bytes=1 << 20,
        need_bytes=4 << 20,
        memory_quota_bytes=8 << 20,
        memory_quota_source="config",
        core_quota_percent=50,
        core_quota_effective_percent=25.0,
        core_quota_source="config",
        window_usage_s=0.5,
        window_limit_s=1.0,
        throttled=False,
        debt_s=0.25,
        billed_s=4.0,
        demand_ratio=0.5,
    )


def reading(clients: list[ClientSharing], debug_labels: bool) -> SharingReading:
    return SharingReading(
        True, "serial", None, (), tuple(clients), (), {}, {}, {}, EMPTY, 1.0, debug_labels, len(clients)
    )


def sums(sharing: SharingReading, part: object) -> tuple[dict[str, float], Counter[str]]:
    """The sum and the number of series of each family."""
    snapshot = Snapshot(1, 0.0, 0.0, "host", readings=Readings(sharing=sharing))
    totals, counts = {}, Counter[str]()
    for family in part.collect(snapshot):  # type: ignore[attr-defined]
        totals[family.metric.name] = sum(value for _, value in family.points)
        counts[family.metric.name] = len({labels for labels, _ in family.points})
        assert counts[family.metric.name] == len(family.points), f"{family.metric.name} repeats a series"
    return totals, counts


# Flags, quotients and the origins of quotas are not amounts.
NOT_SUMS = ("_throttled", "_pending_drop", "_exceeded", "_ratio", "_source_info")


@pytest.mark.parametrize("debug_labels", [True, False])
@pytest.mark.parametrize("part", [nvshare, own, XPUSHARE], ids=["nvshare", "gpucommons", "xpushare"])
def test_clients_beyond_the_limit_share_a_series_that_keeps_the_sums(
    part: object, debug_labels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowded = [client(number, GREEDY) for number in range(4000)]
    sharing = reading([*crowded, *(client(number, MODEST) for number in range(5000, 5003))], debug_labels)
    found, counts = sums(sharing, part)
    monkeypatch.setattr(crowd, "MAX_OF_OWNER", 100_000)
    # Of other rows, since the families of the same ones are kept.
    others = tuple(row._replace(turns=row.turns + 1) for row in sharing.clients)
    unlimited, all_counts = sums(sharing._replace(clients=others), part)
    assert max(all_counts.values()) == 4003
    # Two more: the overflow on each of the two GPUs.
    assert max(counts.values()) == MAX_OF_OWNER + 3 + 2
    for name, total in unlimited.items():
        if not name.endswith(NOT_SUMS):
            assert found[name] == pytest.approx(total), name


def test_clients_of_other_users_keep_their_series() -> None:
    crowded = [client(number, GREEDY) for number in range(2 * MAX_OF_OWNER)]
    modest = [client(number, MODEST) for number in range(5000, 5003)]
    snapshot = Snapshot(1, 0.0, 0.0, "host", readings=Readings(sharing=reading([*crowded, *modest], True)))
    info = next(family for family in nvshare.collect_clients(snapshot) if family.metric is nvshare.INFO)
    pods = {labels[1] for labels, _ in info.points}
    assert {row.pod for row in modest} <= pods
    assert "overflow" in pods


def test_a_client_that_calls_itself_overflow_is_counted_once() -> None:
    crowded = [client(number, GREEDY) for number in range(MAX_OF_OWNER + 10)]
    crowded[0] = client(0, GREEDY, pod="overflow")
    sharing = reading(crowded, debug_labels=False)
    totals, _ = sums(sharing, nvshare)
    assert totals["nvshare_client_managed_allocated_bytes"] == len(crowded) << 20


def test_departed_clients_count_towards_the_limit() -> None:
    rows = tuple(client(number, GREEDY) for number in range(MAX_OF_OWNER))
    gone = tuple(client(number, GREEDY) for number in range(MAX_OF_OWNER, 2 * MAX_OF_OWNER))
    totals, counts = sums(reading(list(rows), True)._replace(departed=gone), nvshare)
    assert counts["nvshare_client_info"] == MAX_OF_OWNER + 2
    assert totals["nvshare_client_info"] == 2 * MAX_OF_OWNER


def crowded_gpus() -> Snapshot:
    """A node on whose GPUs the driver lists each process that has a share."""
    readings = DemoNode(gpus=8, processes_a_gpu=40).readings(0.0)
    assert readings.gpus is not None
    assert readings.attribution is not None
    shares = readings.attribution.processes
    listed = [
        gpu._replace(
            processes=tuple(
                GpuProcess(share.pid, share.key, "compute", 1000 + share.pid, share.pid % 5, 1, 0, 0)
                for share in shares
                if share.place.gpu_uuid == gpu.identity.uuid
            ),
        )
        for gpu in readings.gpus.gpus
    ]
    return snapshot_of(readings._replace(gpus=readings.gpus._replace(gpus=tuple(listed))))


@pytest.mark.parametrize(
    ("part", "metric"), [(gpus, gpus.PROCESS), (node_gpus, node_gpus.PROCESS_MEMORY)], ids=["ours", "node"]
)
def test_processes_beyond_the_limit_share_a_series_on_each_gpu(
    part: MetricModule, metric: Metric, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = crowded_gpus()

    def by_gpu() -> tuple[Mapping[tuple[str, ...], float], int]:
        (family,) = [family for family in part.collect(snapshot) if family.metric is metric]
        totals: dict[tuple[str, ...], float] = {}
        for labels, value in family.points:
            key = tuple(text for name, text in zip(metric.labels, labels, strict=True) if name != "pid")
            totals[key] = totals.get(key, 0) + value
        assert len(dict(family.points)) == len(family.points)
        return totals, len(family.points)

    unlimited, all_series = by_gpu()
    monkeypatch.setattr(crowd, "MAX_OF_OWNER", 16)
    limited, series = by_gpu()
    assert series < 0.6 * all_series
    assert limited.keys() == unlimited.keys()
    for key, total in unlimited.items():
        assert limited[key] == pytest.approx(total)
