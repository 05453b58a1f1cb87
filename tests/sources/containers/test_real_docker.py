"""Against a real dockerd: a containerised process is seen and keeps its identity through all changes."""

import asyncio
import os
import subprocess
import sys
import textwrap

import pytest

from gpucommons.base.backoff import Backoff
from gpucommons.model.workloads import Container, ContainerState, DeviceRequest
from gpucommons.sources.containers.source import ContainerFollower
from testbeds.daemons import cgroup_of
from testbeds.dockerd import Dockerd
from testbeds.following import eventually, eventually_fails, following

pytestmark = pytest.mark.long


def source_of(dockerd: Dockerd, heartbeat_s: float = 30.0, timeout_s: float = 10.0) -> ContainerFollower:
    return ContainerFollower(
        socket=str(dockerd.socket),
        heartbeat_s=heartbeat_s,
        timeout_s=timeout_s,
        backoff=Backoff(first_s=0.05, max_s=0.2),
    )


async def seen(source: ContainerFollower, id: str, state: ContainerState, name: str = "") -> Container:
    def look() -> Container | None:
        found = source.read().by_id.get(id)
        fits = found is not None and found.state is state and name in ("", found.name)
        return found if fits else None

    return await eventually(look)


async def gone(source: ContainerFollower, id: str) -> None:
    await eventually(lambda: None if id in source.read().by_id else True)


def test_a_containerised_process_is_seen_with_its_container(dockerd: Dockerd) -> None:
    async def scenario() -> None:
        before = dockerd.run(
            "--name=train._.1000",
            "--label=ds01.user=alice",
            "--label=note=ünïcode\nand a second line",
            "--env=NVIDIA_VISIBLE_DEVICES=0,1",
            "--env=TOKEN=secret",
            "--device=/dev/null",
        )
        source = source_of(dockerd)
        async with following(source):
            container = await seen(source, before, ContainerState.RUNNING)
            assert container.name == "train._.1000"
            assert container.runtime == "docker"
            assert container.image == "gpucommons-test:1"
            assert container.labels["ds01.user"] == "alice"
            assert container.labels["note"] == "ünïcode\nand a second line"
            assert container.visible_devices == "0,1"
            assert container.devices == ("/dev/null",)
            assert not container.privileged
            assert "secret" not in repr(container)
            assert container.init_pid is not None
            assert before in cgroup_of(container.init_pid)
            assert container.created_wall_s is not None
            assert container.started_wall_s is not None
            assert container.created_wall_s <= container.started_wall_s

            later = dockerd.run("--label=ds01.user=bob")
            assert (await seen(source, later, ContainerState.RUNNING)).labels == {"ds01.user": "bob"}

    asyncio.run(scenario())


def test_identity_through_rename_restart_pause_stop_and_removal(dockerd: Dockerd) -> None:
    async def scenario() -> None:
        source = source_of(dockerd)
        async with following(source):
            id = dockerd.run("--name=first")
            first = await seen(source, id, ContainerState.RUNNING, "first")

            dockerd.docker("rename", "first", "second")
            renamed = await seen(source, id, ContainerState.RUNNING, "second")
            assert (renamed.init_pid, renamed.started_wall_s) == (first.init_pid, first.started_wall_s)

            dockerd.docker("restart", "--time=0", "second")
            restarted = await eventually(
                lambda: c if (c := source.read().by_id[id]).init_pid not in (None, first.init_pid) else None
            )
            assert restarted.started_wall_s is not None
            assert first.started_wall_s is not None
            assert restarted.started_wall_s > first.started_wall_s
            assert restarted.created_wall_s == first.created_wall_s

            dockerd.docker("pause", "second")
            assert (await seen(source, id, ContainerState.PAUSED)).init_pid == restarted.init_pid
            dockerd.docker("unpause", "second")
            await seen(source, id, ContainerState.RUNNING)

            dockerd.docker("stop", "--time=0", "second")
            stopped = await seen(source, id, ContainerState.EXITED)
            assert stopped.init_pid is None
            assert not stopped.state.has_processes

            dockerd.docker("rm", "second")
            await gone(source, id)
            successor = dockerd.run("--name=second")
            assert successor != id
            await seen(source, successor, ContainerState.RUNNING, "second")
            assert id not in source.read().by_id

    asyncio.run(scenario())


def test_a_container_with_rm_disappears(dockerd: Dockerd) -> None:
    async def scenario() -> None:
        source = source_of(dockerd)
        async with following(source):
            id = dockerd.run("--rm", sleep_s=1)
            await seen(source, id, ContainerState.RUNNING)
            await gone(source, id)

    asyncio.run(scenario())


def test_every_way_to_request_a_gpu_is_read_also_before_the_first_start(dockerd: Dockerd) -> None:
    async def scenario() -> None:
        all_gpus = dockerd.create("--gpus=all")
        two = dockerd.create("--gpus", '"device=0,GPU-11111111-2222-3333-4444-555555555555"')
        bare = dockerd.create("--privileged", "--cgroup-parent=/ds01-lab-bob.slice")
        source = source_of(dockerd)
        async with following(source):
            held = await seen(source, all_gpus, ContainerState.CREATED)
            assert held.device_requests == (DeviceRequest("", -1),)
            some = await seen(source, two, ContainerState.CREATED)
            ids = ("0", "GPU-11111111-2222-3333-4444-555555555555")
            assert some.device_requests == (DeviceRequest("", 0, ids),)
            privileged = await seen(source, bare, ContainerState.CREATED)
            assert privileged.privileged
            assert privileged.cgroup_parent == "/ds01-lab-bob.slice"
            assert privileged.visible_devices is None
            assert privileged.init_pid is None
            assert privileged.started_wall_s is None

    asyncio.run(scenario())


def test_nothing_is_missed_between_the_list_and_the_stream(dockerd: Dockerd) -> None:
    async def scenario() -> None:
        source = source_of(dockerd)
        async with following(source):
            # The follower connects, lists and subscribes while these are created and removed.
            made = await asyncio.gather(*(asyncio.to_thread(dockerd.create) for _ in range(8)))
            removed = made[:3]
            await asyncio.gather(*(asyncio.to_thread(dockerd.docker, "rm", id) for id in removed))
            expected = set(made[3:])
            await eventually(lambda: True if set(source.read().by_id) == expected else None)

    asyncio.run(scenario())


def test_a_daemon_that_dies_and_returns(dockerd: Dockerd) -> None:
    async def scenario() -> None:
        source = source_of(dockerd)
        async with following(source):
            id = dockerd.run("--name=survivor")
            before = await seen(source, id, ContainerState.RUNNING)
            dockerd.kill()
            failure = await eventually_fails(source, "disconnected", "refused")
            assert str(dockerd.socket) in str(failure)
            await eventually_fails(source, "refused")
            await asyncio.to_thread(dockerd.start)
            after = await seen(source, id, ContainerState.RUNNING, "survivor")
            assert after == before
            # The stream of the new daemon is followed as well.
            dockerd.docker("rename", "survivor", "veteran")
            await seen(source, id, ContainerState.RUNNING, "veteran")

    asyncio.run(scenario())


def test_a_hung_daemon_is_detected_without_events(dockerd: Dockerd) -> None:
    async def scenario() -> None:
        source = source_of(dockerd, heartbeat_s=0.1, timeout_s=0.5)
        async with following(source):
            id = dockerd.run()
            await seen(source, id, ContainerState.RUNNING)
            with dockerd.hung():
                await eventually_fails(source, "timeout")
            await seen(source, id, ContainerState.RUNNING)

    asyncio.run(scenario())


def test_a_lost_event_is_repaired_by_the_next_list(dockerd: Dockerd) -> None:
    async def scenario() -> None:
        source = ContainerFollower(socket=str(dockerd.socket), heartbeat_s=0.1, relist_s=0.1)
        async with following(source):
            id = dockerd.create("--name=kept")
            lost = dockerd.create("--name=lost")
            await seen(source, id, ContainerState.CREATED)
            # As if the daemon had dropped events.
            mirror = source._latest.read()
            mirror.forget(id)
            dockerd.docker("rm", lost)
            await seen(source, id, ContainerState.CREATED)
            await gone(source, lost)

    asyncio.run(scenario())


AS_NOBODY = """
import asyncio, os, sys
from gpucommons.sources.containers.source import ContainerFollower
from gpucommons.sources.source import SourceError

async def main():
    source = ContainerFollower(socket=sys.argv[1])
    task = asyncio.create_task(source.run())
    while True:
        await asyncio.sleep(0.01)
        try:
            source.read()
        except SourceError as error:
            if error.reason != "starting":
                sys.stdout.write(f"{error.reason}: {error}")
                return

os.setgroups([])
os.setgid(65534)
os.setuid(65534)
asyncio.run(main())
"""


def test_a_user_without_access_gets_a_remedy(dockerd: Dockerd) -> None:
    os.chmod(dockerd.home, 0o755)
    assert dockerd.socket.stat().st_mode & 0o006 == 0
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(AS_NOBODY), str(dockerd.socket)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout == (
        f"denied: no permission to open {dockerd.socket}: "
        "add the agent's user to the group docker, or run the agent as root"
    ), done.stderr
