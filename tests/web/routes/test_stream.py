"""The stream: a whole document once, then deltas; one encoding for all viewers; a slow viewer gets a whole document."""

import asyncio
import json
import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any

from demo_node import DemoNode
from fakes.faces import FakeFaces
from gpucommons.faces.documents.delta import apply
from gpucommons.faces.documents.values import Json
from gpucommons.faces.web.http.connections import ConnectionLimits
from gpucommons.faces.web.http.server import WebServer
from gpucommons.faces.web.routes.stream import Broadcaster
from gpucommons.model.viewer import SEES_ALL, Viewer
from peers import Peer, run, until
from played import Played, snapshot_of

BOB = Viewer(False, 1001, "bob")


class EventReader:
    """Reads server-sent events as a browser does."""

    def __init__(self) -> None:
        self.document: Any = {}
        self.kinds: list[str] = []

    def take(self, text: bytes) -> None:
        for block in text.decode().split("\n\n"):
            lines = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
            if "event" not in lines:
                continue
            self.kinds.append(lines["event"])
            data: Any = json.loads(lines["data"])
            if lines["event"] == "snapshot":
                self.document = data
            elif lines["event"] == "delta":
                self.document = apply(self.document, data)
                assert int(lines["id"]) == self.document["sequence"]


def viewers(played: Played) -> int:
    return sum(len(audience.connections) for audience in played.api.broadcaster._audiences.values())


async def next_of(events: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(events)


def test_deltas_lead_to_the_document_of_the_api() -> None:
    async def scenario() -> None:
        played, reader = Played(DemoNode(lost=7)).play(1), EventReader()
        events = played.api.broadcaster.events(SEES_ALL)
        reader.take(await next_of(events))
        reader.take(await next_of(events))
        for second in range(1, 40):
            played.play(1, start_s=second)
            reader.take(await next_of(events))
            assert json.dumps(reader.document, sort_keys=True) == json.dumps(
                json.loads(played.response("snapshot").body), sort_keys=True
            )
        assert reader.kinds == ["snapshot"] + ["delta"] * 39
        await events.aclose()
        assert viewers(played) == 0

    run(scenario())


def test_one_delta_is_made_for_viewers_that_see_the_same() -> None:
    async def scenario() -> None:
        made: list[Viewer] = []
        sequence = 0

        def document(viewer: Viewer) -> dict[str, Json]:
            made.append(viewer)
            return {"sequence": sequence, "who": str(viewer.uid)}

        broadcaster = Broadcaster(document)
        streams = [broadcaster.events(viewer) for viewer in [SEES_ALL] * 50 + [BOB] * 50]
        for events in streams:
            await next_of(events)
            await next_of(events)
        assert len(made) == 2, "one document for each of the two audiences"
        sequence = 1
        broadcaster.publish()
        assert len(made) == 4
        events_of_all = [await next_of(events) for events in streams]
        assert len(set(events_of_all)) == 1, "both audiences see the same change"
        for events in streams:
            await events.aclose()
        broadcaster.publish()
        assert len(made) == 4, "without viewers nothing is made"

    run(scenario())


def test_a_slow_reader_gets_a_whole_document() -> None:
    async def scenario() -> None:
        played, reader = Played().play(1), EventReader()
        events = played.api.broadcaster.events(SEES_ALL)
        reader.take(await next_of(events))
        reader.take(await next_of(events))
        played.play(50, start_s=1)
        reader.take(await next_of(events))
        assert reader.kinds == ["snapshot", "snapshot"], "the fifty deltas were dropped"
        assert reader.document["sequence"] == 51
        played.play(2, start_s=51)
        for _ in range(2):
            reader.take(await next_of(events))
        assert reader.document == json.loads(played.response("snapshot").body)
        assert reader.kinds[2:] == ["delta", "delta"]
        await events.aclose()

    run(scenario())


def test_a_quiet_stream_beats_and_begins_with_the_first_sample() -> None:
    async def scenario() -> None:
        current: dict[str, Json] | None = None
        broadcaster = Broadcaster(lambda _: current, beat_s=0.01)
        events = broadcaster.events(SEES_ALL)
        assert await next_of(events) == b"retry: 2000\n\n"
        assert b"event: beat" in await next_of(events)
        current = {"sequence": 1}
        broadcaster.publish()
        while b"event: snapshot" not in (event := await next_of(events)):
            assert b"event: beat" in event
        assert b"event: beat" in await next_of(events)
        broadcaster.close()
        assert [event async for event in events] == []
        late = broadcaster.events(SEES_ALL)
        assert [event async for event in late] == [b"retry: 2000\n\n"], (
            "a viewer that connects during the stop is not kept"
        )

    run(scenario())


def test_names_with_line_breaks_stay_one_event() -> None:
    async def scenario() -> None:
        played, reader = Played(DemoNode(hostile=True)).play(1), EventReader()
        events = played.api.broadcaster.events(SEES_ALL)
        await next_of(events)
        whole = await next_of(events)
        assert whole.count(b"\n\n") == 1
        assert whole.count(b"\n") == 4
        reader.take(whole)
        users = reader.document["accounts"]["today"]["users"]
        assert set(users) == set(played.node.users)
        await events.aclose()

    run(scenario())


class Site:
    """A real server with the API of a played node on it."""

    def __init__(self, played: Played, limits: ConnectionLimits | None = None) -> None:
        self.played = played
        self.server = WebServer(
            FakeFaces(),
            [("127.0.0.1:0", None)],
            limits=limits,
            api=played.api,
        )

    async def __aenter__(self) -> "Site":
        await self.server.start()
        self.port = self.server.addresses[0].port
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop()


def test_a_stream_over_a_real_socket_ends_when_the_agent_stops() -> None:
    async def scenario() -> None:
        async with Site(Played().play(1)) as site, await Peer.connect(site.port) as peer:
            peer.request("/api/v1/stream")
            head = await peer.reader.readuntil(b"\r\n\r\n")
            assert b"200 OK" in head
            assert b"Content-Type: text/event-stream" in head
            assert b"Cache-Control: no-store" in head
            await until(lambda: viewers(site.played) == 1)
            site.played.play(1, start_s=1)
            text = b""
            while b"event: delta" not in text:
                text += await peer.reader.read(65536)
            stopping = asyncio.create_task(site.server.stop())
            while piece := await peer.reader.read(65536):
                text += piece
            assert text.endswith(b"0\r\n\r\n"), "a stop ends the stream properly"
            await stopping

    run(scenario())


def test_a_viewer_that_disconnects_or_stops_reading_is_removed() -> None:
    async def scenario() -> None:
        limits = ConnectionLimits(request_s=0.3, sweep_s=0.05)
        async with Site(Played(DemoNode(gpus=16, processes_a_gpu=20)).play(1), limits) as site:
            async with await Peer.connect(site.port) as peer:
                peer.request("/api/v1/stream")
                await until(lambda: viewers(site.played) == 1)
            await until(lambda: viewers(site.played) == 0 or _again(site))
            async with await Peer.connect(site.port, receive_buffer=4096) as deaf:
                deaf.request("/api/v1/stream")
                second = 2
                await until(lambda: viewers(site.played) == 1)
                while viewers(site.played):
                    site.played.play(1, start_s=second)
                    second += 1
                    await asyncio.sleep(0.01)
            assert site.server.stats().connections_refused["slow_reader"] == 1

    run(scenario())


def test_deaf_viewers_share_one_copy_of_the_document_and_the_longest_waiting_are_closed() -> None:
    size, count = 4_000_000, 30
    documents: dict[str, Json] = {"sequence": 1, "padding": "x" * size}

    async def scenario() -> None:
        played = Played().play(1)
        played.api.broadcaster._document_of = lambda _: documents
        limits = ConnectionLimits(unread_bytes=3 * size + 10_000, sweep_s=0.05)
        async with Site(played, limits) as site, AsyncExitStack() as stack:

            async def join(number: int) -> None:
                for _ in range(number):
                    deaf = await stack.enter_async_context(await Peer.connect(site.port, receive_buffer=4096))
                    deaf.request("/api/v1/stream")
                    await deaf.reader.readuntil(b"event: snapshot")

            tracemalloc.start()
            try:
                await join(count)
                assert tracemalloc.get_traced_memory()[0] < 4 * size
            finally:
                tracemalloc.stop()
            assert site.server.stats().connections_refused.get("unread_memory", 0) == 0
            for sequence in (2, 3, 4):
                # Viewers that join now get another document.
                documents["sequence"] = sequence
                played.api.broadcaster.publish()
                await join(1)
            await until(lambda: site.server.stats().connections_refused.get("unread_memory") == count)
            assert site.server.stats().connections_open == 3

    run(scenario())


def _again(site: Site) -> bool:
    """A closed connection is noticed at the next write."""
    now = site.played.now
    assert now is not None
    site.played.show(snapshot_of(site.played.node.readings(0.0), 0.0, sequence=now.sequence + 1))
    return False


def test_head_gets_the_headers_only() -> None:
    async def scenario() -> None:
        async with Site(Played().play(1)) as site, await Peer.connect(site.port) as peer:
            peer.request("/api/v1/stream", "HEAD", headers={"Connection": "close"})
            answer = await peer.reader.read()
            assert b"text/event-stream" in answer
            assert answer.endswith(b"\r\n\r\n")
            assert viewers(site.played) == 0

    run(scenario())
