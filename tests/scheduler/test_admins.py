"""Which peers may change the scheduler: one table, checked through the client socket and the control socket."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from gpucommons.base.peers import Admins, is_local
from gpucommons.base.unix_listener import PeerCredentials
from gpucommons.config.runtime_directory import control_path
from gpucommons.faces.documents.turns import turn_pieces
from gpucommons.scheduler.protocol.wire import MessageType
from gpucommons.scheduler.service.control_socket import ControlSocket
from needs import needs_root
from scheduler.peer_child import Peer, as_peer
from scheduler.served import PRIVACY, control, serving
from waiting import until

OWN, OTHER, GROUP = 1500, 1501, 1


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
    assert admins.include(PeerCredentials(1, peer.uid, peer.gid), frozenset(peer.groups), True) is allowed
    assert admins.include(PeerCredentials(1, OWN, OTHER), frozenset(), True)
    assert not admins.include(PeerCredentials(1, peer.uid, peer.gid), frozenset(peer.groups), False)
    assert not admins.include(PeerCredentials(1, OWN, OTHER), frozenset(), False)


# Gives an order on each socket, then takes a turn.
ORDER = r"""
import json, socket, sys
from gpucommons.scheduler.protocol.wire import CONTROL_ID, MessageType, encode
from scheduler.served import Scripted
path, control = sys.argv[1:]
frames = socket.socket(socket.AF_UNIX)
frames.connect(path)
frames.sendall(encode(2, MessageType.SCHED_OFF, id=CONTROL_ID))
commands = socket.socket(socket.AF_UNIX)
commands.connect(control)
commands.sendall(json.dumps({"command": "off"}).encode() + b"\n")
print(json.loads(commands.makefile("rb").readline())["ok"])
Scripted(path).register().ask().granted()
"""


@pytest.mark.parametrize(
    ("place", "allowed"),
    [
        ([], True),
        pytest.param(["unshare", "--pid", "--fork"], False, marks=pytest.mark.long),
        pytest.param(["unshare", "--user", "--map-root-user"], False, marks=pytest.mark.long),
        (["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"], False),
    ],
    ids=["host", "pid namespace", "user namespace", "both"],
)
def test_root_of_another_namespace_may_register_and_not_order(place: list[str], allowed: bool) -> None:
    needs_root()
    with tempfile.TemporaryDirectory(dir="/tmp") as directory, serving(Path(directory)) as served:
        door = ControlSocket(served.server, turn_pieces, PRIVACY)
        served.run(door.start())
        done = subprocess.run(
            [*place, sys.executable, "-c", ORDER, served.path, control_path(served.path)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout == f"{allowed}\n", done.stderr
        assert done.returncode == 0, "it registers and takes a turn"
        reading = served.reading()
        assert reading.on is not allowed
        assert reading.refusals.get("control_not_admin", 0) == (0 if allowed else 2)
        served.run(door.stop())


def test_an_agent_without_rights_finds_namespaces_in_public_files() -> None:
    """Another user may not read the namespaces of root's processes: their pids and their uid map show the same."""
    needs_root()
    parent = os.getpid()
    inside = subprocess.Popen(["unshare", "--pid", "--fork", "sleep", "60"])
    try:
        children = Path(f"/proc/{inside.pid}/task/{inside.pid}/children")
        (child,) = until(lambda: children.read_text().split(), "unshare has forked")
        as_peer(Peer(OTHER, OTHER), partial(find_namespaces, parent, int(child)))
    finally:
        os.kill(int(child), signal.SIGKILL)
        inside.wait(10)


NAMED_AFTER_INPUT = (
    "import ctypes, sys; name = input(); ctypes.CDLL(None).prctl(15, b'\\rNSpid:\\t' + name.encode(), 0, 0, 0);"
    " print(flush=True); input()"
)


def test_a_process_cannot_name_itself_out_of_its_namespace() -> None:
    """The kernel writes the name of a process into the same file, with any letter but a newline."""
    needs_root()
    inside = subprocess.Popen(
        ["unshare", "--pid", "--fork", sys.executable, "-c", NAMED_AFTER_INPUT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert inside.stdin is not None
        assert inside.stdout is not None
        children = Path(f"/proc/{inside.pid}/task/{inside.pid}/children")
        (child,) = until(lambda: children.read_text().split(), "unshare has forked")
        inside.stdin.write(f"{child}\n")
        inside.stdin.flush()
        inside.stdout.readline()
        assert f"\rNSpid:\t{child}".encode() in Path(f"/proc/{child}/status").read_bytes()
        as_peer(Peer(OTHER, OTHER), partial(find_namespaces, os.getpid(), int(child)))
    finally:
        os.kill(int(child), signal.SIGKILL)
        inside.communicate()


def find_namespaces(local: int, inside: int) -> None:
    with pytest.raises(PermissionError):
        os.stat(f"/proc/{local}/ns/pid")
    assert is_local(local)
    assert not is_local(inside)
    assert not is_local(0)


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
            door = ControlSocket(served.server, turn_pieces, PRIVACY)
            served.run(door.start())

            def handled() -> None:
                served.until(lambda reading: not reading.on or bool(reading.refusals))

            as_peer(peer, partial(send, served.path), handled)
            reading = served.reading()
            assert reading.on is not allowed
            assert reading.refusals.get("control_not_admin", 0) == (0 if allowed else 1)
            served.run(door.stop())


def read_status(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(control_path(path))
        connection.sendall(b'{"command": "status"}\n')
        assert json.loads(connection.makefile("rb").readline()) == {"ok": True, "answer": "auto"}


def test_every_user_may_read_the_status() -> None:
    needs_root()
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        os.chmod(directory, 0o711)
        with serving(Path(directory)) as served:
            door = ControlSocket(served.server, lambda reading: iter([f'"{reading.mode}"']), PRIVACY)
            served.run(door.start())
            as_peer(Peer(OTHER, OTHER), partial(read_status, served.path))
            assert not served.reading().refusals
            served.run(door.stop())
