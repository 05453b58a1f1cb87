"""Limits for each user and container, on the client socket and on the control socket."""

import json
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpucommons.base.peers import ConnectionCaps, PeerAccount, PeerProcess, RequestRate, Slots, accounts_of, owner_of
from gpucommons.base.user_namespace import UserNamespace
from gpucommons.config.runtime_directory import control_path
from gpucommons.faces.documents.turns import turn_pieces, turns_of
from gpucommons.model.sharing import SharingReading
from gpucommons.scheduler.policy.state import Mode
from gpucommons.scheduler.protocol.wire import MessageType
from gpucommons.scheduler.service.control_socket import ControlSocket, Document
from needs import needs_root
from scheduler.peer_child import Peer, as_peer
from scheduler.served import PRIVACY, Scripted, Served, control, serving
from waiting import until

USER = Peer(1501, 1501)
BOX = "b" * 64


ALICES = UserNamespace(1000, "4026532")
ROOTS = UserNamespace(0, "4026533")


@pytest.mark.parametrize(
    ("uid", "process", "accounts", "owner"),
    [
        (0, PeerProcess(True), (), "uid:0"),
        (0, PeerProcess(False), (("uid", "0"),), "uid:0"),
        (0, PeerProcess(True, BOX), (("container", BOX),), f"container:{BOX}"),
        (0, PeerProcess(False, BOX), (("container", BOX),), f"container:{BOX}"),
        (7, PeerProcess(True), (("uid", "7"),), "uid:7"),
        (7, PeerProcess(False, BOX), (("uid", "7"), ("container", BOX)), f"container:{BOX}"),
        (100_005, PeerProcess(False, None, ALICES), (("uid", "1000"),), "uid:1000"),
        (100_006, PeerProcess(False, BOX, ALICES), (("uid", "1000"), ("container", BOX)), f"container:{BOX}"),
        (998, PeerProcess(False, None, ROOTS), (("uid", "userns:4026533"),), "userns:4026533"),
    ],
)
def test_which_budget_is_charged(uid: int, process: PeerProcess, accounts: tuple[object], owner: str) -> None:
    assert accounts_of(uid, process) == accounts
    assert owner_of(uid, process) == owner


def test_the_last_slots_are_for_new_owners_and_root() -> None:
    slots = Slots(160)
    assert [slots.takes(count, 500, False) for count in (150, 151)] == [True, False]
    assert [slots.takes(count, 4, False) for count in (155, 156)] == [True, False]
    assert [slots.takes(count, 500, True) for count in (160, 161)] == [True, False]
    assert [slots.registers(count, 500) for count in (150, 151)] == [True, False]
    assert [slots.registers(count, 1) for count in (155, 156)] == [True, False]


def test_a_cap_counts_what_is_open() -> None:
    caps = ConnectionCaps({"uid": 2, "container": 1})
    user, box = (PeerAccount("uid", "7"),), (PeerAccount("uid", "8"), PeerAccount("container", BOX))
    assert [caps.add(user), caps.add(user), caps.add(user)] == ["", "", "uid"]
    caps.remove(user)
    caps.remove(user)
    assert caps.add(user) == ""
    assert [caps.add(box), caps.add(box)] == ["", "container"]
    for accounts in (user, user, box, box):
        caps.remove(accounts)
    assert not caps._open, "those that are gone take no memory"


def test_a_rate_is_refilled() -> None:
    rate = RequestRate(per_s=2.0, burst=3.0)
    user, other = (PeerAccount("uid", "7"),), (PeerAccount("uid", "8"),)
    assert [rate.take(user, 0.0) for _ in range(4)] == [True, True, True, False]
    assert rate.take(other, 0.0)
    assert [rate.take(user, 0.5) for _ in range(2)] == [True, False]
    assert all(rate.take((), 0.5) for _ in range(100)), "no account, no limit"


def test_accounts_that_ask_no_more_are_forgotten() -> None:
    rate = RequestRate(per_s=2.0, burst=3.0)
    for uid in range(5000):
        rate.take((PeerAccount("uid", str(uid)),), 0.0)
    assert len(rate._left) == 5000
    assert [rate.take((PeerAccount("uid", "7"),), 0.0) for _ in range(2)] == [True, True]
    rate.take((PeerAccount("uid", "5001"),), 1.0)
    assert rate._left.keys() == {PeerAccount("uid", "7"), PeerAccount("uid", "5001")}, (
        "the others have their burst again"
    )


@contextmanager
def served_to_all(document: Document = turn_pieces, **settings: object) -> Iterator[Served]:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        os.chmod(directory, 0o711)
        with serving(Path(directory), **settings) as served:  # type: ignore[arg-type]
            door = ControlSocket(served.server, document, PRIVACY)
            served.run(door.start())
            yield served
            served.run(door.stop())


def request(path: str, command: str = "status") -> Any:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(control_path(path))
        connection.sendall(json.dumps({"command": command}).encode() + b"\n")
        return json.loads(connection.makefile("rb").readline())


def registered(path: str) -> Scripted | None:
    try:
        return Scripted(path).register()
    except (AssertionError, OSError):
        return None


def exceed_three(path: str) -> list[Scripted]:
    clients = [Scripted(path).register() for _ in range(3)]
    assert Scripted(path).closed()
    clients.pop().close()
    until(lambda: registered(path), "there is room for another")
    clients[0].ask().granted()
    return clients


def test_one_user_has_a_limited_number_of_connections() -> None:
    needs_root()
    with served_to_all(max_connections_per_uid=3) as served:

        def others() -> None:
            served.until(lambda reading: reading.disconnects.get("too_many_of_uid", 0) > 0)
            clients = [Scripted(served.path).register().ask() for _ in range(5)]
            assert all(client.granted() for client in clients), "root has no limit"

        as_peer(USER, partial(exceed_three, served.path), others)


def crowd(path: str) -> list[Scripted]:
    """Registers until it is refused, and then holds as many silent connections as it gets."""
    clients = [one for _ in range(100) if (one := registered(path))]
    assert len(clients) == 76, "of 80 slots, 2 are for root and 2 for new owners"
    clients[0].ask().granted()
    return clients + stay_silent(path)


def stay_silent(path: str) -> list[Scripted]:
    return [Scripted(path) for _ in range(60)]


def register(path: str) -> Scripted:
    return Scripted(path).register()


def test_a_full_table_keeps_out_neither_root_nor_a_new_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_root()
    monkeypatch.setattr("gpucommons.scheduler.service.server.MAX_CLIENTS", 80)
    with served_to_all(max_connections_per_uid=4096) as served:

        def others() -> None:
            served.until(lambda reading: sum(row.standing == "running" for row in reading.clients) == 1)
            control(served.path, MessageType.SCHED_OFF)
            served.until(lambda reading: not reading.on)
            assert request(served.path)["ok"], "the status is answered"
            assert request(served.path, "on")["ok"]
            newcomer = Scripted(served.path)
            as_peer(Peer(1501, 1501), partial(stay_silent, served.path))
            newcomer.register("new").ask().granted()
            as_peer(Peer(1502, 1502), partial(register, served.path))
            newcomer.close()

        as_peer(Peer(1501, 1501), partial(crowd, served.path), others)


def ask_often(path: str) -> None:
    answers = [request(path) for _ in range(200)]
    assert answers[0]["ok"]
    refused = [answer for answer in answers if not answer["ok"]]
    assert refused[0]["error"] == "too many requests: at most 10 a second for each user"


def test_a_user_that_asks_too_often_is_refused_and_root_is_not() -> None:
    needs_root()
    with served_to_all() as served:
        as_peer(USER, partial(ask_often, served.path))
        assert all(request(served.path)["ok"] for _ in range(50))


def test_a_reply_is_made_once_for_each_change() -> None:
    needs_root()
    made = []

    def document(reading: SharingReading) -> Iterator[str]:
        made.append(reading.on)
        yield from turn_pieces(reading)

    with served_to_all(document) as served:
        server = served.server
        client = Scripted(served.path).register("one").ask().granted()
        first = request(served.path)
        assert first["answer"]["clients"][client.id]["pod"] == "one"
        for _ in range(20):
            request(served.path)
        assert len(made) < 20
        for on in (False, True):
            served.call(lambda on=on: server.switch(on))  # type: ignore[misc]
            assert request(served.path)["answer"]["on"] is on, "never older than an order"


def test_turns_are_handed_over_while_a_reply_is_made() -> None:
    handed_over = threading.Event()
    begun = threading.Event()

    def document(_: SharingReading) -> Iterator[str]:
        """Ends only when another client got the lock."""
        begun.set()
        while not handed_over.is_set():
            yield " "
        yield "{}"

    with served_to_all(document, mode=Mode.SERIAL) as served:
        first, second = Scripted(served.path).register().ask().granted(), Scripted(served.path).register().ask()
        answers: list[Any] = []
        asking = threading.Thread(target=lambda: answers.append(request(served.path)))
        asking.start()
        assert begun.wait(20)
        first.release()
        second.granted()
        handed_over.set()
        asking.join(20)
        assert answers == [{"ok": True, "answer": {}}]


def test_the_pieces_are_the_document(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        clients = [Scripted(served.path).register(f'po"d-{number}').ask() for number in range(3)]
        reading = served.until(lambda reading: len(reading.gpus[0].running) == len(clients))
        assert json.loads("".join(turn_pieces(reading))) == json.loads(json.dumps(turns_of(reading, {})))
