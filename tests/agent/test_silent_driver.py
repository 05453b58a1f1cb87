"""Exclusive turns while the driver does not answer: the whole agent, real sockets, a driver that hangs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fakes.nvml.build import build
from fakes.nvml.control import FakeNvml
from gpucommons.scheduler.protocol.wire import MessageType
from needs import needs_program
from parsing import parsed
from running import RunningAgent, command, running_agent
from scheduler.served import Scripted
from waiting import until

pytestmark = pytest.mark.long

NVML_UP = ("gpucommons_source_up", (("source", "nvml"),))
HANG = "hang nvmlDeviceGetTemperature"


@contextmanager
def serial_agent(directory: Path, *lines: str) -> Iterator[tuple[RunningAgent, FakeNvml, str]]:
    needs_program("cc")
    (directory / "library").mkdir()
    driver = FakeNvml(directory / "driver", build(directory / "library"))
    driver.say("gpus 2", *lines)
    path = str(directory / "s.sock")
    environment = {
        **driver.environment(),
        "GPUCOMMONS_SCHEDULER_SOCKET": path,
        "NVSHARE_SCHEDULING_MODE": "serial",
        # No turn ends by itself, however slow the machine.
        "NVSHARE_SWITCH_TIME_MODE": "fixed",
        "NVSHARE_SWITCH_TIME_FIXED": "3600",
    }
    with running_agent("--scheduler", environment=environment) as agent:
        try:
            yield agent, driver, path
        finally:
            driver.unsay("hang")


def wait_for_driver(agent: RunningAgent, up: int) -> None:
    until(lambda: parsed(agent.get("/metrics")[1]).get(NVML_UP) == up, f"nvml is {'up' if up else 'down'}")
    # The snapshot that was published with it has reached the scheduler when the next one is served.
    key = ("gpucommons_snapshots_total", ())
    first = parsed(agent.get("/metrics")[1])[key]
    until(lambda: parsed(agent.get("/metrics")[1])[key] > first, "one more snapshot")


def first_uuid(agent: RunningAgent) -> str:
    labels = [dict(labels) for name, labels in parsed(agent.get("/metrics")[1]) if name == "gpucommons_gpu_up"]
    return next(found["uuid"] for found in labels if found["gpu"] == "0")


def still_waits(client: Scripted) -> bool:
    """Whether the scheduler has not sent LOCK_OK yet: it answers a connection's frames in order."""
    client.send(MessageType.REGISTER, pod="again")
    reply = client.receive()
    return reply is not None and reply.type == MessageType.SCHED_ON


def served_in_turn(holder: Scripted, waiters: list[Scripted]) -> None:
    """Each client gets the lock when the one before releases it, not earlier."""
    while waiters:
        assert all(still_waits(waiter) for waiter in waiters), "two clients hold one GPU"
        holder.release()
        holder = waiters.pop(0).granted()


def test_new_clients_wait_while_the_driver_does_not_answer_and_after(tmp_path: Path) -> None:
    with serial_agent(tmp_path) as (agent, driver, path):
        wait_for_driver(agent, 1)
        uuid = first_uuid(agent)
        holder = Scripted(path).register("holder", gpu="0").ask().granted()
        driver.say(HANG)
        wait_for_driver(agent, 0)
        waiters = [Scripted(path).register(gpu=name).ask() for name in ("", "0", "all", uuid)]
        other = Scripted(path).register("other", gpu="1").ask().granted()
        assert all(still_waits(waiter) for waiter in waiters), "two clients hold one GPU"
        driver.unsay("hang")
        wait_for_driver(agent, 1)
        served_in_turn(holder, waiters)
        assert still_waits(other)


def test_clients_before_the_first_reading_never_run_together(tmp_path: Path) -> None:
    with serial_agent(tmp_path, HANG) as (agent, driver, path):
        holder = Scripted(path).register("holder", gpu="0").ask().granted()
        waiters = [Scripted(path).register(gpu=name).ask() for name in ("", "0", "all")]
        other = Scripted(path).register("other", gpu="1").ask()
        assert all(still_waits(waiter) for waiter in (*waiters, other)), "two clients may hold one GPU"
        driver.unsay("hang")
        wait_for_driver(agent, 1)
        other.granted()
        waiters.append(Scripted(path).register("late", gpu=first_uuid(agent)).ask())
        served_in_turn(holder, waiters)


def test_a_driver_that_fails_to_start_is_not_ready_and_gpus_ends_with_status_1(tmp_path: Path) -> None:
    """18: the library and the kernel module are of different releases, as after an update without a reboot."""
    needs_program("cc")
    (tmp_path / "library").mkdir()
    driver = FakeNvml(tmp_path / "driver", build(tmp_path / "library"))
    driver.say("gpus 2", "fail * 18", "fail nvmlInit 18")
    with running_agent(environment=driver.environment()) as agent:
        until(lambda: agent.get("/readyz")[0] == 503, "the node is not ready")
        assert "driver" in agent.get("/readyz")[1].lower()
        assert agent.get("/healthz")[0] == 200, "the agent itself is well"
        found = command("gpus", "--connect", agent.url)
        assert found.returncode == 1, found.stdout + found.stderr
        driver.unsay("fail")
        until(lambda: agent.get("/readyz")[0] == 200, "the driver answers again", within_s=90)
        assert command("gpus", "--connect", agent.url).returncode == 0
