"""Against a real Podman, whose implementation of Docker's API differs in details."""

import asyncio

import pytest

from gpucommons.base.backoff import Backoff
from gpucommons.model.workloads import Container, ContainerState
from gpucommons.sources.containers.engine import PODMAN
from gpucommons.sources.containers.source import ContainerFollower
from testbeds.daemons import cgroup_of
from testbeds.following import eventually, following
from testbeds.podman import Podman

pytestmark = pytest.mark.long


async def seen(source: ContainerFollower, id: str, state: ContainerState, name: str) -> Container:
    def look() -> Container | None:
        found = source.read().by_id.get(id)
        return found if found is not None and (found.state, found.name) == (state, name) else None

    return await eventually(look)


def test_containers_of_podman_are_followed(podman: Podman) -> None:
    async def scenario() -> None:
        source = ContainerFollower(PODMAN, str(podman.socket), backoff=Backoff(0.05, 0.2))
        async with following(source):
            # Created by the command, not through the service: its events must arrive nevertheless.
            id = podman.run("--name=first", "--label=ds01.user=alice", "--env=NVIDIA_VISIBLE_DEVICES=all")
            first = await seen(source, id, ContainerState.RUNNING, "first")
            assert first.runtime == "podman"
            assert first.labels == {"ds01.user": "alice"}
            assert first.visible_devices == "all"
            assert first.image.endswith("gpucommons-test:1")
            assert id in cgroup_of(first.init_pid)

            podman.podman("rename", "first", "second")
            assert (await seen(source, id, ContainerState.RUNNING, "second")).init_pid == first.init_pid

            podman.podman("restart", "--time=0", "second")
            restarted = await eventually(
                lambda: c if (c := source.read().by_id[id]).init_pid not in (None, first.init_pid) else None
            )
            assert id in cgroup_of(restarted.init_pid)

            podman.podman("stop", "--time=0", "second")
            stopped = await seen(source, id, ContainerState.EXITED, "second")
            assert stopped.init_pid is None

            podman.podman("rm", "second")
            await eventually(lambda: None if id in source.read().by_id else True)

    asyncio.run(scenario())


def test_existing_containers_of_podman_are_found_without_events(podman: Podman) -> None:
    async def scenario() -> None:
        id = podman.run("--name=before")
        source = ContainerFollower(PODMAN, str(podman.socket))
        async with following(source):
            await seen(source, id, ContainerState.RUNNING, "before")

    asyncio.run(scenario())
