"""The part of a kubelet that device plugins register with: a real gRPC server and client, from the API's definition.

It does what the kubelet does: it removes all sockets when it starts, follows the list of each plugin that registers,
gives out healthy devices only, and asks the plugin which of them suit together.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from fakes.kubelet import messages

_API = "v1beta1.DevicePlugin"


def _m() -> Any:
    return messages("deviceplugin")


@dataclass
class Endpoint:
    """A registered plugin. `devices` has the health of each device; `connected` ends with its list."""

    resource: str
    channel: Any
    prefers: bool
    devices: dict[str, str] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    lists: int = 0
    connected: bool = True

    def count(self, health: str) -> int:
        return sum(each == health for each in self.devices.values())


class DeviceManager:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.endpoints: dict[str, Endpoint] = {}
        self.changed = asyncio.Condition()
        self.refusal = ""
        self._tasks: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["DeviceManager"]:
        for left in self.directory.iterdir():
            left.unlink()
        self.endpoints.clear()
        server = grpc.aio.server()
        handlers: dict[str, Any] = {"Register": grpc.unary_unary_rpc_method_handler(self._register)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.Registration", handlers),))
        server.add_insecure_port(f"unix:{self.directory / 'kubelet.sock'}")
        await server.start()
        try:
            yield self
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._tasks.clear()
            for endpoint in self.endpoints.values():
                await endpoint.channel.close()
            await server.stop(grace=None)

    async def until(self, resource: str, healthy: int, unhealthy: int = 0) -> Endpoint:
        """The plugin of a resource, once its list has so many devices."""

        def found() -> bool:
            each = self.endpoints.get(resource)
            return each is not None and (each.count("Healthy"), each.count("Unhealthy")) == (healthy, unhealthy)

        async with asyncio.timeout(30), self.changed:
            await self.changed.wait_for(found)
        return self.endpoints[resource]

    async def admit(self, resource: str, count: int, must_include: tuple[str, ...] = ()) -> tuple[list[str], Any]:
        """Devices for a container, and what the plugin answers for them."""
        m, endpoint = _m(), self.endpoints[resource]
        free = sorted(id for id, health in endpoint.devices.items() if health == "Healthy" and id not in endpoint.given)
        chosen = free[:count]
        if endpoint.prefers:
            request = m.PreferredAllocationRequest()
            request.container_requests.add(
                available_deviceIDs=free, must_include_deviceIDs=must_include, allocation_size=count
            )
            answer = m.PreferredAllocationResponse.FromString(
                await self._call(endpoint, "GetPreferredAllocation", request)
            )
            chosen = list(answer.container_responses[0].deviceIDs)
        assert len(chosen) == count
        assert set(chosen) <= set(free), "the kubelet ignores devices that are not available"
        given = await self.allocate(resource, chosen)
        endpoint.given.update(chosen)
        return chosen, given

    async def allocate(self, resource: str, ids: list[str]) -> Any:
        m = _m()
        request = m.AllocateRequest(container_requests=[m.ContainerAllocateRequest(devices_ids=ids)])
        answer = m.AllocateResponse.FromString(await self._call(self.endpoints[resource], "Allocate", request))
        (container,) = answer.container_responses
        return container

    async def _call(self, endpoint: Endpoint, method: str, request: Any) -> bytes:
        answer: bytes = await endpoint.channel.unary_unary(f"/{_API}/{method}")(request.SerializeToString(), timeout=10)
        return answer

    async def _register(self, request: bytes, context: Any) -> bytes:
        sent = _m().RegisterRequest.FromString(request)
        if self.refusal or sent.version != "v1beta1":
            await context.abort(grpc.StatusCode.UNKNOWN, self.refusal or "unsupported version")
        channel = grpc.aio.insecure_channel(f"unix:{self.directory / sent.endpoint}")
        endpoint = Endpoint(sent.resource_name, channel, sent.options.get_preferred_allocation_available)
        self.endpoints[sent.resource_name] = endpoint
        self._tasks.append(asyncio.create_task(self._follow(endpoint)))
        return b""

    async def _follow(self, endpoint: Endpoint) -> None:
        try:
            async for message in endpoint.channel.unary_stream(f"/{_API}/ListAndWatch")(b""):
                listed = _m().ListAndWatchResponse.FromString(message)
                async with self.changed:
                    endpoint.devices = {each.ID: each.health for each in listed.devices}
                    endpoint.lists += 1
                    self.changed.notify_all()
        except grpc.aio.AioRpcError:
            pass
        async with self.changed:
            # The kubelet takes the devices of a plugin that went away as unhealthy.
            endpoint.connected = False
            endpoint.devices = dict.fromkeys(endpoint.devices, "Unhealthy")
            self.changed.notify_all()
