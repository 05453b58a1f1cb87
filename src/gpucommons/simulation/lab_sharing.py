"""The scheduler's state in scenario lab: five clients on two GPUs, their turns, quotas and waits."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gpucommons.model.names import nvshare_client_name, process_name, short_command
from gpucommons.model.sharing import (
    DRAIN_BUCKETS,
    HANDOFF_BUCKETS,
    TURN_BUCKETS,
    ClientSharing,
    GpuSharing,
    HistogramReading,
    SharingReading,
    WaitReading,
    WaitReason,
)
from gpucommons.model.workloads import Pod
from gpucommons.simulation import lab_jobs, lab_workloads
from gpucommons.simulation.lab_gpus import MEMORY_BYTES, LabGpus
from gpucommons.simulation.lab_jobs import JOBS, QUANTUM_S, UPTIME_S, WINDOW_S, LabJob, Rota
from gpucommons.simulation.lab_people import BOB, CHEN, DANA, NAMES
from gpucommons.simulation.lab_workloads import FINETUNE, NOTEBOOK

_GIB = 2**30
_SAFE_LIMIT_BYTES = MEMORY_BYTES * 9 // 10
_OVERHEAD_BYTES = 400 * 2**20
_MAX_STEPS_BYTES = 8 * 2**26
_UPDATE_EVERY_S = 5.0
_DROPS = ("quantum", "quota", "memory", "revoked")
_SILENT = ("SCHED_ON", "SCHED_OFF", "WAIT_FOR_MEM", "MEM_AVAILABLE", "PREPARE_SWAP_OUT")


class _Client(NamedTuple):
    """One client. `drop` is why its turns end, empty if it releases by itself; `drain_s` is the time of a release."""

    number: int
    pod: str
    namespace: str
    uid: int
    rota: Rota
    drop: str
    drain_s: float
    core_percent: int = 100
    core_source: str = "none"
    memory_gib: int = 0
    memory_source: str = "none"

    @property
    def id(self) -> str:
        return f"{0x6B1D_52C0_9F3A_0000 + 977 * self.number:016x}"

    @property
    def job(self) -> LabJob:
        return JOBS[self.number]

    @property
    def process_name(self) -> str:
        return process_name(
            NAMES[self.uid], short_command(self.job.command.split(), self.job.name), (self.job.key.pid,)
        )


def _of(pod: Pod) -> tuple[str, str]:
    return pod.name, pod.namespace


_CLIENTS = (
    _Client(4, FINETUNE.name, "", BOB.uid, lab_jobs.FINETUNE, "quantum", 0.31),
    _Client(5, NOTEBOOK.name, "", DANA.uid, lab_jobs.NOTEBOOK, "", 0.02, 50, "config", 48, "config"),
    _Client(6, *_of(lab_workloads.SERVE), 0, lab_jobs.SERVE, "quantum", 0.08, 60, "annotation", 64, "annotation"),
    _Client(7, *_of(lab_workloads.WORKER), 0, lab_jobs.WORKER, "quota", 0.04, 25, "annotation", 16, "annotation"),
    _Client(8, "", "", CHEN.uid, lab_jobs.EVALUATION, "", 0.12),
)
SHARED_GPUS = tuple(sorted({client.job.gpu for client in _CLIENTS}))


class LabSharing:
    """`at` gives the scheduler's state at an instant. The GPUs are those of the lab."""

    def __init__(self, gpus: LabGpus) -> None:
        self._uuids = {index: gpus.identities[index].uuid for index in SHARED_GPUS}

    def at(self, elapsed_s: float) -> SharingReading:
        begun = sum(client.rota.count_begun(elapsed_s) for client in _CLIENTS)
        return SharingReading(
            on=True,
            mode="serial",
            fixed_quantum_s=QUANTUM_S,
            gpus=tuple(self._gpu(index, elapsed_s) for index in SHARED_GPUS),
            clients=tuple(self._row(client, elapsed_s) for client in _CLIENTS),
            departed=(),
            messages=_messages(elapsed_s),
            disconnects={"closed": 3},
            refusals={"repeated_request": 1},
            handoff_seconds=_histogram(HANDOFF_BUCKETS, [(0.00004, begun - begun // 3), (0.00009, begun // 3)]),
            window_s=WINDOW_S,
            connections=len(_CLIENTS),
        )

    def _gpu(self, index: int, elapsed_s: float) -> GpuSharing:
        clients = list(_on_gpu(index))
        running = [client for client in clients if client.rota.has_turn(elapsed_s)]
        queue = _queue(index, elapsed_s)
        memory = sum(_allocated_bytes(client, elapsed_s) for client in running)
        left_s = [max(QUANTUM_S - client.rota.phase(elapsed_s).since_s, 0.0) for client in running]
        ended = [(client, client.rota.count_ended(elapsed_s)) for client in clients]
        return GpuSharing(
            uuid=self._uuids[index],
            index=index,
            slot=str(index),
            present=True,
            running=tuple(client.id for client in running),
            request_queue=tuple(client.id for client in queue),
            wait_queue=(),
            running_memory_bytes=memory,
            running_managed_bytes=memory,
            running_managed_peak_bytes=max(_peak_bytes(client) for client in clients),
            total_memory_bytes=MEMORY_BYTES,
            total_memory_measured=True,
            safe_limit_bytes=_SAFE_LIMIT_BYTES,
            overloaded=False,
            way="turns",
            way_reason="serial_mode",
            quantum_left_s=left_s[0] if left_s and queue else None,
            # A client has the turn at any time.
            busy_seconds=UPTIME_S + elapsed_s,
            drop_lock={drop: sum(count for client, count in ended if client.drop == drop) for drop in _DROPS},
            wait_for_mem=0,
            mem_available=0,
            wait_seconds=_histogram(
                TURN_BUCKETS,
                [(c.rota.throttled_s + c.rota.wait_s, c.rota.count_begun(elapsed_s) - 1) for c in clients],
            ),
            turn_seconds=_histogram(TURN_BUCKETS, [(client.rota.run_s, count) for client, count in ended]),
            drain_seconds=_histogram(DRAIN_BUCKETS, [(c.drain_s, count) for c, count in ended if c.drop]),
        )

    def _row(self, client: _Client, elapsed_s: float) -> ClientSharing:
        rota, allocated = client.rota, _allocated_bytes(client, elapsed_s)
        phase = rota.phase(elapsed_s)
        window_began_s = elapsed_s - (UPTIME_S + elapsed_s) % WINDOW_S
        return ClientSharing(
            client_id=client.id,
            pod=client.pod,
            namespace=client.namespace,
            gpu_uuid=self._uuids[client.job.gpu],
            gpu_index=client.job.gpu,
            protocol_version=2,
            pid=client.job.key.pid,
            uid=client.uid,
            gid=client.uid,
            standing=phase.standing,
            revoked=False,
            pending_drop=False,
            turn_s=phase.since_s if phase.standing == "running" else None,
            turns=rota.count_begun(elapsed_s),
            wait=_wait(client, elapsed_s),
            allocated_bytes=allocated,
            allocated_peak_bytes=_peak_bytes(client),
            nvml_bytes=allocated + _OVERHEAD_BYTES,
            overhead_bytes=_OVERHEAD_BYTES,
            need_bytes=allocated + _OVERHEAD_BYTES,
            memory_quota_bytes=client.memory_gib * _GIB,
            memory_quota_source=client.memory_source,
            core_quota_percent=client.core_percent,
            core_quota_effective_percent=float(client.core_percent),
            core_quota_source=client.core_source,
            window_usage_s=rota.ran_s(elapsed_s) - rota.ran_s(window_began_s),
            window_limit_s=WINDOW_S * client.core_percent / 100,
            throttled=phase.standing == "throttled",
            debt_s=0.0,
            billed_s=rota.ran_s(elapsed_s),
            demand_ratio=round(client.job.level(elapsed_s), 3),
            name=nvshare_client_name(client.pod, client.namespace, client.process_name),
        )


def _on_gpu(index: int) -> Iterator[_Client]:
    return (client for client in _CLIENTS if client.job.gpu == index)


def _queue(index: int, elapsed_s: float) -> list[_Client]:
    """The waiting clients, the next to run first; then the throttled clients."""
    phases = [(client.rota.phase(elapsed_s), client) for client in _on_gpu(index)]
    queued = [(phase, client) for phase, client in phases if phase.standing != "running"]
    queued.sort(key=lambda row: (row[0].standing == "throttled", row[0].left_s))
    return [client for _, client in queued]


def _wait(client: _Client, elapsed_s: float) -> WaitReading | None:
    phase = client.rota.phase(elapsed_s)
    if phase.standing == "running":
        return None
    throttled = phase.standing == "throttled"
    running = (c for c in _on_gpu(client.job.gpu) if c.rota.has_turn(elapsed_s))
    return WaitReading(
        reason=WaitReason.QUOTA if throttled else WaitReason.TURN,
        waited_s=client.rota.waited_s(elapsed_s),
        ahead=0 if throttled else _queue(client.job.gpu, elapsed_s).index(client),
        room_bytes=_SAFE_LIMIT_BYTES - sum(_allocated_bytes(c, elapsed_s) for c in running),
        expected_s=phase.left_s,
    )


def _allocated_bytes(client: _Client, elapsed_s: float) -> int:
    """As the client reports it: what the driver reports, less the overhead."""
    return client.job.memory_bytes(elapsed_s) - _OVERHEAD_BYTES


def _peak_bytes(client: _Client) -> int:
    return int(client.job.memory_gib * _GIB) + _MAX_STEPS_BYTES - _OVERHEAD_BYTES


def _messages(elapsed_s: float) -> dict[str, int]:
    begun = sum(client.rota.count_begun(elapsed_s) for client in _CLIENTS)
    ended = sum(client.rota.count_ended(elapsed_s) for client in _CLIENTS)
    return dict.fromkeys(_SILENT, 0) | {
        "REGISTER": len(_CLIENTS) + 3,
        # A client that ends a turn requests the next one at once.
        "REQ_LOCK": len(_CLIENTS) + ended,
        "LOCK_OK": begun,
        "DROP_LOCK": sum(client.rota.count_ended(elapsed_s) for client in _CLIENTS if client.drop),
        "LOCK_RELEASED": ended,
        "SET_TQ": 1,
        "MEM_UPDATE": len(_CLIENTS) * int((UPTIME_S + elapsed_s) / _UPDATE_EVERY_S),
        "UPDATE_LIMIT": sum(client.memory_source != "none" for client in _CLIENTS),
        "UPDATE_CORE_LIMIT": sum(client.core_source != "none" for client in _CLIENTS),
    }


def _histogram(bounds: tuple[float, ...], observed: Iterable[tuple[float, int]]) -> HistogramReading:
    """From values, and how often each was observed."""
    values = list(observed)
    counts = tuple(sum(count for value, count in values if value <= bound) for bound in bounds)
    return HistogramReading(
        bounds, (*counts, sum(count for _, count in values)), sum(value * count for value, count in values)
    )
