"""The memory limit of a program in a real container, as an agent in another real container finds it."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testbeds.dockerd import running_dockerd
from testbeds.podman import running_podman

pytestmark = pytest.mark.long

MIB = 1 << 20
ASK = """
import pathlib, sys
from gpucommons.scheduler.parking.host import container_room_bytes
print(container_room_bytes([int(sys.argv[1])]))
"""
SOURCE = Path(__file__).resolve().parents[2] / "src"
# What Python needs, at its own places: the image has nothing but busybox.
PYTHON = {"/usr", "/lib", "/lib64", sys.prefix, sys.base_prefix, str(SOURCE)}
AGENT = (
    *("--pid=host", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--memory=256m"),
    *(f"--env=PYTHONPATH={SOURCE}", "--env=PYTHONDONTWRITEBYTECODE=1"),
    *(f"--volume={directory}:{directory}:ro" for directory in sorted(PYTHON) if Path(directory).exists()),
)


class Engine:
    """`call` runs the engine's command, `run` starts a container that sleeps."""

    def __init__(self, call: Callable[..., str], run: Callable[..., str]) -> None:
        self._call = call
        self._run = run

    def program(self) -> int:
        """In a container of 2 GiB."""
        id = self._run("--memory=2g")
        return int(self._call("inspect", "--format={{.State.Pid}}", id))

    def room(self, program: int, *options: str) -> str:
        """As an agent in a container of 256 MiB finds it."""
        agent = self._run(*AGENT, *options)
        return self._call("exec", agent, sys.executable, "-P", "-c", ASK, str(program))


@pytest.fixture(scope="module", params=["docker", "podman"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    if request.param == "docker":
        with running_dockerd() as docker:
            yield Engine(docker.docker, docker.run)
    else:
        with running_podman() as podman:
            yield Engine(podman.podman, podman.run)


@pytest.mark.parametrize("namespace", ["private", "host"])
@pytest.mark.parametrize("at", ["/host/sys/fs/cgroup", "/sys/fs/cgroup"])
def test_the_limit_of_another_container(engine: Engine, at: str, namespace: str) -> None:
    """Where the manifests mount the host's cgroups, and where compose does."""
    room = engine.room(engine.program(), f"--cgroupns={namespace}", f"--volume=/sys/fs/cgroup:{at}:ro")
    assert 2000 * MIB < float(room) <= 2048 * MIB


@pytest.mark.parametrize("namespace", ["private", "host"])
def test_the_limit_is_not_known_where_the_hosts_cgroups_are_not_mounted(engine: Engine, namespace: str) -> None:
    assert engine.room(engine.program(), f"--cgroupns={namespace}") == "None"
