"""Responses that peers do not read take a limited amount of memory, and each body is there once."""

import asyncio
import tracemalloc
from contextlib import AsyncExitStack

from hypothesis import given
from hypothesis import strategies as st

from fakes.faces import FakeFaces
from gpucommons.faces.web.http.connections import ConnectionLimits, UnreadBodies
from peers import Peer, fetch, port_of, run, serving, until

SIZE = 4_000_000


class Connection:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def abort(self, reason: str) -> None:
        self.reasons.append(reason)


def test_a_shared_body_counts_once() -> None:
    unread, body = UnreadBodies(150), bytes(100)
    readers = [Connection() for _ in range(5)]
    for reader in readers:
        unread.hold(reader, body)
    assert unread.total_bytes == 100
    for reader in readers:
        unread.release(reader)
    assert unread.total_bytes == 0
    assert not any(reader.reasons for reader in readers)


def test_above_the_limit_those_that_read_for_longest_are_closed() -> None:
    unread = UnreadBodies(250)
    readers = [Connection() for _ in range(5)]
    for reader in readers:
        unread.hold(reader, bytes(bytearray(100)))
    assert [reader.reasons for reader in readers] == [["unread_memory"]] * 3 + [[]] * 2
    assert unread.total_bytes == 200


def test_a_body_larger_than_the_limit_is_still_sent() -> None:
    unread, reader = UnreadBodies(10), Connection()
    unread.hold(reader, bytes(100))
    assert reader.reasons == []


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.integers(0, 3)), max_size=60))
def test_the_total_is_always_that_of_the_bodies_that_are_held(steps: list[tuple[bool, int, int]]) -> None:
    unread = UnreadBodies(250)
    bodies = [bytes(bytearray(size)) for size in (0, 60, 100, 120)]
    readers = [Connection() for _ in range(5)]
    held: dict[int, int] = {}
    for begins, reader, body in steps:
        aborted = [len(one.reasons) for one in readers]
        held.pop(reader, None)
        if begins:
            unread.hold(readers[reader], bodies[body])
            held[reader] = body
        else:
            unread.release(readers[reader])
        for number, one in enumerate(readers):
            if len(one.reasons) > aborted[number]:
                del held[number]
        assert unread.total_bytes == sum(len(bodies[each]) for each in set(held.values()))
        assert unread.total_bytes <= 250


def test_slow_readers_of_one_body_share_it_and_those_of_old_bodies_are_closed() -> None:
    async def check() -> None:
        faces = FakeFaces(padding=SIZE)
        limits = ConnectionLimits(unread_bytes=3 * SIZE + 1000)
        async with serving(faces, limits=limits) as server, AsyncExitStack() as stack:

            async def read_slowly(number: int) -> None:
                for _ in range(number):
                    peer = await stack.enter_async_context(await Peer.connect(port_of(server), receive_buffer=2048))
                    peer.request("/metrics")
                    await peer.reader.readuntil(b"\r\n\r\n")

            tracemalloc.start()
            try:
                await read_slowly(24)
                assert tracemalloc.get_traced_memory()[0] < 3 * SIZE
            finally:
                tracemalloc.stop()
            for _ in range(3):
                faces.forget()
                await read_slowly(1)
            await until(lambda: server.stats().connections_refused == {"unread_memory": 24})
            faces.forget()
            assert (await fetch(port_of(server), "/metrics")).status == 200
            await asyncio.sleep(0)
            assert server.stats().connections_open <= 4

    run(check())
