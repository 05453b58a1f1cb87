"""Allocations of 40 containers: our stage at each snapshot, and the docker command as DS01's exporter uses it.

A real dockerd runs sleeping containers. DS01's exporter runs one `docker inspect` per container and fact; our stage
starts no program and uses what the event stream has already delivered.
"""

import asyncio
import os
import shutil
import statistics
import sys
import time

from attribution.builders import gpu, reading
from bench.containers import per_fact
from bench.table import show
from gpucommons.ledger.integrate import usage_of
from gpucommons.model.ownership import Attribution
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.model.workloads import ContainerReading
from gpucommons.owners.holding_stage import AllocationStage
from gpucommons.sources.containers.source import ContainerFollower
from holding.test_allocations import USERS, VIEW, process
from testbeds.dockerd import Dockerd, running_dockerd
from testbeds.following import eventually, following

CONTAINERS, GPUS = 40, 8
ROUNDS, PASSES = 3, 300

_programs = 0


def _count(event: str, arguments: object) -> None:
    global _programs
    _programs += event == "subprocess.Popen"


async def containers_of(daemon: Dockerd) -> ContainerReading:
    source = ContainerFollower(socket=str(daemon.socket))
    async with following(source):
        return await eventually(lambda: found if len((found := source.read()).by_id) == CONTAINERS else None)


def passes(containers: ContainerReading) -> tuple[float, float]:
    """The first pass, and the median of the later ones, in which usage changes and the containers do not."""
    running = list(containers.by_id.values())
    cards = tuple(gpu(index) for index in range(GPUS))
    stage = AllocationStage()
    taken = []
    for number in range(PASSES):
        shares = tuple(
            process(container, gpu_index=index % GPUS, pid=100 + index, sm=10_000 + number)
            for index, container in enumerate(running)
        )
        readings = Readings(
            gpus=reading(*cards),
            docker=containers,
            users=USERS,
            attribution=Attribution(shares, (), (), (), VIEW),
        )
        begun = time.perf_counter()
        folded = stage(readings)
        usage_of(Snapshot(number, float(number), float(number), "host", readings=folded))
        taken.append(time.perf_counter() - begun)
    assert folded.allocations is not None
    assert len(folded.allocations.allocations) >= CONTAINERS
    return taken[0], statistics.median(taken[1:])


def main() -> None:
    global _programs
    if shutil.which("dockerd") is None or os.geteuid() != 0:
        raise SystemExit("bench.allocations needs root and dockerd: apt install docker.io busybox-static")
    sys.addaudithook(_count)
    with running_dockerd() as daemon:
        for number in range(CONTAINERS):
            daemon.run(
                f"--env=NVIDIA_VISIBLE_DEVICES={number % GPUS}",
                f"--label=ds01.user=user{number % 12}",
                "--label=ds01.interface=atomic",
            )
        containers = asyncio.run(containers_of(daemon))
        first, steady, docker, programs = [], [], [], 0
        for _ in range(ROUNDS):
            _programs = 0
            first_pass, rest = passes(containers)
            first.append(first_pass)
            steady.append(rest)
            assert _programs == 0, "a program was started"
            begun = time.perf_counter()
            per_fact(daemon)
            docker.append(time.perf_counter() - begun)
            programs = _programs
    ours, theirs = statistics.median(steady), statistics.median(docker)
    show(
        f"One pass over {CONTAINERS} containers on {GPUS} GPUs, median of {ROUNDS} interleaved rounds (bar: 5 ms)",
        ("way", "time", "programs started", "times ours"),
        [
            ("our stage, unchanged containers", f"{ours * 1e3:.2f} ms", 0, "1"),
            ("our stage, a changed container", f"{statistics.median(first) * 1e3:.2f} ms", 0, ""),
            ("docker command, five facts each", f"{theirs * 1e3:,.0f} ms", programs, f"{theirs / ours:,.0f}"),
        ],
    )


if __name__ == "__main__":
    main()
