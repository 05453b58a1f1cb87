"""The kubelet's socket, served by a real gRPC server: responses, restarts, silence, garbage, and its absence."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from fakes.kubelet import Kubelet, container_devices, pod
from gpucommons.base.backoff import Backoff
from gpucommons.model.workloads import DeviceId, PodDevices, PodDevicesReading
from gpucommons.sources.kubernetes.kubelet import PodDevicesFollower
from needs import needs_root
from testbeds.following import eventually, eventually_absent, eventually_fails, following

GPU = "GPU-8dba0ca8-1d7a-4e1c-9a6e-6d2b0c0a11ff"


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gpucommons-") as directory:
        yield Path(directory) / "kubelet.sock"


def source_at(path: Path, refresh_s: float = 0.05) -> PodDevicesFollower:
    return PodDevicesFollower(str(path), refresh_s=refresh_s, timeout_s=0.5, backoff=Backoff(0.02, 0.05))


def a_pod(name: str = "train") -> object:
    return pod("lab", name, main=[container_devices("nvidia.com/gpu", f"{GPU}::3")])


def given(name: str = "train") -> PodDevices:
    return PodDevices("lab", name, "main", (DeviceId(f"{GPU}::3", gpu_uuid=GPU, replica=3),))


async def eventually_given(source: PodDevicesFollower, *names: str) -> PodDevicesReading:
    expected = tuple(given(name) for name in names)
    return await eventually(lambda: r if (r := source.read()).allocated == expected else None)


def test_allocated_and_allocatable_devices(path: Path) -> None:
    async def scenario() -> None:
        there_is = [container_devices("nvidia.com/gpu", f"{GPU}::0", f"{GPU}::1")]
        kubelet = Kubelet(a_pod(), allocatable=there_is)
        source = source_at(path)
        async with kubelet.serving(path), following(source):
            reading = await eventually_given(source, "train")
            assert reading.allocatable is not None
            assert [id.replica for id in reading.allocatable["nvidia.com/gpu"]] == [0, 1]
            asked = kubelet.lists
            await eventually(lambda: True if kubelet.lists > asked + 1 else None)
            assert source.read() is reading, "an equal response is not a change"
            kubelet.pods.append(a_pod("infer"))
            await eventually_given(source, "train", "infer")
            kubelet.pods.pop(0)
            await eventually_given(source, "infer")

    asyncio.run(scenario())


def test_a_kubelet_without_allocatable_still_reports_allocations(path: Path) -> None:
    async def scenario() -> None:
        source = source_at(path)
        async with Kubelet(a_pod()).serving(path), following(source):
            assert (await eventually_given(source, "train")).allocatable is None

    asyncio.run(scenario())


def test_a_connection_lost_between_the_two_calls_is_a_failure(path: Path) -> None:
    async def scenario() -> None:
        kubelet = Kubelet(a_pod())
        kubelet.allocatable_fault = grpc.StatusCode.UNAVAILABLE
        source = source_at(path)
        async with kubelet.serving(path), following(source):
            await eventually_fails(source, "disconnected")

    asyncio.run(scenario())


def test_a_missing_kubelet_is_absent_and_a_restarted_one_is_found(path: Path) -> None:
    async def scenario() -> None:
        source = source_at(path)
        async with following(source):
            absent = await eventually_absent(source)
            assert str(absent) == f"there is no kubelet socket at {path}"
            assert "/var/lib/kubelet/pod-resources" in absent.remedy
            async with Kubelet(a_pod()).serving(path):
                await eventually_given(source, "train")
            # gRPC removes the socket with the server; a killed kubelet leaves it behind.
            with socket_left_behind(path):
                await eventually_fails(source, "disconnected")
            async with Kubelet(a_pod("infer")).serving(path):
                await eventually_given(source, "infer")
                assert source._backoff.next_s() <= 0.02, "the back-off was reset"

    asyncio.run(scenario())


@contextlib.contextmanager
def socket_left_behind(path: Path) -> Iterator[None]:
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    yield
    path.unlink()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (grpc.StatusCode.UNIMPLEMENTED, "unsupported"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "oversize"),
        (grpc.StatusCode.INTERNAL, "status"),
    ],
)
def test_an_error_of_the_kubelet_is_reported(path: Path, fault: grpc.StatusCode, reason: str) -> None:
    async def scenario() -> None:
        kubelet = Kubelet(a_pod())
        kubelet.fault = fault
        source = source_at(path)
        async with kubelet.serving(path), following(source):
            assert str(path) in str(await eventually_fails(source, reason))
            kubelet.fault = None
            await eventually_given(source, "train")

    asyncio.run(scenario())


def test_readings_are_missing_while_the_kubelet_hangs_or_sends_garbage(path: Path) -> None:
    async def scenario() -> None:
        kubelet = Kubelet(a_pod())
        source = source_at(path)
        async with kubelet.serving(path), following(source):
            await eventually_given(source, "train")
            kubelet.hangs = True
            await eventually_fails(source, "timeout")
            kubelet.hangs = False
            await eventually_given(source, "train")
            kubelet.raw_list = b"\x0a\xff\xff"
            await eventually_fails(source, "garbage")
            kubelet.raw_list = b"\x0a" + b"\x80" * 3 + b"\x0a" + bytes(20 * 1024 * 1024)
            await eventually_fails(source, "oversize")
            kubelet.raw_list = None
            await eventually_given(source, "train")

    asyncio.run(scenario())


def test_an_unsupported_kubelet_is_reported(path: Path) -> None:
    async def scenario() -> None:
        source = source_at(path)
        async with Kubelet(a_pod()).serving(path, service="v1alpha1.PodResourcesLister"), following(source):
            await eventually_fails(source, "unsupported")

    asyncio.run(scenario())


def test_a_socket_without_grpc(path: Path) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-hello\r\n" * 100)
        await reader.read()
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_unix_server(babble, path)
        source = source_at(path)
        async with following(source):
            await eventually_fails(source, "disconnected", "timeout")
        server.close()

    asyncio.run(scenario())


ONE_READ = """
import asyncio, os, sys
{before}
from gpucommons.sources.kubernetes.kubelet import PodDevicesFollower
from gpucommons.sources.source import SourceAbsent, SourceError

async def main():
    source = PodDevicesFollower(sys.argv[1])
    task = asyncio.create_task(source.run())
    while True:
        await asyncio.sleep(0.01)
        try:
            source.read()
        except SourceError as error:
            if error.reason != "starting":
                sys.stdout.write(f"{{error.reason}}: {{error}}")
                return
        except SourceAbsent as absent:
            sys.stdout.write(f"absent: {{absent}}; {{absent.remedy}}")
            return

asyncio.run(main())
"""


def one_read_elsewhere(path: Path, before: str) -> str:
    """The output of a new process that first runs `before`."""
    done = subprocess.run(
        [sys.executable, "-c", ONE_READ.format(before=before), str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    return done.stdout or done.stderr


def test_without_grpc_the_remedy_names_the_extra(path: Path) -> None:
    path.touch()
    said = one_read_elsewhere(path, "sys.modules['grpc'] = None")
    assert said == (
        "absent: the kubelet requires gRPC, and the Python package grpcio is not installed; "
        "pip install 'gpucommons[kubernetes]'"
    )


def test_without_permission_the_remedy_is_root(path: Path) -> None:
    needs_root()
    path.touch()
    as_nobody = "import gpucommons.sources.kubernetes.kubelet; os.setgroups([]); os.setgid(65534); os.setuid(65534)"
    said = one_read_elsewhere(path, as_nobody)
    assert said == f"denied: no permission to open {path}: run the agent as root"
    path.parent.chmod(0o755)
    path.chmod(0o600)
    assert one_read_elsewhere(path, as_nobody) == said


def test_a_node_without_kubelet_never_loads_grpc(path: Path) -> None:
    said = one_read_elsewhere(path, "import atexit; atexit.register(lambda: print('grpc' in sys.modules))")
    assert said.startswith(f"absent: there is no kubelet socket at {path}")
    assert said.endswith("False\n")
