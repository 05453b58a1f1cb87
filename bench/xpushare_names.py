"""XPUShare's own library without device variables, and with the name of no GPU: one queue with the GPU's other clients.

`python -m bench.xpushare_names LIBXPUSHARE`, as root, with the library that XPUShare's build makes. Programs with it
preloaded launch kernels of a stand-in for libcuda, which writes down when each began and ended. Fake drivers of one and
of two GPUs. A rule gives every client a memory limit, so that the library requests the lock; the mode is serial. Bar:
kernels of two clients of one GPU never overlap, those of clients of two GPUs do; the counter counts each client whose
name no GPU has, and the log has one line.
"""

import http.client
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path

from bench.inside import run_inside
from bench.table import show
from fakes.nvml.build import build
from fakes.nvml.control import FakeNvml
from parsing import parsed
from waiting import until

LIBCUDA = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#define OK(name) int name(void) { return 0; }
OK(cuInit) OK(cuMemFree_v2) OK(cuCtxSetCurrent) OK(cuMemAdvise) OK(cuMemcpy) OK(cuMemcpyAsync)
OK(cuMemcpyDtoH_v2) OK(cuMemcpyDtoHAsync_v2) OK(cuMemcpyHtoD_v2) OK(cuMemcpyHtoDAsync_v2) OK(cuMemcpyDtoD_v2)
OK(cuMemcpyDtoDAsync_v2) OK(cuGetProcAddress) OK(cuGetProcAddress_v2)
int cuCtxGetCurrent(void **context) { *context = (void *)1; return 0; }
int cuMemAllocManaged(unsigned long long *at) { *at = 4096; return 0; }
int cuMemGetInfo_v2(size_t *unused, size_t *total) { *unused = *total = (size_t)80 << 30; return 0; }
int cuGetErrorString(int code, const char **text) { *text = "error"; return 0; }
int cuGetErrorName(int code, const char **text) { *text = "error"; return 0; }
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static pthread_mutex_t running = PTHREAD_MUTEX_INITIALIZER;
int cuCtxSynchronize(void) { pthread_mutex_lock(&running); return pthread_mutex_unlock(&running); }
int cuLaunchKernel(void)
{
    pthread_mutex_lock(&running);
    FILE *file = fopen(getenv("LAUNCHES"), "a");
    double began = now();
    usleep(10000);
    fprintf(file, "%.6f %.6f\n", began, now());
    fclose(file);
    pthread_mutex_unlock(&running);
    return 0;
}
"""
PROGRAM = """
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
until = time.monotonic() + 8
while time.monotonic() < until:
    assert cuda.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None) == 0
"""
SETTINGS = """
[scheduler]
enabled = true
mode = "serial"
switch_time_mode = "fixed"
switch_time_fixed_s = 1.0
[sharing_quotas]
all = { memory = "64Gi" }
"""
# Clients and what each has in NVIDIA_VISIBLE_DEVICES; None: not set.
CLIENTS: Mapping[str, str | None] = {
    "the first GPU": "0",
    "no variable": None,
    "no such GPU": "GPU-0000",
    "index 7": "7",
}
SECOND = "the second GPU"
UNNAMED = "it counts as unnamed"


def main() -> None:
    if len(sys.argv) == 2:
        run_inside("bench.xpushare_names", sys.argv[1], within_s=200)
    compare(Path(sys.argv[1]), Path(sys.argv[2]))


def compare(library: Path, directory: Path) -> None:
    source, output = directory / "cuda.c", directory / "cuda/libcuda.so.1"
    source.write_text(LIBCUDA)
    output.parent.mkdir()
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-o", output, source], check=True)
    rows = [row for gpus in (1, 2) for row in measure(library, directory, gpus)]
    show("XPUShare's library and the agent", ["GPUs", "what", "measured", "bar", "holds"], rows)
    sys.exit(0 if all(row[-1] for row in rows) else 1)


def measure(library: Path, directory: Path, gpus: int) -> list[list[object]]:
    place = directory / str(gpus)
    place.mkdir()
    fake = FakeNvml(place / "driver", build(place / "library"))
    fake.say(f"gpus {gpus}")
    clients = {**CLIENTS, **({SECOND: "1"} if gpus == 2 else {})}
    with ExitStack() as stack:
        log = start_agent(stack, place, fake)
        until(lambda: refusals() is not None, "the agent answers")
        programs = [start(stack, library, directory, place, client, name) for client, name in clients.items()]
        for program in programs:
            if program.wait(timeout=60) != 0:
                raise SystemExit(f"a program failed:\n{(place / 'programs.log').read_text()[-2000:]}")
        counted = refusals()
        lines = log.read_text().count(UNNAMED)
    kernels = {client: launches(place / client) for client in clients}
    rows: list[list[object]] = []
    for left, right in combinations(clients, 2):
        number = overlaps(kernels[left], kernels[right])
        holds = number > 0 if SECOND in (left, right) else number == 0
        bar = "some" if SECOND in (left, right) else "0"
        rows.append([gpus, f"overlaps of {left!r} and {right!r}", number, bar, holds])
    least = min(len(each) for each in kernels.values())
    rows.append([gpus, "kernels of each client, at least", least, "50", least >= 50])
    rows.append([gpus, "clients counted as unknown_gpu_name", counted, "2", counted == 2])
    rows.append([gpus, "lines of the log", lines, "1", lines == 1])
    return rows


def start_agent(stack: ExitStack, place: Path, fake: FakeNvml) -> Path:
    settings, log = place / "gpucommons.toml", place / "agent.log"
    settings.write_text(SETTINGS)
    environment = {
        **os.environ,
        **fake.environment(),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "GPUCOMMONS_LEDGER_ENABLED": "false",
        "GPUCOMMONS_LEASES_ENABLED": "false",
    }
    command = [sys.executable, "-m", "gpucommons", "up", "--config", str(settings), "--listen", "127.0.0.1:9460"]
    with log.open("wb") as out:
        child = subprocess.Popen(command, env=environment, stdout=out, stderr=out, cwd=place)
    stack.callback(child.wait, timeout=30)
    stack.callback(child.terminate)
    return log


def start(
    stack: ExitStack, library: Path, directory: Path, place: Path, client: str, name: str | None
) -> "subprocess.Popen[bytes]":
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_VISIBLE_DEVICES")}
    environment |= {
        "LD_PRELOAD": str(library),
        "LD_LIBRARY_PATH": f"{directory}/cuda",
        "LAUNCHES": str(place / client),
        **({} if name is None else {"NVIDIA_VISIBLE_DEVICES": name}),
    }
    with (place / "programs.log").open("ab") as out:
        child = subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment, stdout=out, stderr=out)
    stack.callback(child.kill)
    return child


def refusals() -> float | None:
    """How many clients had a name that no GPU has; None while the agent does not answer."""
    connection = http.client.HTTPConnection("127.0.0.1", 9460, timeout=10)
    try:
        connection.request("GET", "/metrics/gpucommons")
        response = connection.getresponse()
        if response.status != 200:
            return None
        found = parsed(response.read().decode())
    except OSError:
        return None
    finally:
        connection.close()
    if not any(name == "gpucommons_gpu_info" for name, _ in found):
        return None
    return found.get(("gpucommons_sharing_refusals_total", (("reason", "unknown_gpu_name"),)), 0.0)


def launches(file: Path) -> list[tuple[float, float]]:
    pairs = (line.split() for line in file.read_text().splitlines())
    return [(float(began), float(ended)) for began, ended in pairs]


def overlaps(left: list[tuple[float, float]], right: list[tuple[float, float]]) -> int:
    return sum(
        began < other_ended and other_began < ended for began, ended in left for other_began, other_ended in right
    )


if __name__ == "__main__":
    main()
