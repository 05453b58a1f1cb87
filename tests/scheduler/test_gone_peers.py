"""Orders of programs that have ended before they are looked at: root's are carried out, a container's are not.

The scheduler's loop waits while the program runs, so that it is always gone.
"""

import errno
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from gpucommons.base import process_starts
from gpucommons.base.capabilities import CAP_PERFMON
from gpucommons.base.process_starts import ProcessStarts
from gpucommons.base.unix_listener import PeerCredentials
from gpucommons.scheduler.protocol.wire import CONTROL_ID, MessageType, Version, encode
from gpucommons.scheduler.service.gone_peers import GonePeers, PeerTrace, trace_of
from needs import needs_program, needs_root
from running import RunningAgent, running_agent
from scheduler.served import Served, serving
from tiers import in_long_tier
from users import as_user
from waiting import until, until_removed

ROOT = PeerCredentials(pid=1, uid=0, gid=0)
SEND = """
import socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[1])
peer.sendall(bytes.fromhex(sys.argv[2]))
if len(sys.argv) > 3:
    peer.recv(1)
"""


@contextmanager
def cgroup() -> Iterator[Path]:
    """A cgroup (v2) of this test alone."""
    needs_root()
    trees = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
    mounts = [tree for tree in trees if (tree / "cgroup.controllers").exists() and os.access(tree, os.W_OK)]
    if not mounts:
        pytest.skip("the tree of cgroup v2 cannot be written here")
    made = Path(tempfile.mkdtemp(prefix="gpucommons-test-", dir=mounts[0]))
    try:
        yield made
    finally:
        until_removed(made)


@contextmanager
def living(place: Path, *command: str) -> Iterator[int]:
    """A process in this cgroup."""
    process = subprocess.Popen([*command, "sleep", "60"], preexec_fn=lambda: enter(place))
    try:
        yield process.pid
    finally:
        (place / "cgroup.kill").write_text("1")
        process.wait(10)


def enter(place: Path) -> None:
    (place / "cgroup.procs").write_text("0")


def order(served: Served, place: Path, *command: str, version: Version = 2) -> bool:
    """Sends an order from this cgroup, and is gone before the scheduler looks; whether it was carried out."""
    frame = encode(version, MessageType.SCHED_OFF, id=CONTROL_ID).hex()
    before = served.reading().refusals.get("control_not_admin", 0)
    served.call(lambda: served.server.switch(True))
    whole = [*command, sys.executable, "-S", "-c", SEND, served.path, frame]
    served.call(lambda: subprocess.run(whole, check=True, preexec_fn=lambda: enter(place), timeout=20))
    reading = served.until(lambda reading: not reading.on or reading.refusals.get("control_not_admin", 0) > before)
    return not reading.on


@contextmanager
def served_here() -> Iterator[Served]:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        os.chmod(directory, 0o711)
        with serving(Path(directory)) as served:
            yield served


@pytest.fixture(name="recorded")
def _recorded() -> Iterator[Served]:
    """An agent that may record the starts of processes."""
    needs_root()
    with served_here() as served:
        if served.server._gone_peers.starts is None:
            pytest.skip("perf events are not permitted here")
        yield served


@pytest.fixture(name="served")
def _served() -> Iterator[Served]:
    """An agent that may not record the starts of processes."""
    with served_here() as served:
        served.call(lambda: served.server._gone_peers.close_record())
        if not knows_the_gone(served):
            pytest.skip("the kernel does not report the cgroup of a process that ended (from Linux 6.16 on)")
        yield served


def knows_the_gone(served: Served) -> bool:
    with cgroup() as place:
        order(served, place)
    return bool(served.server._gone_peers._verdicts)


APART = pytest.mark.parametrize("apart", [["--pid", "--fork"], ["--user", "--map-root-user"]], ids=["pid", "user"])


@pytest.mark.long
@APART
def test_with_the_record_every_order_from_other_namespaces_is_refused(recorded: Served, apart: list[str]) -> None:
    with cgroup() as place, living(place):
        for _ in range(10):
            assert not order(recorded, place, "unshare", *apart)
            assert order(recorded, place), "that of root in its shell is carried out, also after others"


def test_the_record_says_where_a_process_started(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_root()
    monkeypatch.setattr(process_starts, "_MIN_RING_BYTES", 16 << 10)
    monkeypatch.setattr(process_starts, "_MAX_RING_BYTES", 16 << 10)
    try:
        starts = ProcessStarts()
    except OSError as error:
        pytest.skip(f"perf events are not permitted here: {error.strerror}")
    with starts:
        assert starts.was_local(os.getpid()) is None, "it started before"
        assert starts.was_local(ended("true")) is True
        assert starts.was_local(ended("unshare", "--user", "true")) is False, "it went on in another namespace"
        entered = subprocess.run(
            ["unshare", "--pid", "--fork", "sh", "-c", "readlink /proc/self"], stdout=subprocess.PIPE
        )
        assert starts.was_local(int(entered.stdout)) is False
        first = ended("true")
        # A ring holds 16 KiB of records of 144 bytes: these are more than all of them together.
        for _ in range(4 * (os.cpu_count() or 1)):
            ended("sh", "-c", "for i in $(seq 40); do (:); done")
        assert starts.was_local(first) is None, "its record was overwritten"
        last = ended("true")
        assert starts.was_local(last) is True
        ended("true")
        assert starts.was_local(last) is True, "what was read is kept"


def ended(*command: str) -> int:
    process = subprocess.Popen(command)
    assert process.wait(20) == 0
    return process.pid


@pytest.mark.parametrize("version", [2, *in_long_tier(1)])
def test_an_order_of_root_is_carried_out(served: Served, version: Version) -> None:
    with cgroup() as place, living(place):
        for _ in range(10):
            assert order(served, place, version=version)


def test_one_of_a_container_is_refused(served: Served) -> None:
    with cgroup() as place:
        assert not order(served, place), "its cgroup has no process of this host"
        with living(place, "unshare", "--pid", "--fork"):
            until(lambda: len((place / "cgroup.procs").read_text().split()) == 2, "unshare has forked")
            assert not order(served, place), "its cgroup has a process of root in another pid namespace"
    with cgroup() as place, living(place):
        assert not order(served, place, "unshare", "--net"), "it is in another network namespace"
        assert order(served, place)


@APART
def test_root_of_other_namespaces_spoils_the_cgroup_for_those_after_it(served: Served, apart: list[str]) -> None:
    with cgroup() as place, living(place):
        frame = encode(2, MessageType.SCHED_OFF, id=CONTROL_ID).hex()
        command = ["unshare", *apart, sys.executable, "-S", "-c", SEND, served.path, frame, "wait"]
        before = served.reading().refusals.get("control_not_admin", 0)
        seen = subprocess.Popen(command, preexec_fn=lambda: enter(place))
        served.until(lambda reading: reading.refusals.get("control_not_admin", 0) > before)
        seen.kill()
        seen.wait(10)
        assert not order(served, place, "unshare", *apart)
        (place / "cgroup.kill").write_text("1")


def test_an_unexpected_error_refuses_one_order_and_no_other(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with cgroup() as place, living(place):
        judge = served.server._gone_peers

        def fail(*_: object) -> bool:
            monkeypatch.undo()
            raise RuntimeError("unexpected")

        monkeypatch.setattr(judge, "_is_ours", fail)
        judge._verdicts.clear()
        assert not order(served, place)
        assert order(served, place)


def test_what_is_not_known_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    (tmp_path / "cgroup.procs").write_text("1\n")
    top = tmp_path.stat().st_ino
    judge = GonePeers(None, (tmp_path,), Path("/proc"), lambda pid: True)
    assert judge.was_local_root(ROOT, PeerTrace(True, True, top), 0.0)
    for peer, trace in (
        (ROOT._replace(uid=1000), PeerTrace(True, True, top)),
        (ROOT, PeerTrace(False, True, top)),
        (ROOT, PeerTrace(True, False, top)),
        (ROOT, PeerTrace(True, True, None)),
        (ROOT, PeerTrace(True, True, top + 1)),
    ):
        assert not judge.was_local_root(peer, trace, 10.0)
    judge.note_foreign(PeerTrace(False, True, top), 20.0)
    assert not judge.was_local_root(ROOT, PeerTrace(True, True, top), 100.0)
    assert judge.was_local_root(ROOT, PeerTrace(True, True, top), 700.0)


class Refusing:
    """The socket of a peer whose pidfd the kernel does not give."""

    def __init__(self, code: int) -> None:
        self._code = code

    def getsockopt(self, *_: object) -> bytes:
        raise OSError(self._code, os.strerror(self._code))


@pytest.mark.parametrize(
    ("code", "lives", "has_ended"),
    [
        (errno.ESRCH, True, True),
        (errno.EINVAL, True, True),
        (errno.ENOPROTOOPT, True, False),
        (errno.ENOPROTOOPT, False, True),
        (errno.EMFILE, True, False),
    ],
)
def test_older_kernels_say_in_other_ways_that_a_peer_has_ended(code: int, lives: bool, has_ended: bool) -> None:
    """Linux 6.5 to 6.14 refuse with EINVAL; older ones have no SO_PEERPIDFD."""
    pid = os.getpid() if lives else ended("true")
    assert trace_of(cast(socket.socket, Refusing(code)), pid) == PeerTrace(has_ended)


UID = 61_501


@pytest.fixture(name="confined")
def _confined() -> Iterator[tuple[RunningAgent, str]]:
    """An agent with a user of its own and the capability of the systemd unit, and its socket."""
    needs_root()
    needs_program("setpriv")
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        os.chown(directory, UID, UID)
        os.chmod(directory, 0o711)
        path = f"{directory}/scheduler.sock"
        own = {"STATE_DIRECTORY": directory, "RUNTIME_DIRECTORY": directory, "GPUCOMMONS_SCHEDULER_SOCKET": path}
        off = {"GPUCOMMONS_SCHEDULER_XPUSHARE_SOCKET": "", "GPUCOMMONS_LEASES_ENABLED": "false"}
        prefix = as_user(UID, "perfmon")
        with running_agent("--scheduler", environment={**own, **off}, prefix=prefix) as agent:
            if any("are not recorded" in line for line in agent.lines):
                pytest.skip("perf events are not permitted here")
            yield agent, path


@pytest.mark.long
def test_the_confined_service_decides_by_the_record_and_keeps_no_right_to_it(
    confined: tuple[RunningAgent, str],
) -> None:
    agent, path = confined
    pid = agent.process.pid
    perfmon = 1 << CAP_PERFMON
    for task in Path(f"/proc/{pid}/task").iterdir():
        status = (task / "status").read_text()
        held = {line.split()[0]: int(line.split()[1], 16) for line in status.splitlines() if line.startswith("Cap")}
        assert not any(held[name] & perfmon for name in ("CapInh:", "CapPrm:", "CapEff:", "CapAmb:")), held
    frame = encode(2, MessageType.SCHED_OFF, id=CONTROL_ID).hex()
    send = [sys.executable, "-S", "-c", SEND, path, frame]

    def orders(*prefix: str) -> None:
        """They are gone before the agent looks."""
        os.kill(pid, signal.SIGSTOP)
        try:
            for _ in range(5):
                subprocess.run([*prefix, *send], check=True, timeout=20)
        finally:
            os.kill(pid, signal.SIGCONT)

    def obeyed() -> int:
        return sum("SCHED_OFF by uid 0" in line for line in agent.lines)

    for count in (1, 2):
        orders("unshare", "--user", "--map-root-user")
        orders("unshare", "--pid", "--fork")
        orders()
        until(lambda count=count: obeyed() >= 5 * count, "root's orders are carried out")  # type: ignore[misc]
    assert obeyed() == 10, "and no other"
