"""Serves the kubelet's device-plugin API, and registers with the kubelet, again whenever the kubelet starts.

Each resource has a socket in the kubelet's directory of device plugins. A kubelet that starts removes all sockets there
and creates its own, so the directory is looked at every second. Pods that run keep their GPUs meanwhile: the kubelet
only gives out no shares until the plugin is registered again.

What is offered comes from the snapshots. A change of it goes to the kubelet at once.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpucommons.base.address import AddressError, parse_unix_address
from gpucommons.base.backoff import Backoff
from gpucommons.base.files import creation_mode
from gpucommons.base.protobuf import BrokenMessage
from gpucommons.kubernetes import messages
from gpucommons.kubernetes.shares import (
    Injection,
    OfferedDevice,
    Placement,
    ShareResource,
    UnknownShare,
    device_uuid,
    grant,
    preferred_shares,
    share_ids,
)
from gpucommons.model.workloads import DevicePluginReading, OfferedResource
from gpucommons.sources.kubernetes.kubelet import check_kubelet
from gpucommons.sources.source import Latest, SourceError, keep_following

if TYPE_CHECKING:
    import grpc.aio

    Context = grpc.aio.ServicerContext[bytes, bytes]

DIRECTORY: Final = "/var/lib/kubelet/device-plugins"

_TIMEOUT_S: Final = 5.0
_LOOK_EVERY_S: Final = 1.0
# Far beyond what a kubelet sends: one container in each request, and the shares of the node.
_MAX_REQUEST_BYTES: Final = 1 << 20
_MAX_CALLS: Final = 64

Injector = Callable[[Collection[str]], Awaitable[Injection]]
"""How the GPUs and MIG devices with these UUIDs get into a container."""


class DevicePlugin:
    """`run` must be running. `offer` is called on the same loop."""

    def __init__(
        self,
        resources: Sequence[ShareResource],
        directory: Path,
        placement: Placement,
        injector: Injector,
        *,
        look_every_s: float = _LOOK_EVERY_S,
        backoff: Backoff | None = None,
    ) -> None:
        self._resources = resources
        self._directory = directory
        self._kubelet = directory / "kubelet.sock"
        self._look_every_s = look_every_s
        # A kubelet that restarts is back within seconds: no need to wait longer for it.
        self._backoff = backoff or Backoff(max_s=5.0)
        self._registrations = 0
        self._latest: Latest[bool] = Latest("waiting for the GPUs of this node")
        self.placement = placement
        self.injector = injector
        self.devices: tuple[OfferedDevice, ...] = ()
        self.allocated: Mapping[str, int] = {}
        self.changed = asyncio.Event()

    def offer(self, devices: tuple[OfferedDevice, ...], allocated: Mapping[str, int]) -> None:
        """`allocated` are the shares that pods have, by UUID."""
        self.allocated = allocated
        if devices != self.devices:
            self.devices = devices
            # Each waiter holds the event of the list that it has sent.
            changed, self.changed = self.changed, asyncio.Event()
            changed.set()

    def read(self) -> DevicePluginReading:
        self._latest.read()
        healthy = sum(device.healthy for device in self.devices)
        faulty = len(self.devices) - healthy
        offered = (
            (resource.name, healthy * resource.shares_per_gpu, faulty * resource.shares_per_gpu)
            for resource in self._resources
        )
        return DevicePluginReading(tuple(OfferedResource(*fields) for fields in offered), self._registrations)

    async def run(self) -> None:
        """Serve until cancelled, across restarts of the kubelet."""
        await keep_following(self._follow, self._latest.fail_by, self._backoff)

    async def _follow(self) -> None:
        """Ends with an exception, when the kubelet cannot be reached."""
        while not self.devices:
            await self.changed.wait()
        while True:
            kubelet = self._kubelet_start()
            async with AsyncExitStack() as servers:
                for resource in self._resources:
                    await servers.enter_async_context(self._served(resource))
                await self._register()
                self._latest.succeed(True)
                self._backoff.reset()
                # The kubelet announces its start by its socket only: there is no event to wait for.
                while self._kubelet_start() == kubelet and all(map(os.path.lexists, self._sockets())):  # noqa: ASYNC110
                    await asyncio.sleep(self._look_every_s)

    def _kubelet_start(self) -> tuple[int, int]:
        """Identifies the kubelet's socket: another one is another start of the kubelet."""
        status = check_kubelet(str(self._kubelet), DIRECTORY)
        return status.st_ino, status.st_mtime_ns

    def _sockets(self) -> Iterator[Path]:
        return (self._directory / resource.socket_name for resource in self._resources)

    @asynccontextmanager
    async def _served(self, resource: ShareResource) -> AsyncIterator[None]:
        import grpc
        import grpc.aio

        service = _Service(self, resource)
        handlers: dict[str, Any] = {
            "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(service.options),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(service.list_and_watch),
            "GetPreferredAllocation": grpc.unary_unary_rpc_method_handler(service.prefer),
            "Allocate": grpc.unary_unary_rpc_method_handler(service.allocate),
            "PreStartContainer": grpc.unary_unary_rpc_method_handler(service.nothing),
        }
        limits = (("grpc.max_receive_message_length", _MAX_REQUEST_BYTES),)
        server = grpc.aio.server(options=limits, maximum_concurrent_rpcs=_MAX_CALLS)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(messages.SERVICE, handlers),))
        path = self._directory / resource.socket_name
        try:
            # For the kubelet alone: any other client could learn the GPUs of the node, and keep the calls busy.
            with creation_mode(0o600):
                server.add_insecure_port(str(parse_unix_address(f"unix:{path}")))
        except AddressError as error:
            raise SourceError("settings", f"cannot create a socket for the kubelet: {error}") from None
        except RuntimeError:
            raise SourceError("denied", f"cannot create {path}: run the agent as root") from None
        await server.start()
        try:
            yield
        finally:
            await server.stop(grace=None)
            path.unlink(missing_ok=True)

    async def _register(self) -> None:
        import grpc.aio

        options = (("grpc.enable_http_proxy", 0),)
        async with grpc.aio.insecure_channel(f"unix:{self._kubelet}", options) as channel:
            register: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(messages.REGISTER)
            for resource in self._resources:
                try:
                    await register(messages.register_request(resource.socket_name, resource.name), timeout=_TIMEOUT_S)
                except grpc.aio.AioRpcError as error:
                    why = " ".join((error.details() or error.code().name).split())[:200]
                    refused = f"the kubelet at {self._kubelet} does not register the device plugin: {why}"
                    raise SourceError("refused", refused) from None
                self._registrations += 1


class _Service:
    """What the kubelet asks of one resource. A request that cannot be fulfilled is an error of the call."""

    def __init__(self, plugin: DevicePlugin, resource: ShareResource) -> None:
        self._plugin = plugin
        self._resource = resource

    async def options(self, request: bytes, context: object) -> bytes:
        return messages.OPTIONS

    async def nothing(self, request: bytes, context: object) -> bytes:
        return messages.EMPTY

    async def list_and_watch(self, request: bytes, context: object) -> AsyncIterator[bytes]:
        while True:
            changed = self._plugin.changed
            yield messages.device_list(self._plugin.devices, self._resource.shares_per_gpu)
            await changed.wait()

    async def prefer(self, request: bytes, context: "Context") -> bytes:
        plugin, shares_per_gpu = self._plugin, self._resource.shares_per_gpu
        offered = {share for device in plugin.devices for share in share_ids(device, shares_per_gpu)}
        async with _errors_of(context):
            return messages.preference_answer(
                preferred_shares(
                    offered.intersection(available), included, size, plugin.allocated, shares_per_gpu, plugin.placement
                )
                for available, included, size in messages.preference_requests(request)
            )

    async def allocate(self, request: bytes, context: "Context") -> bytes:
        async with _errors_of(context):
            asked = messages.allocate_requests(request)
            injection = await self._plugin.injector({device_uuid(share) for shares in asked for share in shares})
            given = (grant(shares, self._plugin.devices, self._resource, injection) for shares in asked)
            return messages.allocate_answer(given)


@asynccontextmanager
async def _errors_of(context: "Context") -> AsyncIterator[None]:
    import grpc

    try:
        yield
    except BrokenMessage as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request has {error}")
    except UnknownShare as error:
        await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
