"""The cost of listing containers: the docker command as DS01's exporter uses it, and one event stream.

A real dockerd runs sleeping containers. "per fact" runs one `docker inspect` per container and fact, for five facts
(DS01's exporter runs about 1,100 programs for 20 containers and 8 users); "one call" inspects all containers with one
command. Neither sees what happens between two passes.
"""

import asyncio
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

from bench.table import show
from gpucommons.sources.containers.source import ContainerFollower
from testbeds.dockerd import Dockerd, running_dockerd

COUNTS = (20, 40)
ROUNDS = 3
STEADY_READS = 1000
FACTS = (
    "{{json .Config.Labels}}",
    "{{json .HostConfig.DeviceRequests}}",
    "{{json .Config.Env}}",
    "{{.HostConfig.CgroupParent}}",
    "{{json .State}}",
)

_started_programs = 0


def _count_programs(event: str, arguments: object) -> None:
    global _started_programs
    if event == "subprocess.Popen":
        _started_programs += 1


def per_fact(daemon: Dockerd) -> int:
    ids = daemon.docker("ps", "--all", "--quiet", "--no-trunc").split()
    for id in ids:
        for fact in FACTS:
            daemon.docker("inspect", "--format", fact, id)
    return len(ids)


def in_one_call(daemon: Dockerd) -> int:
    ids = daemon.docker("ps", "--all", "--quiet", "--no-trunc").split()
    return len(json.loads(daemon.docker("inspect", *ids)))


async def known(source: ContainerFollower, count: int) -> int:
    """Waits until the source reports this many containers."""
    while True:
        await asyncio.sleep(0.0005)
        try:
            if len(source.read().by_id) == count:
                return count
        except Exception:
            continue


async def first_knowledge(daemon: Dockerd, count: int) -> int:
    source = ContainerFollower(socket=str(daemon.socket))
    task = asyncio.create_task(source.run())
    try:
        return await known(source, count)
    finally:
        task.cancel()
        await asyncio.wait([task])


async def measured(pass_: Callable[[], Awaitable[object]]) -> tuple[float, int]:
    before, begun_s = _started_programs, time.perf_counter()
    await pass_()
    return time.perf_counter() - begun_s, _started_programs - before


async def compare(daemon: Dockerd, count: int) -> list[tuple[object, ...]]:
    source = ContainerFollower(socket=str(daemon.socket))
    task = asyncio.create_task(source.run())
    await known(source, count)

    async def steady() -> None:
        for _ in range(STEADY_READS):
            source.read()

    passes: dict[str, Callable[[], Awaitable[object]]] = {
        "docker command, per fact": lambda: asyncio.to_thread(per_fact, daemon),
        "docker command, one call": lambda: asyncio.to_thread(in_one_call, daemon),
        "event stream, at the start": lambda: first_knowledge(daemon, count),
        "event stream, each later pass": steady,
    }
    taken: dict[str, list[float]] = {name: [] for name in passes}
    programs: dict[str, int] = {}
    for _ in range(ROUNDS):
        for name, pass_ in passes.items():
            elapsed_s, started = await measured(pass_)
            taken[name].append(elapsed_s / (STEADY_READS if pass_ is steady else 1))
            programs[name] = started
    task.cancel()
    await asyncio.wait([task])
    slowest_s = statistics.median(taken["docker command, per fact"])
    rows: list[tuple[object, ...]] = []
    for name, times in taken.items():
        middle_s = statistics.median(times)
        rows.append((count, name, programs[name], shown(middle_s), f"{slowest_s / middle_s:,.0f}"))
    return rows


def shown(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms" if seconds > 1e-4 else f"{1e6 * seconds:.2f} us"


async def delay(daemon: Dockerd) -> float:
    """Time from the end of the command that created a container until the source reports it."""
    source = ContainerFollower(socket=str(daemon.socket))
    task = asyncio.create_task(source.run())
    count = len(daemon.docker("ps", "--all", "--quiet").split())
    await known(source, count)
    delays = []
    for number in range(ROUNDS):
        daemon.create()
        begun_s = time.perf_counter()
        await known(source, count + number + 1)
        delays.append(time.perf_counter() - begun_s)
    task.cancel()
    await asyncio.wait([task])
    return statistics.median(delays)


def main() -> None:
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        raise SystemExit("bench.containers needs root and dockerd: apt install docker.io busybox-static")
    sys.addaudithook(_count_programs)
    rows: list[tuple[object, ...]] = []
    with running_dockerd() as daemon:
        for count in COUNTS:
            while len(daemon.docker("ps", "--all", "--quiet").split()) < count:
                daemon.run("--label=ds01.user=alice", "--env=NVIDIA_VISIBLE_DEVICES=0")
            rows += asyncio.run(compare(daemon, count))
        delay_s = asyncio.run(delay(daemon))
    show(
        f"Knowing the containers, median of {ROUNDS} interleaved rounds; "
        f"a new container is known {1000 * delay_s:.1f} ms after the command that made it",
        ("containers", "how", "programs started", "time", "times faster"),
        rows,
    )


if __name__ == "__main__":
    main()
