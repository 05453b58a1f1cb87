"""The calls that ask a model server to sleep: a server that is slow, hostile, or another user's."""

import logging
import os
from collections.abc import Sequence

import pytest

from gpucommons.model.ownership import Workload
from gpucommons.model.process_identity import ProcessKey
from gpucommons.scheduler.parking.programs import ParkedProgram, ProcessMemory
from gpucommons.scheduler.parking.sleep_calls import SleepCalls, is_local
from gpucommons.scheduler.parking.values import ParkStage
from gpucommons.scheduler.programs.jobs import GpuUser, Program
from gpucommons.scheduler.programs.matching import ProgramRule
from peers import run
from prometheus_server import free_port
from receivers import raw_server

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
OTHER_UID = 64_000


def parked(uid: int) -> ParkedProgram:
    process = ProcessKey(4711, 1)
    user = GpuUser(process.pid, process, "session:4711@1", (), Workload(uid=uid))
    program = Program(user.job, (user,))
    places = {process: ProcessMemory("GPU-1", 1 << 30)}
    return ParkedProgram(program.key, "vllm", places, ParkStage.PARKING, 0.0, 0.0, "idle", program=program, uid=uid)


def rules(port: int, uid: str = "*") -> Sequence[ProgramRule]:
    url = f"http://127.0.0.1:{port}"
    return [ProgramRule("vllm", sleep_url=f"{url}/sleep", wake_url=f"{url}/wake_up", uid=uid)]


def test_the_own_server_is_asked() -> None:
    with raw_server(OK) as (requests, port):
        assert run(SleepCalls(rules(port)).sleep(parked(os.getuid())))
        run(SleepCalls(rules(port)).wake(parked(os.getuid())))
    assert [request.split(b"\r\n")[0] for request in requests] == [b"POST /sleep HTTP/1.1", b"POST /wake_up HTTP/1.1"]


def test_a_program_that_only_calls_itself_like_the_server_puts_no_other_users_server_to_sleep(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    with raw_server(OK) as (requests, port):
        assert not run(SleepCalls(rules(port)).sleep(parked(OTHER_UID)))
        run(SleepCalls(rules(port)).wake(parked(OTHER_UID)))
    assert requests == []
    assert "the server there is another user's" in caplog.text


@pytest.mark.skipif(os.getuid() != 0, reason="the server has to be root's")
def test_where_the_rule_names_the_owner_the_server_may_be_behind_roots_proxy() -> None:
    with raw_server(OK) as (requests, port):
        assert run(SleepCalls(rules(port, uid=str(OTHER_UID))).sleep(parked(OTHER_UID)))
    assert len(requests) == 1


@pytest.mark.parametrize("status", [b"302 Found", b"303 See Other", b"307 Temporary Redirect"])
def test_no_redirect_is_followed(status: bytes) -> None:
    """Root may reach what the user of the server may not, such as the address of a cloud's credentials."""
    with raw_server(OK) as (stolen, target):
        redirect = b"HTTP/1.1 %s\r\nLocation: http://127.0.0.1:%d/secret\r\nContent-Length: 0\r\n\r\n" % (
            status,
            target,
        )
        with raw_server(redirect) as (requests, port):
            assert not run(SleepCalls(rules(port)).sleep(parked(os.getuid())))
    assert (len(requests), stolen) == (1, [])


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nX-Slow: "], ids=["says nothing", "never ends its header"])
def test_a_server_that_does_not_answer_holds_up_parking_once_and_for_a_limited_time(answer: bytes) -> None:
    with raw_server(answer) as (requests, port):
        calls = SleepCalls(rules(port), within_s=0.3)
        assert not run(calls.sleep(parked(os.getuid())))
        assert not run(calls.sleep(parked(os.getuid())))
    assert len(requests) == 1, "it is not asked again for minutes"


def test_a_long_answer_is_not_read() -> None:
    with raw_server(b"HTTP/1.1 200 OK\r\nContent-Length: 10485760\r\n\r\n" + b"x" * (10 << 20)) as (_, port):
        assert run(SleepCalls(rules(port)).sleep(parked(os.getuid())))


def test_without_a_server_it_is_parked_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    assert not run(SleepCalls(rules(free_port())).sleep(parked(os.getuid())))
    assert "no server listens there" in caplog.text


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:8000/sleep", True),
        ("http://127.9.9.9/sleep", True),
        ("http://[::1]:8000/sleep", True),
        ("http://localhost/sleep", True),
        ("http://10.0.0.5:8000/sleep", False),
        ("http://localhost.example/sleep", False),
    ],
)
def test_which_addresses_are_of_this_machine_alone(url: str, local: bool) -> None:
    assert is_local(url) is local
