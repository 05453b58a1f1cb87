"""Which peers may change the scheduler: one table, checked through the client socket and the control socket."""

import json
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from gpucommons.base.unix_listener import PeerCredentials
from gpucommons.scheduler.protocol.wire import MessageType
from gpucommons.scheduler.service.admins import Admins
from gpucommons.scheduler.service.control_socket import ControlSocket, control_path
from needs import needs_root
from scheduler.served import control, serving

OWN, OTHER, GROUP = 1500, 1501, 1


class Peer(NamedTuple):
    uid: int
    gid: int
    groups: tuple[int, ...] = ()


# The agent runs as root here, or as OWN in the pure test.
TABLE = [
    (Peer(0, 0), "", True),
    (Peer(OTHER, OTHER), "", False),
    (Peer(OTHER, 0), "", False),
    (Peer(OTHER, GROUP), "", False),
    (Peer(OTHER, OTHER, (GROUP,)), "", False),
    (Peer(OTHER, OTHER), "daemon", False),
    (Peer(OTHER, GROUP), "daemon", True),
    (Peer(OTHER, OTHER, (GROUP,)), "daemon", True),
    (Peer(OTHER, OTHER, (2, 3)), "daemon", False),
]
IDS = [f"{peer.uid}-{peer.gid}-{peer.groups}-{group or 'no group'}" for peer, group, _ in TABLE]


@pytest.mark.parametrize(("peer", "group", "allowed"), TABLE, ids=IDS)
def test_the_verdict(peer: Peer, group: str, allowed: bool) -> None:
    admins = Admins(OWN, GROUP if group else None)
    assert admins.include(PeerCredentials(1, peer.uid, peer.gid), frozenset(peer.groups)) is allowed
    assert admins.include(PeerCredentials(1, OWN, OTHER), frozenset())


def send_frame(path: str) -> None:
    control(path, MessageType.SCHED_OFF)


def send_command(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(control_path(path))
        connection.sendall(json.dumps({"command": "off"}).encode() + b"\n")
        connection.makefile("rb").readline()


@pytest.mark.parametrize("send", [send_frame, send_command])
@pytest.mark.parametrize(("peer", "group", "allowed"), TABLE, ids=IDS)
def test_both_sockets_apply_it(peer: Peer, group: str, allowed: bool, send: Callable[[str], None]) -> None:
    needs_root()
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        os.chmod(directory, 0o711)
        with serving(Path(directory), admin_group=group) as served:
            door = ControlSocket(served.server, str)
            served.run(door.start())
            assert as_peer(peer, lambda: send(served.path)) == 0
            reading = served.until(lambda reading: not reading.on or bool(reading.refusals))
            assert reading.on is not allowed
            assert reading.refusals.get("control_not_admin", 0) == (0 if allowed else 1)
            served.run(door.stop())


def test_every_user_may_read_the_status() -> None:
    needs_root()
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        os.chmod(directory, 0o711)
        with serving(Path(directory)) as served:
            door = ControlSocket(served.server, lambda reading: reading.mode)
            served.run(door.start())

            def read() -> None:
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.connect(control_path(served.path))
                    connection.sendall(b'{"command": "status"}\n')
                    assert json.loads(connection.makefile("rb").readline()) == {"ok": True, "answer": "auto"}

            assert as_peer(Peer(OTHER, OTHER), read) == 0
            assert not served.reading().refusals
            served.run(door.stop())


def as_peer(peer: Peer, function: Callable[[], None]) -> int:
    """Runs the function in a child process with these credentials; returns its exit status."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(peer.groups)
            os.setgid(peer.gid)
            os.setuid(peer.uid)
            function()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]
