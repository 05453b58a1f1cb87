"""The feeds of `gpucommons top`: the stream of an agent over HTTP or a Unix socket, or its own sampling.

A feed never ends: it reports the loss of an agent and reconnects until the agent is back.
"""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gpucommons.base.http_client import BodyTooLong, HttpError, HttpRequest, body_of, exchange, lines_of
from gpucommons.base.text import LineTooLong
from gpucommons.cli.agent_client import AgentAddress
from gpucommons.faces.documents.delta import apply
from gpucommons.model.viewer import SEES_ALL

if TYPE_CHECKING:
    from gpucommons.agent.agent import Agent

Document = Mapping[str, Any]
# The values of each GPU, by series and UUID.
Recent = Mapping[str, Mapping[str, Sequence[float | None]]]

UTILIZATION = "gpu_utilization_ratio"
MEMORY = "gpu_memory_used_bytes"
RECENT_S = 600
_RETRY_S = (1.0, 2.0, 4.0)
# The agent sends a heartbeat every 15 s.
_SILENCE_S = 40.0
_CONNECT_S = 5.0
_LONGEST_LINE_BYTES = 16 * 2**20
_MAX_DOCUMENT_BYTES = 64 * 2**20
_FAILURES = (HttpError, OSError, ValueError, BodyTooLong, LineTooLong)


class FeedUpdate(NamedTuple):
    """A new document, or in `lost` why there is none. `recent` comes with the first document of a connection."""

    document: Document | None
    recent: Recent | None = None
    lost: str = ""


class Feed(Protocol):
    @property
    def where(self) -> str: ...
    @property
    def is_local(self) -> bool:
        """Whether the node is this machine."""

    def updates(self) -> AsyncGenerator[FeedUpdate, None]: ...
    async def ask(self, name: str, parameters: Mapping[str, str]) -> Document | None:
        """The document of /api/v1/NAME; None where there is none now."""


class AgentFeed:
    """The stream of an agent."""

    def __init__(self, address: AgentAddress) -> None:
        self.where = address.url
        # A port of this machine may be a tunnel to another one.
        self.is_local = bool(address.socket_path)
        self._address = address

    async def updates(self) -> AsyncGenerator[FeedUpdate, None]:
        failures = 0
        while True:
            try:
                async for update in self._stream():
                    failures = 0
                    yield update
                reason = "the agent closed the stream"
            except _FAILURES as error:
                number = isinstance(error, OSError) and error.errno
                reason = os.strerror(number) if number else str(error) or type(error).__name__
            yield FeedUpdate(None, lost=" ".join(reason.split()))
            await asyncio.sleep(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
            failures += 1

    async def ask(self, name: str, parameters: Mapping[str, str]) -> Document | None:
        try:
            return await self._document(name, parameters)
        except _FAILURES:
            return None

    def _request(self, name: str, parameters: Mapping[str, str]) -> HttpRequest:
        address = self._address
        return HttpRequest(
            f"{address.base}/api/v1/{name}",
            parameters=parameters,
            headers=address.headers(),
            socket_path=address.socket_path,
            tls=address.tls(),
            connect_s=_CONNECT_S,
            silence_s=_SILENCE_S,
        )

    async def _document(self, name: str, parameters: Mapping[str, str]) -> Document:
        async with exchange(self._request(name, parameters)) as answer:
            _check_status(answer.status)
            document: Document = json.loads(await body_of(answer, _MAX_DOCUMENT_BYTES))
            return document

    async def _stream(self) -> AsyncGenerator[FeedUpdate, None]:
        document: Document = {}
        async with exchange(self._request("stream", {})) as answer:
            _check_status(answer.status)
            event = ""
            async for line in lines_of(answer, _LONGEST_LINE_BYTES):
                name, _, value = line.decode().partition(": ")
                if name == "event":
                    event = value
                elif name == "data" and event == "snapshot":
                    document = json.loads(value)
                    yield FeedUpdate(document, await self._recent())
                elif name == "data" and event == "delta":
                    document = apply(document, json.loads(value))
                    yield FeedUpdate(document)

    async def _recent(self) -> Recent:
        query = {"range": f"{RECENT_S}s", "points": str(RECENT_S)}
        return {
            series: (await self._document("history", {"series": series, **query}))["values"]
            for series in (UTILIZATION, MEMORY)
        }


def _check_status(status: int) -> None:
    if status != 200:
        raise ValueError(f"the agent answered with status {status}")


class LocalFeed:
    """Samples this machine without an agent: no listeners, no accounts."""

    def __init__(self, agent: "Agent") -> None:
        self.where = "this machine (no agent)"
        self.is_local = True
        self._agent = agent

    async def updates(self) -> AsyncGenerator[FeedUpdate, None]:
        agent, new = self._agent, asyncio.Event()
        agent.sampler.subscribe(lambda _: new.set())
        tasks = [*agent.start_background(), asyncio.create_task(agent.sampler.run())]
        try:
            while True:
                await new.wait()
                new.clear()
                yield FeedUpdate(agent.api.document(SEES_ALL))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def ask(self, name: str, parameters: Mapping[str, str]) -> Document | None:
        # Imported here: with an agent, it is not needed.
        from gpucommons.cli.one_sample import api_document

        snapshot = self._agent.sampler.latest()
        return None if snapshot is None else api_document(snapshot, name, parameters)
