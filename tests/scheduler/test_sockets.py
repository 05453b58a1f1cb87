"""Two sockets, one scheduler: nvshare's clients and XPUShare's take turns in the same queue."""

import logging
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from gpucommons.base.unix_listener import ListenError
from gpucommons.scheduler.policy.state import Mode
from gpucommons.scheduler.protocol.wire import MessageType
from scheduler.peer_child import Peer, as_peer
from scheduler.served import Scripted, Served, control, serving

T = MessageType
NOBODY = 65534


@contextmanager
def serving_both(tmp_path: Path, **settings: object) -> Iterator[tuple[Served, str]]:
    second = str(tmp_path / "xpushare" / "s.sock")
    with serving(tmp_path, xpushare_socket=second, **settings) as served:  # type: ignore[arg-type]
        yield served, second


def test_clients_of_both_sockets_share_one_lock(tmp_path: Path) -> None:
    with serving_both(tmp_path, mode=Mode.SERIAL) as (served, second):
        nvshare, xpushare = Scripted(served.path).register("nvshare"), Scripted(second).register("xpushare")
        nvshare.ask().granted()
        xpushare.ask()
        served.until(lambda reading: reading.gpus[0].request_queue == (xpushare.id,))
        assert served.gpu().running == (nvshare.id,)
        assert xpushare.nothing(), "the lock is exclusive"
        nvshare.release()
        xpushare.granted()
        nvshare.ask()
        served.until(lambda reading: reading.gpus[0].request_queue == (nvshare.id,))
        assert nvshare.nothing(), "in the other direction too"
        xpushare.release()
        nvshare.granted()


def test_a_control_frame_on_either_socket_reaches_every_client(tmp_path: Path) -> None:
    with serving_both(tmp_path) as (served, second):
        clients = [Scripted(path).register() for path in (served.path, second)]
        control(second, T.SCHED_OFF)
        for client in clients:
            client.expect(T.SCHED_OFF)
        control(served.path, T.SCHED_ON)
        for client in clients:
            client.expect(T.SCHED_ON)


def test_both_sockets_have_the_same_modes_and_go_when_it_stops(tmp_path: Path) -> None:
    with serving_both(tmp_path) as (served, second):
        for path in (Path(served.path), Path(second)):
            assert stat.S_IMODE(path.stat().st_mode) == 0o722
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o711
        clients = [Scripted(path).register() for path in (served.path, second)]
    assert not Path(served.path).exists()
    assert not Path(second).exists()
    assert all(client.closed() for client in clients)


def test_a_dead_second_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "xpushare" / "s.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with serving_both(tmp_path) as (_, second):
        Scripted(second).register()


def test_a_second_socket_that_is_served_or_is_a_file_is_refused_and_the_first_is_closed_again(tmp_path: Path) -> None:
    path = tmp_path / "xpushare" / "s.sock"
    with serving_both(tmp_path / "a") as (_, taken):
        refused = pytest.raises(ListenError, match=r"pid \d+\) listens there.* scheduler\.xpushare_socket")
        with refused, serving(tmp_path / "b", xpushare_socket=taken):
            pass
        assert not (tmp_path / "b" / "nvshare" / "s.sock").exists()
        Scripted(taken).register()
    path.parent.mkdir()
    path.write_text("precious")
    with pytest.raises(ListenError, match=r"not a socket.* scheduler\.xpushare_socket"), serving_both(tmp_path):
        pass
    assert not (tmp_path / "nvshare" / "s.sock").exists()
    assert path.read_text() == "precious"


def test_without_the_right_to_create_it_the_second_is_left_out_with_one_line() -> None:
    """In a child process of another user, who may write to the first directory and not to the second."""
    if os.getuid() != 0:
        pytest.skip("needs root to become another user")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        directory = Path(name)
        directory.chmod(0o711)
        (directory / "mine").mkdir()
        os.chown(directory / "mine", NOBODY, NOBODY)
        # One that is missing; and one of root's, where a scheduler of root's is served.
        with serving_both(directory) as (_, served_by_root):
            for second in (str(directory / "missing" / "s.sock"), served_by_root):
                as_peer(Peer(NOBODY, NOBODY), partial(serve_first_alone, directory / "mine", second))


def serve_first_alone(directory: Path, second: str) -> None:
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("gpucommons").addHandler(handler)
    with serving(directory, xpushare_socket=second) as served:
        Scripted(served.path).register().ask().granted()
    assert len(lines) == 1, lines
    assert second in lines[0]
    assert "scheduler.xpushare_socket" in lines[0]
