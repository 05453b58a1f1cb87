"""The pauser process, spoken to by hand: how it starts, ends, and meets agents that misbehave."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest

from fakes.cuda.control import FakeCuda, FakeProgram
from gpucommons.pauser.backend import Code, State
from gpucommons.pauser.log import Log
from gpucommons.pauser.pauses import Pauses
from gpucommons.pauser.protocol import Hello, Operation, PauserRequest, Reply, decode_message
from gpucommons.pauser.record import Entry, PauseRecord, Stage
from gpucommons.pauser.release import key_of
from gpucommons.pauser.server import Server, ServerSettings, _Session
from needs import needs_program, needs_root
from pauser.rig import Connection, child, code_of, environment, kill_with_watchdog, service
from tiers import in_long_tier
from waiting import until


def lock(number: int, program: FakeProgram, timeout_ms: int = 500) -> PauserRequest:
    return PauserRequest(number, Operation.LOCK, program.key, timeout_ms)


def connect(path: Path) -> Connection:
    def attempt() -> socket.socket | None:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.connect(str(path))
        except OSError:
            connected.close()
            return None
        return connected

    return Connection(until(attempt, "the pauser listens"))


@pytest.mark.long
@pytest.mark.parametrize(
    "garbage",
    [b"\n", b"{}\n", b"\x00\xff" * 40 + b"\n", b"x" * 5000, b'{"number":1,"operation":"lock","pid":-1}\n', b"[1,2"],
    ids=["empty", "object", "binary", "endless", "negative", "half"],
)
def test_garbage_ends_the_connection_and_everything_runs(cuda: FakeCuda, record: Path, garbage: bytes) -> None:
    program = cuda.start()
    with child(cuda, record) as (process, agent):
        agent.hello()
        assert agent.ask(lock(1, program)).failure is None
        agent.socket.sendall(garbage)
        agent.socket.shutdown(socket.SHUT_WR)
        program.runs()
        assert process.wait(15) == 0


def test_sigterm_resumes_everything_and_ends(cuda: FakeCuda, record: Path) -> None:
    programs = [cuda.start() for _ in range(3)]
    with child(cuda, record) as (process, agent):
        agent.hello()
        for number, program in enumerate(programs, 1):
            assert agent.ask(lock(number, program)).failure is None
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGHUP)
        assert agent.ask(PauserRequest(9, Operation.STATE, programs[0].key)).state is State.LOCKED
        process.terminate()
        assert process.wait(15) == 0
    for program in programs:
        program.runs()
    assert list(record.iterdir()) == []


def test_a_lock_under_way_when_the_agent_goes_is_undone(cuda: FakeCuda, record: Path) -> None:
    program = cuda.start()
    program.drain_in(0.5)
    with child(cuda, record) as (process, agent):
        agent.hello()
        agent.send(lock(1, program, timeout_ms=2000))
        until(lambda: program.is_asked, "the driver is asked")
        agent.socket.close()
        assert process.wait(15) == 0
    assert not program.is_asked
    program.runs()
    assert list(record.iterdir()) == []


def test_an_agent_that_does_not_read_is_disconnected(cuda: FakeCuda, record: Path) -> None:
    program = cuda.start()
    with child(cuda, record) as (process, agent):
        agent.hello()
        assert agent.ask(lock(1, program)).failure is None
        with suppress(OSError):
            while True:
                agent.send(PauserRequest(2, Operation.LIST))
        program.runs()
        assert process.wait(15) == 0


@pytest.mark.long
def test_a_child_whose_parent_is_gone_ends_although_its_socket_is_open(cuda: FakeCuda, record: Path) -> None:
    # A process that the agent forked may have kept the socket: no end of file comes.
    program = cuda.start()
    with child(cuda, record, "--parent", str(os.getpid())) as (_, agent):
        agent.hello()
        assert agent.ask(lock(1, program)).failure is None
        assert program.stands_still(1.2), "the parent is there"
    with child(cuda, record, "--parent", "1") as (process, agent):
        agent.hello()
        assert process.wait(15) == 0
    program.runs()


def test_leftovers_of_the_record_are_resumed_before_the_hello(cuda: FakeCuda, record: Path) -> None:
    program, torn, runs = cuda.start(), cuda.start(), cuda.start()
    with child(cuda, record) as (process, agent):
        agent.hello()
        for number, one in enumerate((program, torn), 1):
            assert agent.ask(lock(number, one)).failure is None
        kill_with_watchdog(process)
    assert program.state is torn.state is State.LOCKED
    (record / str(torn.pid)).write_bytes(b'{"pid": 12, "st')
    (record / str(runs.pid)).write_bytes(b"\x00" * 384)
    (record / "999999999").write_text("no pid is that large")
    (record / "garbage").write_text("{}")
    (record / str(os.getpid())).mkdir()
    with child(cuda, record) as (_, agent):
        assert agent.hello().resumed == 4
        for one in (program, torn):
            one.runs()
        (record / str(os.getpid())).rmdir()
    assert sorted(path.name for path in record.iterdir()) == ["999999999", "garbage"]


@pytest.mark.long
def test_a_lock_that_is_carried_out_after_its_caller_died_is_undone(cuda: FakeCuda, record: Path) -> None:
    program = cuda.start()
    program.drain_in(0.6)
    with child(cuda, record) as (process, agent):
        agent.hello()
        agent.send(lock(1, program, timeout_ms=1000))
        until(lambda: program.is_asked, "the driver is asked")
        kill_with_watchdog(process)
    assert program.state is State.RUNNING, "its work still drains"
    with child(cuda, record) as (_, agent):
        agent.hello()
        assert program.state is State.RUNNING
        assert not program.is_asked, "the lock came and was undone before the hello"
        assert list(record.iterdir()) == []
    program.runs()


@pytest.mark.long
def test_an_entry_of_another_process_is_dropped_and_that_process_left_alone(cuda: FakeCuda, record: Path) -> None:
    program = cuda.start()
    with child(cuda, record.with_name("other")) as (_, other):
        other.hello()
        assert other.ask(lock(1, program)).failure is None
        opened = PauseRecord.open(record)
        opened.write(Entry(program.pid, program.key.start_ticks - 1, Stage.LOCKED))
        opened.close()
        with child(cuda, record) as (_, agent):
            agent.hello()
            assert program.state is State.LOCKED
            assert list(record.iterdir()) == []
    program.runs()


@pytest.mark.long
def test_a_second_pauser_does_not_take_the_record_of_the_first(cuda: FakeCuda, record: Path) -> None:
    program = cuda.start()
    with child(cuda, record) as (_, agent):
        agent.hello()
        assert agent.ask(lock(1, program)).failure is None
        with child(cuda, record) as (_, second):
            assert "another pauser still uses" in second.hello().unavailable
            assert program.state is State.RUNNING, "what a pauser that may hang has paused is resumed"
            assert [path.name for path in record.iterdir()] == [str(program.pid)], "the record is left to its owner"
        assert agent.ask(PauserRequest(2, Operation.UNLOCK, program.key)).failure is None


def test_a_record_that_belongs_to_another_user_is_refused(cuda: FakeCuda, record: Path) -> None:
    needs_root()
    record.mkdir(parents=True)
    os.chown(record, 65534, 65534)
    with child(cuda, record) as (_, agent):
        assert "belongs to uid 65534" in agent.hello().unavailable


def test_a_record_that_becomes_unwritable_refuses_the_lock(cuda: FakeCuda, record: Path) -> None:
    program = cuda.start()
    with child(cuda, record) as (_, agent):
        agent.hello()
        record.rmdir()
        failed = agent.ask(lock(1, program)).failure
        assert failed is not None
        assert failed.code == Code.RECORD
        assert program.state is State.RUNNING


def test_requests_for_a_program_whose_call_hangs_are_refused_at_once(cuda: FakeCuda, record: Path) -> None:
    program, other = cuda.start(), cuda.start()
    cuda.say(f"hang lock {program.pid}")
    with child(cuda, record) as (_, agent):
        agent.hello()
        for number in range(1, 80):
            agent.send(lock(number, program, timeout_ms=5000))
        agent.send(lock(100, other))
        # Each has a thread: the replies come in any order, and which of the 79 is inside the driver is open.
        codes: dict[int, int] = {}
        while 100 not in codes or len(codes) < 79:
            reply = agent.reply()
            codes[reply.number] = code_of(reply)
        assert codes.pop(100) == 0
        assert list(codes.values()).count(Code.BUSY) == 78
        assert other.state is State.LOCKED
        cuda.unsay("hang")
    program.runs()
    other.runs()


# -- listening


def test_a_service_serves_one_agent_after_another(cuda: FakeCuda, record: Path, tmp_path: Path) -> None:
    program, path = cuda.start(), tmp_path / "pauser.sock"
    with service(cuda, record, path) as process:
        first = connect(path)
        assert first.hello().unavailable == ""
        assert first.ask(lock(1, program)).failure is None
        second = connect(path)
        assert "another agent" in second.hello().unavailable
        assert second.next() is None
        assert program.state is State.LOCKED
        first.socket.close()
        program.runs()
        third = connect(path)
        assert third.hello().unavailable == ""
        assert third.ask(lock(1, program)).failure is None
        process.terminate()
        assert process.wait(15) == 0
    program.runs()
    assert not path.exists()


def test_a_second_service_leaves_the_socket_of_the_first(cuda: FakeCuda, record: Path, tmp_path: Path) -> None:
    path = tmp_path / "pauser.sock"
    with service(cuda, record, path):
        connect(path).hello()
        with service(cuda, record.with_name("other"), path) as second:
            assert second.wait(15) == 1
            assert second.stderr is not None
            assert "is another pauser running?" in second.stderr.read()
        until(lambda: connect(path).hello().unavailable == "", "the first serves the next agent")


@pytest.mark.long
def test_a_service_replaces_the_socket_of_a_dead_one(cuda: FakeCuda, record: Path, tmp_path: Path) -> None:
    path = tmp_path / "pauser.sock"
    with service(cuda, record, path) as first:
        connect(path).hello()
        first.kill()
        first.wait()
    assert path.exists()
    with service(cuda, record, path):
        assert connect(path).hello().unavailable == ""


AS_USER = """
    import os, socket, sys
    os.setgid(65534); os.setuid(65534)
    with socket.socket(socket.AF_UNIX) as connected:
        connected.connect(sys.argv[1])
        sys.stdout.write(connected.makefile().readline())
"""


def hello_as_nobody(path: Path) -> Hello:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(AS_USER), str(path)], capture_output=True, timeout=30, check=True
    )
    found = decode_message(done.stdout)
    assert isinstance(found, Hello)
    return found


@pytest.mark.parametrize("user", ["65534", *in_long_tier("nobody")])
def test_only_root_and_the_agents_user_are_served(cuda: FakeCuda, record: Path, user: str) -> None:
    needs_root()
    path = cuda.directory / "pauser.sock"
    with service(cuda, record, path) as process:
        connect(path).hello()
        assert hello_as_nobody(path).unavailable == "uid 65534 may not use this pauser"
        process.terminate()
        process.wait(15)
    with service(cuda, record, path, "--allow-user", user) as process:
        until(path.exists, "it listens")
        connect(path).socket.close()
        assert until(lambda: hello_as_nobody(path).unavailable == "", "the first has been let go")
        process.terminate()
        process.wait(15)


AS_NOBODY = """
    import locale, os, shutil
    import gpucommons.pauser.__main__ as pauser
    os.setgid(65534); os.setuid(65534)
    pauser.main()
"""


def test_another_users_program_needs_root(cuda: FakeCuda) -> None:
    needs_root()
    theirs, own = cuda.start(), cuda.start(uid=65534)
    with child(cuda, cuda.directory / "root" / "paused") as (_, agent):
        agent.hello()
        assert agent.ask(lock(1, own)).failure is None
    own.runs()
    (cuda.directory / str(theirs.pid)).chmod(0o666)
    with child(cuda, cuda.directory / "nobody" / "paused", program=textwrap.dedent(AS_NOBODY)) as (_, agent):
        agent.hello()
        failed = agent.ask(lock(1, theirs)).failure
        assert failed is not None
        assert failed.code == Code.OPERATING_SYSTEM
        assert agent.ask(lock(2, own)).failure is None
    own.runs()
    theirs.runs()


def test_the_pauser_does_not_read_modules_from_where_it_is_started(
    cuda: FakeCuda, record: Path, tmp_path: Path
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('hijacked')")
    ours, theirs = socket.socketpair()
    with theirs, ours:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gpucommons.pauser", "--record", str(record), "--fd", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            env=environment(cuda),
            cwd=tmp_path,
        )
        Connection(ours).hello()
        ours.close()
    assert process.wait(15) == 0


@pytest.mark.long
def test_a_pid_that_was_reused_is_another_program(cuda: FakeCuda, record: Path) -> None:
    """For real, in a pid namespace: neither locked for the program that had the pid, nor resumed in its name."""
    needs_program("unshare")
    needs_root()
    script = [sys.executable, str(Path(__file__).with_name("reused.py"))]
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *script]
        + [str(path) for path in (cuda.library, cuda.program, cuda.directory, record)],
        env=environment(cuda),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    first, second = found["pids"]
    assert first == second, "the kernel gave the pid again"
    assert found["codes"] == [Code.GONE, 0]
    assert found["meanwhile"] == ["LOCKED"]


def test_a_call_that_ends_in_an_unexpected_error_has_an_answer(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent waits up to ten minutes for the end of a move."""
    key = key_of(os.getpid())
    assert key is not None

    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Pauses, "checkpoint", fail)
    server = Server(ServerSettings(record, backend="freeze"), Log("pauser"))
    server.open()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        server._carry_out(_Session(1, theirs), PauserRequest(1, Operation.CHECKPOINT, key))
        reply = Connection(ours).next()
    assert isinstance(reply, Reply)
    assert code_of(reply) == Code.UNAVAILABLE
    assert reply.failure is not None
    assert "a defect" in reply.failure.meaning
