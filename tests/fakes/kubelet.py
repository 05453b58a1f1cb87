"""A kubelet's PodResources service: a real gRPC server on a Unix socket, from the protocol's definition."""

import asyncio
import contextlib
import functools
import importlib
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from grpc_tools import protoc

_PROTOS = Path(__file__).parent


@functools.cache
def messages(definition: str = "podresources") -> Any:
    """The message classes that protoc generates from the definition."""
    with tempfile.TemporaryDirectory() as directory:
        failed = protoc.main(["protoc", f"-I{_PROTOS}", f"--python_out={directory}", f"{definition}.proto"])
        assert not failed, f"protoc refuses {definition}.proto"
        sys.path.insert(0, directory)
        try:
            return importlib.import_module(f"{definition}_pb2")
        finally:
            sys.path.remove(directory)


def container_devices(resource: str, *device_ids: str, numa: int = 0) -> Any:
    m = messages()
    topology = m.TopologyInfo(nodes=[m.NUMANode(ID=numa)])
    return m.ContainerDevices(resource_name=resource, device_ids=device_ids, topology=topology)


def pod(namespace: str, name: str, **containers: list[Any]) -> Any:
    """A pod whose containers have these ContainerDevices, and CPUs, which the decoder must skip."""
    m = messages()
    return m.PodResources(
        name=name,
        namespace=namespace,
        containers=[
            m.ContainerResources(name=container, devices=devices, cpu_ids=[1, 2, 300])
            for container, devices in containers.items()
        ],
    )


class Kubelet:
    """Its responses and faults. A `fault` is raised in place of the response."""

    def __init__(self, *pods: Any, allocatable: list[Any] | None = None) -> None:
        self.pods = list(pods)
        self.allocatable = allocatable
        self.allocatable_fault = grpc.StatusCode.UNKNOWN
        self.lists = 0
        self.fault: grpc.StatusCode | None = None
        self.raw_list: bytes | None = None
        self.hangs = False

    async def _list(self, request: bytes, context: Any) -> bytes:
        self.lists += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.fault is not None:
            await context.abort(self.fault, "set by the test")
        if self.raw_list is not None:
            return self.raw_list
        answer: bytes = messages().ListPodResourcesResponse(pod_resources=self.pods).SerializeToString()
        return answer

    async def _get_allocatable(self, request: bytes, context: Any) -> bytes:
        if self.allocatable is None:
            await context.abort(self.allocatable_fault, "API GetAllocatableResources disabled")
        answer: bytes = messages().AllocatableResourcesResponse(devices=self.allocatable).SerializeToString()
        return answer

    @contextlib.asynccontextmanager
    async def serving(self, socket: Path, service: str = "v1.PodResourcesLister") -> AsyncIterator[None]:
        server = grpc.aio.server()
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "List": grpc.unary_unary_rpc_method_handler(self._list),
            "GetAllocatableResources": grpc.unary_unary_rpc_method_handler(self._get_allocatable),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        try:
            yield
        finally:
            await server.stop(grace=None)
