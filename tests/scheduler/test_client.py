"""The client for Python programs, against the real scheduler."""

import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpucommons.scheduler.policy.quotas import QuotaValues
from gpucommons.scheduler.policy.state import GIB, Mode
from gpucommons.scheduler.protocol import client as client_module
from gpucommons.scheduler.protocol.client import NvshareClient, SchedulerGone
from scheduler.served import Scripted, serving
from waiting import until


def test_a_turn_is_held_until_another_client_requests_it(tmp_path: Path) -> None:
    synchronized = []
    with (
        serving(tmp_path, mode=Mode.SERIAL) as served,
        NvshareClient(served.path, pod="one", synchronize=lambda: synchronized.append(True)) as client,
    ):
        served.call(lambda: served.server.set_quantum(0.1))
        with client.turn():
            assert served.gpu().running == (client.client_id,)
        assert client.holds
        other = Scripted(served.path).register("other").ask().granted()
        assert not client.holds
        assert synchronized == [True]
        with pytest.raises(TimeoutError), client.turn(timeout_s=0.02):
            pass
        other.release()
        with client.turn():
            assert client.holds


def test_without_a_path_it_takes_the_socket_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second = tmp_path / "xpushare" / "s.sock"
    with serving(tmp_path, xpushare_socket=str(second)) as served:
        monkeypatch.setattr(client_module, "NVSHARE_SOCKET", str(tmp_path / "none.sock"))
        monkeypatch.setattr(client_module, "XPUSHARE_SOCKET", str(second))
        with NvshareClient(pod="one") as client:
            assert [row.client_id for row in served.reading().clients] == [client.client_id]
        monkeypatch.setattr(client_module, "NVSHARE_SOCKET", served.path)
        assert client_module.default_socket() == served.path, "nvshare's, where both are there"
        monkeypatch.setenv("GPUCOMMONS_SCHEDULER_SOCKET", str(second))
        assert client_module.default_socket() == str(second), "the variable, where it is set"


def test_a_turn_that_is_under_way_is_finished_first(tmp_path: Path) -> None:
    with serving(tmp_path, mode=Mode.SERIAL) as served, NvshareClient(served.path) as client:
        served.call(lambda: served.server.set_quantum(0.1))
        other = Scripted(served.path).register("other")
        with client.turn():
            other.ask()
            served.until(lambda reading: any(row.pending_drop for row in reading.clients))
            assert client.holds
            assert other.nothing()
        other.granted()


def test_two_jobs_share_in_turns(tmp_path: Path) -> None:
    with serving(tmp_path, mode=Mode.SERIAL) as served:
        served.call(lambda: served.server.set_quantum(0.1))
        inside = 0
        most = 0
        steps = [0, 0]
        stop = threading.Event()

        def work(number: int) -> None:
            nonlocal inside, most
            with NvshareClient(served.path, pod=f"job-{number}") as client:
                while not stop.is_set():
                    with client.turn():
                        inside += 1
                        most = max(most, inside)
                        time.sleep(0.005)
                        steps[number] += 1
                        inside -= 1

        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        served.until(lambda reading: reading.messages["DROP_LOCK"] >= 6)
        stop.set()
        for thread in threads:
            thread.join()
        assert most == 1
        assert min(steps) > 5


def test_an_idle_client_gives_the_lock_back_by_itself(tmp_path: Path) -> None:
    with serving(tmp_path) as served, NvshareClient(served.path, idle_release_s=0.05) as client:
        with client.turn():
            pass
        served.until(lambda reading: reading.messages["LOCK_RELEASED"] == 1)
        assert not client.holds


def test_limits_memory_and_the_switch_reach_it(tmp_path: Path) -> None:
    with serving(tmp_path, mode=Mode.SERIAL) as served, NvshareClient(served.path, pod="p", namespace="n") as client:
        served.call(lambda: served.server.set_limit("n/p", QuotaValues(4 * GIB, 40)))
        client.report_memory(2 * GIB)
        served.until(lambda reading: reading.clients[0].allocated_bytes == 2 * GIB)
        until(lambda: (client.memory_limit_bytes, client.core_limit_percent) == (4 * GIB, 40), "it knows its limits")
        Scripted(served.path).register("other").ask().granted()
        served.call(lambda: served.server.switch(False))
        with client.turn(timeout_s=5.0):
            assert not client.holds


def test_a_scheduler_that_is_not_there_or_goes_away(tmp_path: Path) -> None:
    with pytest.raises(SchedulerGone, match="no scheduler answers"):
        NvshareClient(str(tmp_path / "absent"))
    with serving(tmp_path, mode=Mode.SERIAL) as served:
        client = NvshareClient(served.path, on_lost="raise")
        holder = Scripted(served.path).register().ask().granted()
        failures: list[Exception] = []

        def wait() -> None:
            try:
                with client.turn():
                    pass
            except SchedulerGone as gone:
                failures.append(gone)

        waiter = threading.Thread(target=wait)
        waiter.start()
        served.until(lambda reading: len(reading.gpus[0].request_queue) == 1)
    waiter.join(10)
    assert len(failures) == 1
    client.close()
    holder.close()


def test_a_client_that_held_the_lock_waits_for_the_next_scheduler(tmp_path: Path) -> None:
    synchronized = []
    with serving(tmp_path, mode=Mode.SERIAL) as served:
        client = NvshareClient(served.path, pod="one", synchronize=lambda: synchronized.append(True))
        client.report_memory(2 * GIB)
        with client.turn():
            pass
        assert client.holds
    until(lambda: not client.holds, "the lock is lost with the scheduler")
    assert synchronized == [True], "its work ended first"
    with pytest.raises(TimeoutError), client.turn(timeout_s=0.05):
        pass
    with serving(tmp_path, mode=Mode.SERIAL) as served:
        other = Scripted(served.path).register("other").ask().granted()
        served.until(lambda reading: any(row.pod == "one" for row in reading.clients))
        with pytest.raises(TimeoutError), client.turn(timeout_s=0.05):
            pass
        other.release()
        with client.turn(timeout_s=20):
            assert served.gpu().running == (client.client_id,)
        assert next(row for row in served.reading().clients if row.pod == "one").allocated_bytes == 2 * GIB
        client.close()


def test_a_turn_during_which_the_scheduler_goes_ends_without_an_error(tmp_path: Path) -> None:
    synchronized = []
    with ExitStack() as stack:
        served = stack.enter_context(serving(tmp_path, mode=Mode.SERIAL))
        client = NvshareClient(served.path, synchronize=lambda: synchronized.append(True))
        with client.turn():
            stack.close()
            until(lambda: not client.holds, "the lock is lost with the scheduler")
            assert synchronized == []
        assert synchronized == [True]
        client.close()


def test_without_a_scheduler_a_turn_raises_or_runs_as_the_program_chose(tmp_path: Path) -> None:
    with serving(tmp_path, mode=Mode.SERIAL) as served:
        raising = NvshareClient(served.path, on_lost="raise")
        with raising.turn():
            pass
        running = NvshareClient(served.path, pod="running", on_lost="run")
    until(lambda: not raising.holds, "the lock is lost with the scheduler")
    with pytest.raises(SchedulerGone), raising.turn():
        pass
    until(lambda: not running.connected, "the connection is lost")
    with running.turn(timeout_s=20):
        assert not running.holds
    raising.close()
    with serving(tmp_path, mode=Mode.SERIAL) as served:
        served.until(lambda reading: any(row.pod == "running" for row in reading.clients))
        until(lambda: running.connected, "it is connected again")
        with running.turn(timeout_s=20):
            assert running.holds
        running.close()
    with pytest.raises(ValueError, match="invalid on_lost 'dance': use wait, run, raise"):
        NvshareClient("none", on_lost="dance")


def test_a_scheduler_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    path = str(tmp_path / "silent.sock")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(path)
        silent.listen()
        with pytest.raises(SchedulerGone, match=r"no scheduler answers at .*silent\.sock: timed out"):
            NvshareClient(path, timeout_s=0.1)
