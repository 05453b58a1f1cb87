"""Builders for the inputs of attribution."""

from collections.abc import Iterable, Mapping

from gpucommons.model.gpu import (
    GpmReading,
    Gpu,
    GpuIdentity,
    GpuProcess,
    GpuReading,
    GpuReadings,
    MigInstance,
)
from gpucommons.model.ownership import Reason
from gpucommons.model.process_identity import PidScope, PidView, ProcessIdentity, ProcessKey
from gpucommons.model.workloads import Container, ContainerState, Pod
from gpucommons.owners.cgroup import identify
from gpucommons.owners.process_identity import IdentityTable

HOST = PidView(PidScope.HOST, "every process of the host")
GIB = 1 << 30


def gpu_process(
    pid: int,
    memory_bytes: int | None = GIB,
    sm_percent: int | None = None,
    start_ticks: int | None = 100,
    instance: int | None = None,
) -> GpuProcess:
    key = None if start_ticks is None else ProcessKey(pid, start_ticks)
    return GpuProcess(pid, key, "compute", memory_bytes, sm_percent, gpu_instance_id=instance)


def gpu(
    index: int = 0,
    processes: Iterable[GpuProcess] | None = (),
    *,
    used: int | None = 4 * GIB,
    total: int | None = 80 * GIB,
    percent: int | None = 50,
    watts: float | None = 300.0,
    mig: tuple[MigInstance, ...] = (),
    minor: int | None = None,
    up: bool = True,
) -> Gpu:
    return Gpu(
        GpuIdentity(f"GPU-{index}", index, "NVIDIA H200", f"0000:{index:02x}:00.0", minor=minor),
        up,
        0.0,
        readings=GpuReadings(
            utilization_percent=percent, memory_total_bytes=total, memory_used_bytes=used, power_watts=watts
        ),
        processes=None if processes is None else tuple(processes),
        mig_enabled=bool(mig),
        mig=mig,
    )


def mig_instance(id: int, slices: int, ratio: float | None, gpu_index: int = 0) -> MigInstance:
    return MigInstance(
        uuid=f"MIG-{gpu_index}-{id}",
        gpu_instance_id=id,
        compute_instance_id=0,
        profile=f"{slices}g.{slices * 10}gb",
        gpu_instance_slices=slices,
        compute_slices=slices,
        multiprocessors=slices * 16,
        memory_bytes=slices * 10 * GIB,
        gpm=None if ratio is None else GpmReading(graphics_ratio=ratio),
    )


def reading(*gpus: Gpu) -> GpuReading:
    return GpuReading("580", "13", "13.0", gpus, len(gpus), len(gpus))


def identity(
    pid: int, cgroup: str = "0::/", *, uid: int | None = 1000, start_ticks: int = 100, name: str = "python"
) -> ProcessIdentity:
    return ProcessIdentity(ProcessKey(pid, start_ticks), name, uid, (pid,), identify(cgroup))


def table(
    *identities: ProcessIdentity, view: PidView = HOST, failures: Mapping[int, Reason] | None = None
) -> IdentityTable:
    return IdentityTable({one.key: one for one in identities}, failures or {}, view)


def container(id: str, name: str = "train", image: str = "torch:2", **labels: str) -> Container:
    return Container(id, name, "docker", ContainerState.RUNNING, image, labels)


def pod(uid: str, name: str = "train-0", namespace: str = "ml", **containers: str) -> Pod:
    """Containers are given as name=id."""
    return Pod(uid, name, namespace, containers={id: name for name, id in containers.items()})
