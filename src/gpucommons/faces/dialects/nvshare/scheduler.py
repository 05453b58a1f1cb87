"""nvshare_scheduler_*: queues, memory and messages of the scheduler, for every GPU from the start."""

from collections.abc import Callable, Iterator

from gpucommons.faces.exposition.families import Family, Metric, counter, gauge
from gpucommons.model.sharing import GpuSharing
from gpucommons.model.snapshot import Snapshot

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

CATALOGUE = (*(metric for metric, _ in _GAUGES), MESSAGES, DROP_LOCK, DISCONNECTS, WAIT_FOR_MEM, MEM_AVAILABLE)


def collect(snapshot: Snapshot) -> Iterator[Family]:
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
