"""nvshare_client_*: each client's memory and share of the GPU. v1 clients do not report their memory: it is omitted.

`client_id` and `host_pid` are debug labels. Without them the clients of one pod on one GPU are one series: amounts are
summed, flags are 1 if one client's is.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from gpucommons.faces.exposition.families import Family, Metric, Point, gauge
from gpucommons.model.sharing import ClientSharing, SharingReading
from gpucommons.model.snapshot import Snapshot

_CLIENT = ("namespace", "pod", "client_id", "gpu_uuid")
_DEBUG = frozenset({"client_id", "host_pid"})

_Labels = tuple[str, str, str, str]
Pod = Sequence[ClientSharing]


class _Value(NamedTuple):
    """One metric: its value for one client, the usual case, which must be fast, and for all clients of a pod."""

    metric: Metric
    of_client: Callable[[ClientSharing], float | None]
    of_pod: Callable[[Pod], float | None]


def _gauge(name: str, help: str, *labels: str) -> Metric:
    return gauge(f"nvshare_client_{name}", help, *labels, optional=_DEBUG & set(labels))


INFO = _gauge(
    "info", "Registered client, with its GPU and its pid on the host; always 1.", *_CLIENT, "gpu_index", "host_pid"
)
NVML_USED = _gauge("nvml_used_bytes", "GPU memory of the client's process according to NVML.", *_CLIENT, "host_pid")
QUOTA_SOURCE = _gauge(
    "memory_quota_source_info",
    "Source of the memory quota in force (annotation, env, config or none); always 1.",
    "namespace",
    "pod",
    "client_id",
    "source",
)


def _sum(metric: Metric, read: Callable[[ClientSharing], float | None]) -> _Value:
    """The sum over a pod's clients that have the value; None if none has."""

    def of_pod(pod: Pod) -> float | None:
        found = [amount for client in pod if (amount := read(client)) is not None]
        return sum(found) if found else None

    return _Value(metric, read, of_pod)


def _any(metric: Metric, read: Callable[[ClientSharing], bool | None]) -> _Value:
    def of_client(client: ClientSharing) -> float | None:
        flag = read(client)
        return None if flag is None else int(flag)

    def of_pod(pod: Pod) -> float | None:
        found = [flag for client in pod if (flag := read(client)) is not None]
        return int(any(found)) if found else None

    return _Value(metric, of_client, of_pod)


def _exceeded(client: ClientSharing) -> bool | None:
    if client.protocol_version == 1:
        return None
    return 0 < client.memory_quota_bytes < client.allocated_bytes


def _need_upper(client: ClientSharing) -> int | None:
    if client.protocol_version == 1 or client.nvml_bytes is None:
        return None
    return client.allocated_bytes + client.nvml_bytes


def _quota(pod: Pod) -> float:
    """A pod with a client without a limit has no limit."""
    quotas = [client.memory_quota_bytes for client in pod]
    return 0 if 0 in quotas else sum(quotas)


def _usage_ratio(pod: Pod) -> float | None:
    limit_s = sum(client.window_limit_s for client in pod)
    return sum(client.window_usage_s for client in pod) / limit_s if limit_s else None


_VALUES: tuple[_Value, ...] = (
    # v1 clients do not report their memory.
    _sum(
        _gauge("managed_allocated_bytes", "Memory that the client reports as allocated.", *_CLIENT),
        lambda client: None if client.protocol_version == 1 else client.allocated_bytes,
    ),
    _sum(
        _gauge(
            "managed_allocated_peak_bytes", "Highest amount of memory that the client reported as allocated.", *_CLIENT
        ),
        lambda client: None if client.protocol_version == 1 else client.allocated_peak_bytes,
    ),
    _sum(
        _gauge(
            "memory_overhead_baseline_bytes",
            "Memory of the client's process besides its allocations, smoothed (O_base).",
            *_CLIENT,
        ),
        lambda client: client.overhead_bytes,
    ),
    _sum(
        _gauge(
            "memory_need_estimated_bytes",
            "Estimated need of the client: allocated memory, and the overhead where it is known.",
            *_CLIENT,
        ),
        lambda client: client.need_bytes,
    ),
    _sum(
        _gauge(
            "memory_need_upper_bytes",
            "Upper bound of the client's need: allocated memory, and the process's memory according to NVML.",
            *_CLIENT,
        ),
        _need_upper,
    ),
    _Value(
        _gauge("memory_quota_bytes", "Memory quota of the client; 0 is unlimited.", *_CLIENT),
        lambda client: client.memory_quota_bytes,
        _quota,
    ),
    _any(
        _gauge(
            "memory_quota_exceeded",
            "Whether the client has allocated more than its memory quota (1) or not (0).",
            *_CLIENT,
        ),
        _exceeded,
    ),
    _sum(
        _gauge("core_quota_config_percent", "Configured share of the GPU's time, 1 to 100.", *_CLIENT),
        lambda client: client.core_quota_percent,
    ),
    _sum(
        _gauge(
            "core_quota_effective_percent",
            "Share of the GPU's time after the shares of all running and waiting clients were scaled to 100.",
            *_CLIENT,
        ),
        lambda client: client.core_quota_effective_percent,
    ),
    _sum(
        _gauge(
            "core_window_usage_ms", "GPU time billed to the client in this window, the running turn included.", *_CLIENT
        ),
        lambda client: 1000 * client.window_usage_s,
    ),
    _sum(
        _gauge("core_window_limit_ms", "GPU time of the client's share of a window.", *_CLIENT),
        lambda client: 1000 * client.window_limit_s,
    ),
    _Value(
        _gauge("core_usage_ratio", "Usage of this window divided by its limit.", *_CLIENT),
        lambda client: client.window_usage_s / client.window_limit_s if client.window_limit_s else None,
        _usage_ratio,
    ),
    _any(
        _gauge(
            "throttled", "Whether the client's share is used up and it waits for a refill (1) or not (0).", *_CLIENT
        ),
        lambda client: client.throttled,
    ),
    _any(
        _gauge(
            "pending_drop", "Whether DROP_LOCK was sent and the client has not released yet (1) or not (0).", *_CLIENT
        ),
        lambda client: client.pending_drop,
    ),
    _sum(
        _gauge("quota_debt_ms", "GPU time that the client used beyond its share and still owes.", *_CLIENT),
        lambda client: 1000 * client.debt_s,
    ),
)
_NVML_OF_POD = _sum(NVML_USED, lambda client: client.nvml_bytes).of_pod

CATALOGUE = (INFO, NVML_USED, QUOTA_SOURCE, *(value.metric for value in _VALUES))


def collect(snapshot: Snapshot) -> Iterator[Family]:
    sharing = snapshot.readings.sharing
    if sharing is None:
        return
    if sharing.debug_labels:
        yield from _by_client([*sharing.clients, *sharing.departed])
    else:
        yield from _by_pod(_folded(sharing))


def _by_client(clients: list[ClientSharing]) -> Iterator[Family]:
    labels = [(client.namespace, client.pod, client.client_id, client.gpu_uuid) for client in clients]
    rows = list(zip(labels, clients, strict=True))
    yield INFO.of([((*labels, _index(client), str(client.pid)), 1) for labels, client in rows])
    yield NVML_USED.of([((*labels, str(c.pid)), c.nvml_bytes) for labels, c in rows if c.nvml_bytes is not None])
    yield QUOTA_SOURCE.of(_sources((labels, (client,)) for labels, client in rows))
    for metric, read, _ in _VALUES:
        yield metric.of([(labels, value) for labels, client in rows if (value := read(client)) is not None])


def _by_pod(pods: list[tuple[_Labels, Pod]]) -> Iterator[Family]:
    yield INFO.of([((*labels, _index(pod[0]), ""), 1) for labels, pod in pods])
    used = ((labels, _NVML_OF_POD(pod)) for labels, pod in pods)
    yield NVML_USED.of([((*labels, ""), value) for labels, value in used if value is not None])
    yield QUOTA_SOURCE.of(_sources(pods))
    for metric, _, read in _VALUES:
        yield metric.of([(labels, value) for labels, pod in pods if (value := read(pod)) is not None])


def _folded(sharing: SharingReading) -> list[tuple[_Labels, Pod]]:
    """By pod and GPU. Departed clients count only if no client of their pod is connected."""
    connected = _grouped(sharing.clients)
    departed = {labels: pod for labels, pod in _grouped(sharing.departed).items() if labels not in connected}
    return [*connected.items(), *departed.items()]


def _grouped(clients: Iterable[ClientSharing]) -> dict[_Labels, list[ClientSharing]]:
    pods: dict[_Labels, list[ClientSharing]] = {}
    for client in clients:
        pods.setdefault((client.namespace, client.pod, "", client.gpu_uuid), []).append(client)
    return pods


def _sources(pods: Iterable[tuple[_Labels, Pod]]) -> list[Point]:
    """Each source once, also for a pod on two GPUs or with two clients."""
    found: dict[tuple[str, ...], float] = {}
    for (namespace, pod_name, client_id, _), pod in pods:
        for client in pod:
            # nvshare has four sources: a limit set by an operator counts as config.
            source = "config" if client.memory_quota_source == "set-limit" else client.memory_quota_source
            found[(namespace, pod_name, client_id, source)] = 1
    return list(found.items())


def _index(client: ClientSharing) -> str:
    return "" if client.gpu_index is None else str(client.gpu_index)
