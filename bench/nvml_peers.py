"""CPU time of one reading of the GPUs: ours, nvidia-smi as nvidia_gpu_exporter runs it, and nvitop.

`python -m bench.nvml_peers` on a machine with a GPU. Rounds are interleaved; CPU time of children is counted.
Bar: at least 20 times less than either. A peer that is not installed is skipped.
"""

import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable

from bench.table import show
from gpucommons.sources.nvml import library
from gpucommons.sources.nvml.source import NvmlReader
from gpucommons.sources.source import SourceAbsent, SourceError

FIELDS = (
    "index",
    "uuid",
    "name",
    "driver_version",
    "utilization.gpu",
    "utilization.memory",
    "memory.total",
    "memory.used",
    "memory.free",
    "temperature.gpu",
    "power.draw",
    "clocks.sm",
    "clocks.mem",
    "pstate",
)
OTHER_CALLS = (
    "nvmlGpm",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetEncoderUtilization",
    "nvmlDeviceGetDecoderUtilization",
    "nvmlDeviceGetJpgUtilization",
    "nvmlDeviceGetOfaUtilization",
    "nvmlDeviceGetCurrentClocks",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetPcieThroughput",
)
OURS = "gpucommons, these fields"
ROUNDS = 20
BAR = 20


def cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def precise_cpu_seconds() -> float:
    """Finer than the clock ticks of os.times, for work without child processes."""
    return time.process_time()


def only_the_fields() -> NvmlReader:
    """A source that reads only the fields that its peers read."""
    real = library.function
    library.function = lambda name: None if name.startswith(OTHER_CALLS) else real(name)
    try:
        source = NvmlReader(monotonic=lambda: 1.0)
        for _ in range(8):
            source.read()
        return source
    finally:
        library.function = real


def run_smi() -> None:
    subprocess.run(
        ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv"], check=True, stdout=subprocess.DEVNULL
    )


def peers() -> dict[str, tuple[Callable[[], object], Callable[[], float], int]]:
    """The work, its clock, and the repetitions per round, which are more for cheap work."""
    source, few = NvmlReader(), only_the_fields()
    found: dict[str, tuple[Callable[[], object], Callable[[], float], int]] = {
        OURS: (few.read, precise_cpu_seconds, 50),
        "gpucommons, a whole pass with GPM and processes": (source.read, precise_cpu_seconds, 20),
    }
    if shutil.which("nvidia-smi"):
        found["nvidia-smi --query-gpu"] = (run_smi, cpu_seconds, 5)
    else:
        print("left out: nvidia-smi is not installed")
    try:
        import nvitop
    except ImportError:
        print("left out: nvitop is not installed (pip install nvitop)")
    else:
        devices = nvitop.Device.all()
        found["nvitop, devices"] = (lambda: [d.as_snapshot() for d in devices], precise_cpu_seconds, 5)
        found["nvitop, devices and processes"] = (lambda: nvitop.take_snapshots(devices), precise_cpu_seconds, 5)
    return found


def main() -> None:
    try:
        NvmlReader().read()
    except (SourceAbsent, SourceError) as error:
        print(f"needs a GPU: {error}")
        return
    contestants = peers()
    for run, _, _ in contestants.values():
        for _ in range(8):
            run()
    cpu: dict[str, list[float]] = {name: [] for name in contestants}
    wall: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(ROUNDS):
        for name, (run, clock, times) in contestants.items():
            began_cpu, began = clock(), time.perf_counter()
            for _ in range(times):
                run()
            cpu[name].append((clock() - began_cpu) / times)
            wall[name].append((time.perf_counter() - began) / times)
    ours = statistics.median(cpu[OURS])
    rows = []
    for name in contestants:
        mine = statistics.median(cpu[name])
        rows.append([name, f"{mine * 1e3:.3f}", f"{statistics.median(wall[name]) * 1e3:.3f}", f"{mine / ours:.1f}x"])
    title = f"One reading of the GPUs; medians of {ROUNDS} interleaved rounds; bar: {BAR}x less CPU than each peer"
    show(title, ("what", "CPU ms", "wall ms", "CPU of ours"), rows)


if __name__ == "__main__":
    main()
