"""The names of Unix peers where the name services do not answer, or know nothing."""

import asyncio
import pwd
import socket
import threading

import pytest

from gpucommons.faces.web.http import listeners
from gpucommons.faces.web.http.listeners import Peers
from peers import run, until


class NameService:
    """Answers when it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[int] = []
        self.released = threading.Event()
        monkeypatch.setattr(pwd, "getpwuid", self.look_up)
        monkeypatch.setattr(listeners, "_LOOKUP_S", 0.05)

    def look_up(self, uid: int) -> pwd.struct_passwd:
        self.asked.append(uid)
        self.released.wait(60)
        if uid >= 5000:
            raise KeyError(uid)
        return pwd.struct_passwd((f"user{uid}", "x", uid, uid, "", "/", "/bin/sh"))


def test_a_name_service_that_hangs_gets_one_request_for_a_uid_and_few_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    names = NameService(monkeypatch)

    async def check() -> None:
        peers = Peers(lambda: None)
        before = threading.active_count()
        found = await asyncio.gather(*(peers._name(uid) for uid in range(100) for _ in range(20)))
        assert found == [None] * 2000
        found = await asyncio.gather(*(peers._name(0) for _ in range(200)))
        assert found == [None] * 200
        assert len(names.asked) == len(set(names.asked)) <= 8
        assert threading.active_count() - before <= 8
        names.released.set()
        await until(lambda: not peers._lookups)
        assert await peers._name(0) == "user0", "the answer that came late is used"

    run(check())


def test_a_uid_without_a_name_is_not_looked_up_for_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    names = NameService(monkeypatch)
    names.released.set()
    now_s = 1000.0
    monkeypatch.setattr("gpucommons.faces.web.http.listeners.time.monotonic", lambda: now_s)

    async def check() -> None:
        nonlocal now_s
        peers = Peers(lambda: None)
        assert [await peers._name(5000) for _ in range(3)] == [None] * 3
        assert names.asked == [5000]
        now_s += 61
        assert await peers._name(5000) is None
        assert names.asked == [5000, 5000]

    run(check())


def test_the_origin_of_a_unix_peer_is_its_owner() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert listeners.origin_of(ours, "").startswith(("uid:", "container:"))
