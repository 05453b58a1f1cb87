"""nvshare_client_* and nvshare_scheduler_*: clients, their turns and quotas."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from gpucommons.faces.dialects.series import OVERFLOW, KeptFamilies, client_labels, overflow_by_gpu, within_limit
from gpucommons.faces.exposition.families import Family, Metric, Point, counter, gauge
from gpucommons.model.sharing import ClientSharing, GpuSharing
from gpucommons.model.snapshot import Snapshot

# nvshare_client_*: each client's memory and share of the GPU. v1 clients do not report memory: it is omitted.
#
# `client_id` and `host_pid` are debug labels. Without them the clients of one pod on one GPU share a series: amounts
# are summed, and a flag is 1 if it is 1 for any of them. So do the clients beyond the limit of series of their user.

_CLIENT = ("namespace", "pod", "client_id", "gpu_uuid")
_DEBUG = frozenset({"client_id", "host_pid"})

# Namespace and pod.
_OVERFLOW_NAME = ("", OVERFLOW)

_Labels = tuple[str, str, str, str]
Pod = Sequence[ClientSharing]


class _Value(NamedTuple):
    """One metric: its value for a single client, the common case, and for the clients of a pod together."""

    metric: Metric
    of_client: Callable[[ClientSharing], float | None]
    of_pod: Callable[[Pod], float | None]


def _gauge(name: str, help: str, labels: tuple[str, ...] = _CLIENT) -> Metric:
    return gauge(f"nvshare_client_{name}", help, *labels, optional=_DEBUG & set(labels))


INFO = _gauge(
    "info",
    'Registered client with its GPU and its pid on the host; 1, or the number of clients in pod "overflow".',
    (*_CLIENT, "gpu_index", "host_pid"),
)
NVML_USED = _gauge("nvml_used_bytes", "GPU memory of a client's process as reported by NVML.", (*_CLIENT, "host_pid"))
QUOTA_SOURCE = _gauge(
    "memory_quota_source_info",
    "Origin of a client's memory quota: annotation, env, config or none; always 1.",
    ("namespace", "pod", "client_id", "source"),
)


def _sum(metric: Metric, read: Callable[[ClientSharing], float | None]) -> _Value:
    """The sum over the clients of a pod that have the value; None if none has it."""

    def of_pod(pod: Pod) -> float | None:
        amounts = [amount for client in pod if (amount := read(client)) is not None]
        return sum(amounts) if amounts else None

    return _Value(metric, read, of_pod)


def _any(metric: Metric, read: Callable[[ClientSharing], bool | None]) -> _Value:
    def of_pod(pod: Pod) -> float | None:
        flags = [flag for client in pod if (flag := read(client)) is not None]
        return int(any(flags)) if flags else None

    return _Value(metric, read, of_pod)


def _exceeds_quota(client: ClientSharing) -> bool | None:
    if client.protocol_version == 1:
        return None
    return 0 < client.memory_quota_bytes < client.allocated_bytes


def _need_upper(client: ClientSharing) -> int | None:
    if client.protocol_version == 1 or client.nvml_bytes is None:
        return None
    return client.allocated_bytes + client.nvml_bytes


def _quota(pod: Pod) -> float:
    """A pod is unlimited if one of its clients is."""
    quotas = [client.memory_quota_bytes for client in pod]
    return 0 if 0 in quotas else sum(quotas)


def _usage_ratio(pod: Pod) -> float | None:
    limit_s = sum(client.window_limit_s for client in pod)
    return sum(client.window_usage_s for client in pod) / limit_s if limit_s else None


_VALUES: tuple[_Value, ...] = (
    # v1 clients do not report their memory.
    _sum(
        _gauge("managed_allocated_bytes", "Memory that a client has allocated, as it reports."),
        lambda client: None if client.protocol_version == 1 else client.allocated_bytes,
    ),
    _sum(
        _gauge("managed_allocated_peak_bytes", "Highest allocated memory that a client has reported."),
        lambda client: None if client.protocol_version == 1 else client.allocated_peak_bytes,
    ),
    _sum(
        _gauge(
            "memory_overhead_baseline_bytes",
            "Memory that a client's process uses beyond its allocations, smoothed (O_base).",
        ),
        attrgetter("overhead_bytes"),
    ),
    _sum(
        _gauge(
            "memory_need_estimated_bytes",
            "Estimated memory need of a client: allocated memory plus the overhead if known.",
        ),
        attrgetter("need_bytes"),
    ),
    _sum(
        _gauge(
            "memory_need_upper_bytes", "Upper bound of a client's memory need: allocated memory plus what NVML reports."
        ),
        _need_upper,
    ),
    _Value(
        _gauge("memory_quota_bytes", "Memory quota of a client; 0 is unlimited."),
        attrgetter("memory_quota_bytes"),
        _quota,
    ),
    _any(_gauge("memory_quota_exceeded", "State of a client's memory quota: 1 if exceeded, else 0."), _exceeds_quota),
    _sum(
        _gauge("core_quota_config_percent", "Configured share of GPU time of a client, 1 to 100."),
        attrgetter("core_quota_percent"),
    ),
    _sum(
        _gauge(
            "core_quota_effective_percent",
            "Share of GPU time of a client after scaling the shares of all requesting clients to 100.",
        ),
        attrgetter("core_quota_effective_percent"),
    ),
    _sum(
        _gauge("core_window_usage_ms", "GPU time billed to a client in this window, including the running turn."),
        lambda client: 1000 * client.window_usage_s,
    ),
    _sum(
        _gauge("core_window_limit_ms", "GPU time that a client may use in one window."),
        lambda client: 1000 * client.window_limit_s,
    ),
    _Value(
        _gauge("core_usage_ratio", "Usage of a client in this window divided by its limit."),
        lambda client: client.window_usage_s / client.window_limit_s if client.window_limit_s else None,
        _usage_ratio,
    ),
    _any(
        _gauge("throttled", "Throttling of a client: 1 while it has used up its share and waits, else 0."),
        attrgetter("throttled"),
    ),
    _any(
        _gauge("pending_drop", "Pending release of a client: 1 from DROP_LOCK until it has released the lock, else 0."),
        attrgetter("pending_drop"),
    ),
    _sum(
        _gauge("quota_debt_ms", "GPU time that a client has used beyond its share and still owes."),
        lambda client: 1000 * client.debt_s,
    ),
)
_NVML_OF_POD = _sum(NVML_USED, lambda client: client.nvml_bytes).of_pod

CLIENTS_CATALOGUE = (INFO, NVML_USED, QUOTA_SOURCE, *(value.metric for value in _VALUES))


def collect_clients(snapshot: Snapshot) -> Iterator[Family]:
    sharing = snapshot.readings.sharing
    if sharing is None:
        return
    make = _CLIENT_FAMILIES if sharing.debug_labels else _POD_FAMILIES
    yield from make(sharing.clients, sharing.departed)


def _by_client(clients: Pod, departed: Pod) -> Iterator[Family]:
    own, rest = within_limit([*clients, *departed], lambda client: client.uid)
    rows = [(client_labels(c.namespace, c.pod, c.client_id, c.gpu_uuid), c) for c in own]
    others = _overflow(rest)
    yield INFO.of([*(((*labels, _index(client), str(client.pid)), 1) for labels, client in rows), *_info(others)])
    used = [((*labels, str(c.pid)), c.nvml_bytes) for labels, c in rows if c.nvml_bytes is not None]
    yield NVML_USED.of([*used, *_nvml_points(others)])
    yield QUOTA_SOURCE.of(_sources([*((labels, (client,)) for labels, client in rows), *others]))
    names = [labels for labels, _ in rows]
    for metric, read, of_pod in _VALUES:
        values = zip(names, map(read, own), strict=True)
        points = [(labels, value) for labels, value in values if value is not None]
        yield metric.of(points + _points(others, of_pod) if others else points)


def _by_pod(clients: Pod, departed: Pod) -> Iterator[Family]:
    own, rest = within_limit(_fold(clients, departed), lambda row: row[1][0].uid)
    # A client may have the name of the overflow: then its values are in that series.
    rest += [row for row in own if row[0][:2] == _OVERFLOW_NAME]
    own = [row for row in own if row[0][:2] != _OVERFLOW_NAME]
    others = _overflow(client for _, pod in rest for client in pod)
    rows = [*own, *others]
    yield INFO.of([*(((*labels, _index(pod[0]), ""), 1) for labels, pod in own), *_info(others)])
    yield NVML_USED.of(_nvml_points(rows))
    yield QUOTA_SOURCE.of(_sources(rows))
    for metric, _, read in _VALUES:
        yield metric.of(_points(rows, read))


_CLIENT_FAMILIES = KeptFamilies(_by_client)
_POD_FAMILIES = KeptFamilies(_by_pod)


def _overflow(clients: Iterable[ClientSharing]) -> list[tuple[_Labels, Pod]]:
    return [((*_OVERFLOW_NAME, "", uuid), group) for uuid, group in overflow_by_gpu(clients).items()]


def _info(overflow: list[tuple[_Labels, Pod]]) -> list[Point]:
    return [((*labels, _index(group[0]), ""), len(group)) for labels, group in overflow]


def _nvml_points(pods: list[tuple[_Labels, Pod]]) -> list[Point]:
    return [((*labels, ""), value) for labels, value in _points(pods, _NVML_OF_POD)]


def _points(pods: list[tuple[_Labels, Pod]], read: Callable[[Pod], float | None]) -> list[tuple[_Labels, float]]:
    return [(labels, value) for labels, pod in pods if (value := read(pod)) is not None]


def _fold(clients: Pod, departed: Pod) -> list[tuple[_Labels, Pod]]:
    """By pod and GPU. Departed clients appear only if no client of their pod is left."""
    living = _group_by_pod(clients)
    gone = {labels: pod for labels, pod in _group_by_pod(departed).items() if labels not in living}
    return [*living.items(), *gone.items()]


def _group_by_pod(clients: Iterable[ClientSharing]) -> dict[_Labels, list[ClientSharing]]:
    pods: dict[_Labels, list[ClientSharing]] = {}
    for client in clients:
        pods.setdefault((client.namespace, client.pod, "", client.gpu_uuid), []).append(client)
    return pods


def _sources(pods: Iterable[tuple[_Labels, Pod]]) -> list[Point]:
    """Each source once, also for a pod with two GPUs or two clients."""
    points: dict[tuple[str, ...], float] = {}
    for (namespace, pod_name, client_id, _), pod in pods:
        for client in pod:
            # nvshare's dashboards know four sources: a limit set by an operator counts as configuration.
            source = "config" if client.memory_quota_source == "set-limit" else client.memory_quota_source
            points[(namespace, pod_name, client_id, source)] = 1
    return list(points.items())


def _index(client: ClientSharing) -> str:
    return "" if client.gpu_index is None else str(client.gpu_index)


# nvshare_scheduler_*: queues, memory and messages of the scheduler, for every GPU from the start.

_GPU = ("gpu_uuid", "gpu_index")
_GAUGES: tuple[tuple[Metric, Callable[[GpuSharing], float]], ...] = (
    (
        gauge("nvshare_scheduler_running_clients", "Clients that hold the lock of a GPU.", *_GPU),
        lambda gpu: len(gpu.running),
    ),
    (
        gauge(
            "nvshare_scheduler_request_queue_clients", "Clients that wait for a turn or for more of their share.", *_GPU
        ),
        lambda gpu: len(gpu.request_queue),
    ),
    (
        gauge("nvshare_scheduler_wait_queue_clients", "Clients that wait for memory.", *_GPU),
        lambda gpu: len(gpu.wait_queue),
    ),
    (
        gauge(
            "nvshare_scheduler_running_memory_bytes",
            "Managed memory of the running clients, as they report; the need of each is in the client's series.",
            *_GPU,
        ),
        lambda gpu: gpu.running_managed_bytes,
    ),
    (
        gauge(
            "nvshare_scheduler_peak_running_memory_bytes",
            "Highest managed memory of the clients that ran at one time.",
            *_GPU,
        ),
        lambda gpu: gpu.running_managed_peak_bytes,
    ),
    (
        gauge(
            "nvshare_scheduler_memory_safe_limit_bytes",
            "Memory that running clients may need in all: that of the GPU without the reserve.",
            *_GPU,
        ),
        lambda gpu: gpu.safe_limit_bytes,
    ),
    (
        gauge(
            "nvshare_scheduler_memory_overloaded",
            "Overload of the memory: 1 while the running clients exceed the safe limit, else 0.",
            *_GPU,
        ),
        lambda gpu: int(gpu.overloaded),
    ),
)
MESSAGES = counter("nvshare_scheduler_messages_total", "Messages received and sent, by type.", "type")
DROP_LOCK = counter(
    "nvshare_scheduler_drop_lock_total",
    "DROP_LOCK messages sent, by reason: quantum, quota, memory or revoked.",
    "gpu_uuid",
    "reason",
)
DISCONNECTS = counter("nvshare_scheduler_client_disconnect_total", "Connections that ended, by reason.", "reason")
WAIT_FOR_MEM = counter("nvshare_scheduler_wait_for_mem_total", "WAIT_FOR_MEM messages sent.", "gpu_uuid")
MEM_AVAILABLE = counter("nvshare_scheduler_mem_available_total", "MEM_AVAILABLE messages sent.", "gpu_uuid")

SCHEDULER_CATALOGUE = (
    *(metric for metric, _ in _GAUGES),
    MESSAGES,
    DROP_LOCK,
    DISCONNECTS,
    WAIT_FOR_MEM,
    MEM_AVAILABLE,
)


def collect_scheduler(snapshot: Snapshot) -> Iterator[Family]:
    sharing = snapshot.readings.sharing
    if sharing is None:
        return
    gpus = [((gpu.uuid, "" if gpu.index is None else str(gpu.index)), gpu) for gpu in sharing.gpus]
    for metric, read in _GAUGES:
        yield metric.of((labels, read(gpu)) for labels, gpu in gpus)
    yield MESSAGES.of(((name,), count) for name, count in sharing.messages.items())
    yield DROP_LOCK.of(((gpu.uuid, reason), count) for gpu in sharing.gpus for reason, count in gpu.drop_lock.items())
    yield DISCONNECTS.of(((reason,), count) for reason, count in {"closed": 0, **sharing.disconnects}.items())
    yield WAIT_FOR_MEM.of(((gpu.uuid,), gpu.wait_for_mem) for gpu in sharing.gpus)
    yield MEM_AVAILABLE.of(((gpu.uuid,), gpu.mem_available) for gpu in sharing.gpus)


CATALOGUE = (
    *CLIENTS_CATALOGUE,
    *SCHEDULER_CATALOGUE,
)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    yield from collect_clients(snapshot)
    yield from collect_scheduler(snapshot)
