"""The device plugin against a kubelet's device manager: registration, lists, allocations, restarts of the kubelet."""

import asyncio
import os
import socket
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Literal

import grpc.aio
import pytest

from fakes.device_manager import DeviceManager
from fakes.kubelet import messages
from gpucommons.base.backoff import Backoff
from gpucommons.kubernetes.device_plugin import DevicePlugin
from gpucommons.kubernetes.shares import Injection, OfferedDevice, ShareResource
from testbeds.following import eventually, eventually_absent, eventually_fails, following, in_event_loop

_UUIDS = [f"GPU-0000000{index}-0000-0000-0000-000000000000" for index in range(2)]
_DEVICES = tuple(OfferedDevice(uuid, uuid, True) for uuid in _UUIDS)
_API = "/v1beta1.DevicePlugin"
_GPU, _NVSHARE = ShareResource("gpucommons.io/gpu", 10), ShareResource("nvshare.com/gpu", 4)


async def _by_environment(uuids: Collection[str]) -> Injection:
    return "environment"


def plugin(directory: Path, *resources: ShareResource) -> DevicePlugin:
    made = DevicePlugin(
        resources or (_GPU, _NVSHARE),
        directory,
        "spread",
        _by_environment,
        look_every_s=0.02,
        backoff=Backoff(0.02, 0.05),
    )
    made.offer(_DEVICES, {})
    return made


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short: the path of a socket has at most 107 bytes, and that of tmp_path has the name of the test."""
    with tempfile.TemporaryDirectory(prefix="gpucommons-") as made:
        yield Path(made)


@in_event_loop
async def test_each_resource_is_registered_with_its_shares(directory: Path) -> None:
    served = plugin(directory)
    async with DeviceManager(directory).running() as kubelet, following(served):
        ours = await kubelet.until("gpucommons.io/gpu", 20)
        await kubelet.until("nvshare.com/gpu", 8)
        assert ours.prefers
        await eventually(lambda: served.read().registrations == 2 or None)
        assert [tuple(each) for each in served.read().resources] == [
            ("gpucommons.io/gpu", 20, 0),
            ("nvshare.com/gpu", 8, 0),
        ]
    assert not list(directory.glob("gpucommons-*")), "a stopped agent leaves no socket"  # noqa: ASYNC240


@in_event_loop
async def test_a_pod_gets_shares_of_different_gpus(directory: Path) -> None:
    async with DeviceManager(directory).running() as kubelet, following(plugin(directory)):
        await kubelet.until("gpucommons.io/gpu", 20)
        chosen, given = await kubelet.admit("gpucommons.io/gpu", 2)
        assert {share.partition("__")[0] for share in chosen} == set(_UUIDS)
        assert sorted(given.envs["NVIDIA_VISIBLE_DEVICES"].split(",")) == _UUIDS
        assert list(given.mounts) == list(given.cdi_devices) == list(given.devices) == []


@in_event_loop
async def test_unhealthy_and_healthy_again(directory: Path) -> None:
    served = plugin(directory)
    async with DeviceManager(directory).running() as kubelet, following(served):
        await kubelet.until("gpucommons.io/gpu", 20)
        served.offer((_DEVICES[0]._replace(healthy=False), _DEVICES[1]), {})
        await kubelet.until("gpucommons.io/gpu", 10, 10)
        assert (await kubelet.admit("gpucommons.io/gpu", 1))[0][0].startswith(_UUIDS[1])
        assert tuple(served.read().resources[0]) == ("gpucommons.io/gpu", 10, 10)
        served.offer(_DEVICES, {})
        endpoint = await kubelet.until("gpucommons.io/gpu", 20)
        lists = endpoint.lists
        served.offer(_DEVICES, {})
        served.offer((_DEVICES[0],), {})
        await kubelet.until("gpucommons.io/gpu", 10)
        assert endpoint.lists == lists + 1, "what is offered again is not sent again"


@in_event_loop
async def test_a_kubelet_that_restarts_gets_the_plugin_again(directory: Path) -> None:
    served = plugin(directory)
    kubelet = DeviceManager(directory)
    async with following(served):
        for restart in range(1, 4):
            async with kubelet.running():
                await kubelet.until("gpucommons.io/gpu", 20)
                await kubelet.until("nvshare.com/gpu", 8)
                await kubelet.admit("gpucommons.io/gpu", 1)
                # The kubelet has the list before the plugin has the answer to its registration.
                await eventually(lambda: served.read().registrations == 2 * restart or None)  # noqa: B023


@in_event_loop
async def test_a_socket_that_was_removed_is_made_again(directory: Path) -> None:
    served = plugin(directory, _GPU)
    async with DeviceManager(directory).running() as kubelet, following(served):
        await kubelet.until("gpucommons.io/gpu", 20)
        (directory / _GPU.socket_name).unlink()
        await eventually(lambda: served.read().registrations == 2 or None)
        await kubelet.until("gpucommons.io/gpu", 20)


@in_event_loop
async def test_a_kubelet_that_refuses_is_reported_and_asked_again(directory: Path) -> None:
    served = plugin(directory, _GPU)
    async with DeviceManager(directory).running() as kubelet, following(served):
        kubelet.refusal = "the node has too many plugins"

        assert "too many plugins" in str(await eventually_fails(served, "refused"))
        kubelet.refusal = ""
        await kubelet.until("gpucommons.io/gpu", 20)


@in_event_loop
async def test_without_a_kubelet_the_source_is_absent(directory: Path) -> None:
    served = plugin(directory)

    async with following(served):
        assert "no kubelet socket" in str(await eventually_absent(served))


@in_event_loop
async def test_a_directory_whose_path_is_too_long_for_sockets_is_reported(directory: Path) -> None:
    deep = directory / ("d" * 107)
    deep.mkdir()
    (deep / "kubelet.sock").touch()
    served = plugin(deep, _GPU)

    async with following(served):
        failure = str(await eventually_fails(served, "settings"))
    assert str(deep / _GPU.socket_name) in failure
    assert "the path is longer than 107 bytes; use a shorter path" in failure


@in_event_loop
async def test_unknown_shares_and_broken_requests_are_errors_of_the_call(directory: Path) -> None:
    async with DeviceManager(directory).running() as kubelet, following(plugin(directory, _GPU)):
        endpoint = await kubelet.until("gpucommons.io/gpu", 20)
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await kubelet.allocate("gpucommons.io/gpu", [f"{_UUIDS[0]}__11"])
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
        for method in ("Allocate", "GetPreferredAllocation"):
            with pytest.raises(grpc.aio.AioRpcError) as broken:
                await endpoint.channel.unary_unary(f"{_API}/{method}")(b"\x0a\xff", timeout=10)
            assert broken.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await kubelet.admit("gpucommons.io/gpu", 1)


@in_event_loop
async def test_only_the_kubelet_can_connect_from_the_first_moment_on(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "chmod", None)
    monkeypatch.setattr(Path, "chmod", None)
    before = os.umask(0)
    try:
        async with DeviceManager(directory).running() as kubelet, following(plugin(directory, _GPU)):
            await kubelet.until("gpucommons.io/gpu", 20)
            assert (directory / _GPU.socket_name).stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


def _preference(available: list[str], size: int, containers: int = 1) -> bytes:
    request = messages("deviceplugin").PreferredAllocationRequest()
    request.container_requests.add(available_deviceIDs=available, allocation_size=size)
    # A repeated field: one after the other.
    return bytes(request.SerializeToString()) * containers


@pytest.mark.long
@in_event_loop
async def test_a_client_that_asks_too_much_holds_up_no_other(directory: Path) -> None:
    """Requests of megabytes, shares that do not exist, thousands of containers, silent clients, endless lists."""
    shares = [f"{uuid}__{number}" for uuid in _UUIDS for number in range(1, 11)]
    others = [f"GPU-{number:08}__1" for number in range(40_000)]
    refusals = {
        _preference(["x" * 100] * 20_000, 1): grpc.StatusCode.RESOURCE_EXHAUSTED,
        _preference(shares, 1, containers=500): grpc.StatusCode.INVALID_ARGUMENT,
        _preference([], 1, containers=100_000): grpc.StatusCode.INVALID_ARGUMENT,
    }
    async with DeviceManager(directory).running() as kubelet, following(plugin(directory, _GPU)):
        endpoint = await kubelet.until("gpucommons.io/gpu", 20)
        prefer = endpoint.channel.unary_unary(f"{_API}/GetPreferredAllocation")
        for request, code in refusals.items():
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await prefer(request, timeout=10)
            assert refused.value.code() is code
        answer = await prefer(_preference([*others, *shares], 2**31 - 1), timeout=10)
        (chosen,) = messages("deviceplugin").PreferredAllocationResponse.FromString(answer).container_responses
        assert sorted(chosen.deviceIDs) == sorted(shares), "each share that there is, once"
        silent = [socket.socket(socket.AF_UNIX) for _ in range(200)]
        for client in silent:
            client.connect(str(directory / _GPU.socket_name))
            client.sendall(b"PRI * HTTP/2.0\r\n")
        lists = [endpoint.channel.unary_stream(f"{_API}/ListAndWatch")(b"") for _ in range(40)]
        assert len({await each.read() for each in lists}) == 1
        await kubelet.admit("gpucommons.io/gpu", 1)
        more = [endpoint.channel.unary_stream(f"{_API}/ListAndWatch")(b"") for _ in range(40)]
        with pytest.raises(grpc.aio.AioRpcError) as too_many:
            await asyncio.gather(*(each.read() for each in more))
        assert too_many.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for each in (*lists, *more):
            each.cancel()
        await kubelet.admit("gpucommons.io/gpu", 1)
        for client in silent:
            client.close()


@in_event_loop
async def test_pods_made_for_nvshare_get_what_its_own_plugin_gives(directory: Path) -> None:
    """What nvshare's device plugin answers for one device; without its library only the GPU is left."""
    cases: list[tuple[Literal["nvshare"] | None, dict[str, str], list[tuple[str, str, bool]]]] = [
        (None, {}, []),
        (
            "nvshare",
            {"LD_PRELOAD": "/usr/lib/nvshare/libnvshare.so"},
            [
                ("/usr/lib/nvshare/libnvshare.so", "/var/run/nvshare/libnvshare.so", True),
                ("/var/run/nvshare/scheduler.sock", "/var/run/nvshare/scheduler.sock", True),
            ],
        ),
    ]
    for library, environment, mounts in cases:
        served = plugin(directory, ShareResource("nvshare.com/gpu", 10, library))
        async with DeviceManager(directory).running() as kubelet, following(served):
            endpoint = await kubelet.until("nvshare.com/gpu", 20)
            assert {f"{_UUIDS[0]}__{number}" for number in range(1, 11)} <= endpoint.devices.keys()
            given = await kubelet.allocate("nvshare.com/gpu", [f"{_UUIDS[0]}__7"])
            assert dict(given.envs) == {"NVIDIA_VISIBLE_DEVICES": _UUIDS[0]} | environment
            assert [(each.container_path, each.host_path, each.read_only) for each in given.mounts] == mounts
