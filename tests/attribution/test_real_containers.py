"""The owner of a process in a real container, with a real Docker and a real Podman."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from attribution.builders import GIB, gpu, gpu_process, reading
from gpucommons.agent.sources import this_machine, with_attribution
from gpucommons.base.backoff import Backoff
from gpucommons.model.gpu import GpuReading
from gpucommons.model.ownership import OwnerKind, ProcessShare, Reason
from gpucommons.model.snapshot import Readings
from gpucommons.model.workloads import Container
from gpucommons.sources.containers.engine import DOCKER, PODMAN
from gpucommons.sources.containers.source import ContainerFollower
from gpucommons.sources.source import Source
from testbeds.dockerd import Dockerd, running_dockerd
from testbeds.following import eventually, following
from testbeds.podman import Podman, running_podman

pytestmark = pytest.mark.long


class Node:
    """This machine with a GPU that lists the given processes."""

    def __init__(self, containers: ContainerFollower) -> None:
        self.containers = containers
        self.pids: list[int] = []
        driver = Source("nvml", "gpus", GpuReading, self._listed)
        sources, self.stage = with_attribution([driver], this_machine(Path("/proc")))
        self.gpus: Source = sources[0]

    def _listed(self) -> GpuReading:
        return reading(gpu(0, [gpu_process(pid, GIB, start_ticks=None) for pid in self.pids]))

    def who(self, *pids: int) -> list[ProcessShare]:
        self.pids = list(pids)
        gpus = self.gpus.read()
        assert isinstance(gpus, GpuReading)
        found = self.containers.read()
        attribution = self.stage(Readings(gpus=gpus, docker=found)).attribution
        assert attribution is not None
        assert attribution.accounts[0].memory_error_bytes == 0
        return list(attribution.processes)


async def running(node: Node, id: str, name: str) -> Container:
    def look() -> Container | None:
        found = node.containers.read().by_id.get(id)
        return found if found and found.name == name and found.init_pid else None

    return await eventually(look)


async def owned(node: Node, *pids: int) -> list[ProcessShare]:
    """In the first pass, a process may be younger than the reading, and then counts as not listed."""

    def look() -> list[ProcessShare] | None:
        rows = node.who(*pids)
        return rows if all(row.owner for row in rows) else None

    return await eventually(look)


def owner_of(row: ProcessShare) -> tuple[OwnerKind, str]:
    assert row.owner is not None
    return row.owner.kind, row.owner.name


@contextlib.asynccontextmanager
async def node_of(source: ContainerFollower) -> AsyncIterator[Node]:
    async with following(source):
        yield Node(source)


@pytest.fixture(scope="module")
def dockerd() -> Iterator[Dockerd]:
    with running_dockerd() as daemon:
        yield daemon


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    with running_podman() as daemon:
        yield daemon


def test_a_process_in_docker_through_its_containers_life(dockerd: Dockerd) -> None:
    async def scenario() -> None:
        async with node_of(ContainerFollower(DOCKER, str(dockerd.socket), backoff=Backoff(0.05, 0.2))) as node:
            id = dockerd.run("--name=train", "--label=ds01.user=alice")
            container = await running(node, id, "train")
            assert container.init_pid is not None
            (share,) = await owned(node, container.init_pid)
            assert owner_of(share) == (OwnerKind.LABEL, "alice")
            assert (share.workload.container_id, share.workload.container_name) == (id, "train")
            assert "in its pid namespace it is pid 1" in share.steps

            dockerd.docker("exec", "--detach", "train", "/bin/sleep", "600")
            listed = dockerd.docker("top", "train", "-eo", "pid").split()[1:]
            assert len(listed) == 2
            assert {owner_of(row) for row in await owned(node, *map(int, listed))} == {(OwnerKind.LABEL, "alice")}

            dockerd.docker("rename", "train", "eval")
            await running(node, id, "eval")
            (renamed,) = node.who(container.init_pid)
            assert (renamed.workload.container_name, renamed.workload.container_id) == ("eval", id)
            assert renamed.owner == share.owner

            dockerd.docker("rm", "--force", "eval")
            (gone,) = node.who(container.init_pid)
            assert (gone.owner, gone.reason) == (None, Reason.PROCESS_GONE)

    asyncio.run(scenario())


def test_a_process_in_podman(podman: Podman) -> None:
    async def scenario() -> None:
        async with node_of(ContainerFollower(PODMAN, str(podman.socket), backoff=Backoff(0.05, 0.2))) as node:
            id = podman.run("--name=serve", "--label=gpucommons.owner=bob")
            container = await running(node, id, "serve")
            assert container.init_pid is not None
            (share,) = await owned(node, container.init_pid)
            assert owner_of(share) == (OwnerKind.LABEL, "bob")
            assert (share.workload.container_id, share.workload.container_name) == (id, "serve")

    asyncio.run(scenario())


def test_a_container_of_an_unreachable_runtime_belongs_to_its_user(dockerd: Dockerd, podman: Podman) -> None:
    """The cgroup still names the container, so that the row contains its id."""

    async def scenario() -> None:
        async with node_of(ContainerFollower(PODMAN, str(podman.socket), backoff=Backoff(0.05, 0.2))) as node:
            id = dockerd.run("--user=4242", "--label=ds01.user=alice")
            pid = int(dockerd.docker("inspect", "--format={{.State.Pid}}", id))
            await eventually(lambda: _answers(node.containers))
            (share,) = await owned(node, pid)
            assert owner_of(share) == (OwnerKind.USER, "4242")
            assert (share.workload.container_id, share.workload.container_name) == (id, None)

    asyncio.run(scenario())


def _answers(source: ContainerFollower) -> bool | None:
    try:
        source.read()
    except Exception:
        return None
    return True
