"""The cost of attribution: a steady pass and a burst of new processes, against a full lookup in each pass.

Processes of this machine take the place of GPU processes. Their cgroup files are read, and then replaced by the name of
one of 40 containers. The peer is an exporter without a cache: for each GPU process and pass it queries psutil for user
and start time, and reads the cgroup file.
"""

import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil

from bench.table import show
from gpucommons.agent.sources import with_attribution
from gpucommons.model.gpu import Gpu, GpuIdentity, GpuProcess, GpuReading, GpuReadings
from gpucommons.model.ownership import Reason
from gpucommons.model.process_identity import CommandLineReading, PidScope, PidView, ProcessDetails, ProcessKey
from gpucommons.model.snapshot import Readings
from gpucommons.model.workloads import Container, ContainerReading, ContainerState
from gpucommons.owners.attribution_stage import AttributionStage, ProcessSources
from gpucommons.owners.owner import OwnerRules
from gpucommons.sources.host.process_details import CommandReader, ProcessDetailsReader
from gpucommons.sources.people.user_names import host_user_names
from gpucommons.sources.source import Source

PROC = Path("/proc")
GPUS, STEADY, BURST, HOST_PROCESSES, CONTAINERS = 8, 64, 200, 500, 40
ROUNDS, BURSTS = 300, 5
CONTAINER_IDS = [f"{number:064x}" for number in range(CONTAINERS)]


class InContainers(ProcessDetailsReader):
    def read(self, pid: int, look_for_gpu: bool = False) -> ProcessDetails | Reason:
        details = super().read(pid, look_for_gpu)
        if isinstance(details, Reason):
            return details
        return replace(details, cgroup=f"0::/system.slice/docker-{CONTAINER_IDS[pid % CONTAINERS]}.scope\n")


class Driver:
    """A GPU source that returns prepared readings, each a new value."""

    def __init__(self) -> None:
        self.readings: Iterator[GpuReading] = iter(())

    def read(self) -> GpuReading:
        return next(self.readings)


def gpu_reading(keys: list[ProcessKey], turn: int) -> GpuReading:
    rows = [GpuProcess(key.pid, key, "compute", (1 << 28) + turn, (key.pid + turn) % 12) for key in keys]
    amounts = GpuReadings(
        utilization_percent=90,
        memory_total_bytes=80 << 30,
        memory_used_bytes=60 << 30,
        power_watts=300.0 + turn % 7,
    )
    gpus = tuple(
        Gpu(
            GpuIdentity(f"GPU-{index}", index, "bench", f"0000:{index:02x}:00.0"),
            True,
            0.0,
            readings=amounts,
            processes=tuple(rows[index::GPUS]),
        )
        for index in range(GPUS)
    )
    return GpuReading("", "", "", gpus, GPUS, GPUS)


@contextmanager
def sleepers(number: int) -> Iterator[list[ProcessKey]]:
    processes = [subprocess.Popen(["sleep", "600"]) for _ in range(number)]
    try:
        reader = ProcessDetailsReader(PROC)
        found = [reader.read(process.pid) for process in processes]
        reader.keep(())
        # A process as young as the reading that lists it counts as another process: let them age by one tick.
        time.sleep(0.05)
        yield [details.key for details in found if isinstance(details, ProcessDetails)]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def without_memory(pids: Iterable[int]) -> int:
    seen = 0
    for pid in pids:
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                process.name(), process.username(), process.create_time()
            seen += len((PROC / str(pid) / "cgroup").read_text()) > 0
        except (psutil.Error, OSError):
            continue
    return seen


def cpu_ms(work: Callable[[], object]) -> float:
    begun = time.thread_time()
    work()
    return (time.thread_time() - begun) * 1e3


def main() -> None:
    containers = ContainerReading(
        {id: Container(id, f"job-{id[-2:]}", "docker", ContainerState.RUNNING, "torch") for id in CONTAINER_IDS}
    )
    driver = Driver()
    world = ProcessSources(InContainers(PROC), PidView(PidScope.HOST, ""), host_user_names(PROC), CommandReader(PROC))
    sources, stage = with_attribution([Source("nvml", "gpus", GpuReading, driver.read)], world, OwnerRules())
    pass_once = partial(one_pass, sources, stage, containers)
    with sleepers(max(HOST_PROCESSES - BURST - len(psutil.pids()), STEADY)) as keys:
        steady_keys = keys[:STEADY]
        pids = [key.pid for key in steady_keys]
        ours, theirs = [], []
        driver.readings = iter([gpu_reading(steady_keys, turn) for turn in range(ROUNDS + 1)])
        pass_once()
        for _ in range(ROUNDS):
            ours.append(cpu_ms(pass_once))
            theirs.append(cpu_ms(partial(without_memory, pids)))
        burst_ours, burst_theirs = [], []
        for turn in range(BURSTS):
            with sleepers(BURST) as new:
                count = len(psutil.pids())
                driver.readings = iter([gpu_reading([*steady_keys, *new], turn)])
                burst_ours.append(cpu_ms(pass_once))
                all_pids = [*pids, *(key.pid for key in new)]
                burst_theirs.append(cpu_ms(partial(without_memory, all_pids)))
    rows = [
        row("steady pass, 64 GPU processes (bar: 1 ms)", ours, theirs),
        row("burst of 200 new processes (bar: 300 ms)", burst_ours, burst_theirs),
    ]
    show(
        f"Attribution with {count} processes on the host, {CONTAINERS} containers, {GPUS} GPUs",
        ("pass", "gpucommons, CPU ms: best", "median", "worst", "without memory, median", "ratio"),
        rows,
    )


def one_pass(sources: list[Source], stage: AttributionStage, containers: ContainerReading) -> None:
    gpus, command_lines = (source.read() for source in sources)
    assert isinstance(gpus, GpuReading)
    assert isinstance(command_lines, CommandLineReading)
    derived = stage(Readings(gpus=gpus, docker=containers, command_lines=command_lines))
    assert derived.attribution is not None
    assert all(share.owner is not None for share in derived.attribution.processes)


def row(name: str, ours: list[float], theirs: list[float]) -> tuple[str, ...]:
    a, b = statistics.median(ours), statistics.median(theirs)
    return name, f"{min(ours):.2f}", f"{a:.2f}", f"{max(ours):.2f}", f"{b:.2f}", f"{a / b:.3f}"


if __name__ == "__main__":
    main()
