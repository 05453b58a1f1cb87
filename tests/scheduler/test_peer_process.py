"""Which owner the kernel reports for a process: with real user namespaces and real cgroups."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from gpucommons.base.peers import look_at, owner_of
from gpucommons.model.process_identity import ProcessDetails
from gpucommons.owners.process_identity import identity_of
from gpucommons.scheduler.protocol.wire import MessageType, encode
from gpucommons.sources.host.process_details import ProcessDetailsReader
from needs import needs_root
from scheduler.peer_child import Peer, as_peer
from scheduler.served import serving
from users import FIRST_SUBORDINATE, in_namespace
from waiting import until, until_removed

ALICE, AGENT = 1501, 1500
MADE_UP = "ab" * 32
_REGISTERING = """
import socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[1])
peer.sendall(bytes.fromhex(sys.argv[2]))
peer.recv(4096)
peer.recv(4096)
"""


@contextmanager
def joined(pid: int, uid: int) -> Iterator[int]:
    """A process with this uid of the user namespace of another; its pid."""
    command = ["nsenter", f"--user=/proc/{pid}/ns/user", f"--setuid={uid}", "sleep", "60"]
    process = subprocess.Popen(command)
    try:
        until(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(b"sleep"), "the program runs")
        yield process.pid
    finally:
        process.kill()
        process.wait(10)


def owner(pid: int) -> str:
    return owner_of(os.stat(f"/proc/{pid}").st_uid, look_at(pid))


def test_all_uids_of_a_user_namespace_are_the_user_that_made_it() -> None:
    needs_root()
    with in_namespace(20, ALICE) as made, joined(made, 3) as first, joined(made, 19) as second:
        assert os.stat(f"/proc/{first}").st_uid == FIRST_SUBORDINATE + 3
        assert os.stat(f"/proc/{second}").st_uid == FIRST_SUBORDINATE + 19
        assert owner(first) == owner(second) == f"uid:{ALICE}"
        details = ProcessDetailsReader(Path("/proc")).read(second)
        assert isinstance(details, ProcessDetails)
        assert identity_of(details).uid == ALICE, "its GPU time is that of the user, too"


def test_without_rights_they_are_one_owner_as_well() -> None:
    """The service has no capability: it may not open the namespaces of other users' processes."""
    needs_root()
    with in_namespace(20, ALICE) as made, joined(made, 3) as first, joined(made, 19) as second:
        as_peer(Peer(AGENT, AGENT), partial(find_owners, first, second))


def find_owners(first: int, second: int) -> None:
    with pytest.raises(PermissionError):
        os.stat(f"/proc/{first}/ns/user")
    assert owner(first) == owner(second)
    assert owner(first) != f"uid:{FIRST_SUBORDINATE + 3}"
    assert owner(os.getpid()) == f"uid:{AGENT}"


def test_a_namespace_that_root_made_is_an_owner_of_its_own() -> None:
    """systemd makes them for services (PrivateUsers): two services are not one owner."""
    needs_root()
    with in_namespace(20, 0) as one, in_namespace(20, 0) as other, joined(one, 5) as first, joined(one, 6) as second:
        assert owner(first) == owner(second) == owner(one)
        assert owner(one) != owner(other)
        assert owner(one).startswith("userns:")


@contextmanager
def in_cgroup(*names: str, theirs: bool) -> Iterator[int]:
    """A process of ALICE in a cgroup below one that is ALICE's own, or root's."""
    mounts = [
        path for path in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")) if (path / "cgroup.procs").exists()
    ]
    if not mounts or not os.access(mounts[0], os.W_OK):
        pytest.skip("the cgroup tree cannot be written here")
    top = Path(tempfile.mkdtemp(prefix="gpucommons-test-", dir=mounts[0]))
    made = [top]
    process = subprocess.Popen(["setpriv", f"--reuid={ALICE}", "--clear-groups", "sleep", "60"])
    try:
        for name in names:
            made.append(made[-1] / name)
            made[-1].mkdir()
        os.chmod(top, 0o755)
        if theirs:
            for directory in made:
                os.chown(directory, ALICE, ALICE)
        (made[-1] / "cgroup.procs").write_text(str(process.pid))
        until(lambda: os.stat(f"/proc/{process.pid}").st_uid == ALICE, "it runs as the user")
        yield process.pid
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        for directory in reversed(made):
            until_removed(directory)


def test_a_container_counts_where_root_has_named_it() -> None:
    needs_root()
    with in_cgroup("docker", MADE_UP, theirs=False) as pid:
        assert owner(pid) == f"container:{MADE_UP}"
    with in_cgroup("docker", MADE_UP, theirs=True) as pid:
        assert owner(pid) == f"uid:{ALICE}"
        details = ProcessDetailsReader(Path("/proc")).read(pid)
        assert isinstance(details, ProcessDetails)
        assert identity_of(details).cgroup.container_id is None
    with in_cgroup("user@7.service", MADE_UP, theirs=True) as pid:
        assert owner(pid) == f"uid:{ALICE}"
        details = ProcessDetailsReader(Path("/proc")).read(pid)
        assert isinstance(details, ProcessDetails)
        assert identity_of(details).cgroup.uid is None, "a user may not name the manager of another"


def test_the_connections_of_a_namespace_count_for_its_maker() -> None:
    needs_root()
    frame = encode(2, MessageType.REGISTER, pod="pod", namespace="default").hex()
    with tempfile.TemporaryDirectory(dir="/tmp") as directory, in_namespace(20, ALICE) as made:
        os.chmod(directory, 0o711)
        with serving(Path(directory)) as served:
            enter = ["nsenter", f"--user=/proc/{made}/ns/user"]
            command = ["/usr/bin/env", "python3", "-c", _REGISTERING, served.path, frame]
            peers = [subprocess.Popen([*enter, f"--setuid={uid}", *command]) for uid in (1, 2)]
            try:
                served.until(lambda reading: len(reading.clients) == len(peers))
                assert {client.owner for client in served.server.policy.clients.values()} == {f"uid:{ALICE}"}
            finally:
                for peer in peers:
                    peer.kill()
                    peer.wait(10)
