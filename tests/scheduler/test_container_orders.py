"""Orders of root in containers of a real Docker and Podman are refused, alive and gone, with the record and without."""

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from gpucommons.model.sharing import SharingReading
from gpucommons.scheduler.protocol.wire import CONTROL_ID, MessageType, encode
from scheduler.served import Served, serving
from testbeds.daemons import IMAGE
from testbeds.dockerd import running_dockerd
from testbeds.podman import running_podman

pytestmark = pytest.mark.long
Command = Callable[..., str]

SEND = """
import socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[1])
peer.sendall(bytes.fromhex(sys.argv[2]))
if len(sys.argv) > 3:
    peer.settimeout(1)
    try:
        peer.recv(1)
    except TimeoutError:
        pass
"""
# The network of the host, so that the network namespace shows nothing.
KINDS = {
    "docker": (),
    "docker-private-cgroup": ("--cgroupns=private",),
    "podman": (),
    "podman-split-cgroup": ("--cgroups=no-conmon",),
}


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, Command]]:
    with ExitStack() as stack:
        dockerd = stack.enter_context(running_dockerd())
        podman = stack.enter_context(running_podman())
        yield {"docker": dockerd.docker, "podman": podman.podman}


@pytest.fixture(params=["recorded", "unrecorded"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory, serving(Path(directory)) as served:
        if request.param == "unrecorded":
            served.call(lambda: served.server._gone_peers.close_record())
        yield served


@pytest.mark.parametrize("kind", KINDS)
def test_an_order_from_a_container_is_refused(served: Served, engines: dict[str, Command], kind: str) -> None:
    engine = engines[kind.split("-")[0]]
    host = ["--network=host", "--volume=/:/host", *KINDS[kind]]
    id = engine("run", "--detach", *host, IMAGE, "/bin/sleep", "600").split()[-1]
    frame = encode(2, MessageType.SCHED_OFF, id=CONTROL_ID).hex()
    busybox = f"/host{shutil.which('busybox')}"
    send = [busybox, "chroot", "/host", sys.executable, "-S", "-c", SEND, served.path, frame]
    try:
        for count, waits in enumerate(((), (), ("wait",), ()), 1):
            engine("exec", id, *send, *waits)
            reading = served.until(partial(is_decided, count))
            assert reading.on
    finally:
        engine("kill", id)
        engine("rm", "--force", id)


def is_decided(count: int, reading: SharingReading) -> bool:
    return not reading.on or reading.refusals.get("control_not_admin", 0) >= count
