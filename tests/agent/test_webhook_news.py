"""News for the webhook: problems, once each, when they last and when they are over; commands that waited; and through a
real webhook, of a command of another user."""

import asyncio
import os
import pwd
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from fakes.nvml.build import build
from fakes.nvml.control import FakeNvml
from gpucommons.agent.idle.webhook_news import LASTS_S, ProblemNews, WaitNews, WebhookNews
from gpucommons.config.accounts import WebhookSettings
from gpucommons.config.settings import Settings
from gpucommons.leases.protocol import LeaseConnection, answer_of
from gpucommons.model.leases import Lease, LeaseRequest, LeasesReading
from gpucommons.model.problems import HealthLevel, Problem, ProblemKind
from gpucommons.model.snapshot import Snapshot, SourceState
from needs import needs_program
from open_folder import open_folder
from receivers import hook
from running import running_agent
from users import as_user
from waiting import until

LOST = Problem("gpu_lost/a", ProblemKind.GPU_LOST, HealthLevel.LOST, "GPU 3 is lost.", "Reboot.")
IDLE = Problem("held_idle/b", ProblemKind.HELD_IDLE, HealthLevel.WARNING, "GPU 4 is idle.", "Ask.")


def lines(news: ProblemNews, now_s: float, *problems: Problem) -> list[str]:
    return list(news.step(problems, now_s))


def test_a_problem_that_lasts_is_sent_once_and_so_is_its_end() -> None:
    news = ProblemNews()
    assert lines(news, 0.0, LOST, IDLE) == []
    assert lines(news, LASTS_S, LOST, IDLE) == ["lost: GPU 3 is lost. Reboot."], "idle holders have their own messages"
    assert lines(news, LASTS_S + 100, LOST) == []
    assert lines(news, LASTS_S + 110) == [], "it may come back"
    assert lines(news, 2 * LASTS_S + 100) == ["over: GPU 3 is lost."]
    assert lines(news, 2 * LASTS_S + 200) == []


def test_a_problem_of_a_moment_is_not_sent() -> None:
    news = ProblemNews()
    assert lines(news, 0.0, LOST) == []
    assert lines(news, LASTS_S + 1) == []
    assert lines(news, LASTS_S + 2, LOST) == [], "it counts from its beginning again"


def failing(now_s: float) -> Snapshot:
    nvml = SourceState("nvml", failures={"driver_not_loaded": 1}, detail="the driver is not loaded")
    return Snapshot(1, now_s, now_s, "node", sources={"nvml": nvml})


def test_the_webhook_gets_the_problems_unless_they_are_switched_off() -> None:
    async def play(settings: Settings) -> None:
        part = WebhookNews(settings, "gpu1")
        await part.start()
        part.observe(failing(0.0))
        part.observe(failing(LASTS_S))
        await asyncio.to_thread(lambda: until(lambda: taken.bodies or not settings.webhook.problems, "a message"))
        await part.stop()

    with hook() as (taken, url):
        asyncio.run(play(replace(Settings(), webhook=WebhookSettings(url=url, problems=False))))
        assert taken.requests == 0
        asyncio.run(play(replace(Settings(), webhook=WebhookSettings(url=url))))
        (text,) = taken.texts
    assert text.startswith("gpu1:\ncritical: The NVIDIA driver does not answer: the driver is not loaded.")


def leased(id: str, arrived_s: float, since_s: float, program: str = "python", *slots: str) -> Lease:
    return Lease(
        LeaseRequest(1000, "eva", arrived_s, id=id, name="secret project", program=program),
        slots or ("GPU-a",),
        1.0,
        since_s,
    )


def test_a_command_that_waited_for_long_is_sent_when_it_starts() -> None:
    news = WaitNews(300.0)
    earlier, short = leased("1", 0.0, 900.0), leased("2", 950.0, 1000.0)
    late = leased("3", 700.0, 1000.0, "python", "GPU-a", "GPU-b")
    slots = {"GPU-a": "3", "GPU-b": "6.0"}

    def lines(*leases: Lease) -> list[str]:
        return list(news.step(LeasesReading(slots=slots, leases=leases)))

    assert lines(earlier) == [], "granted by an earlier agent"
    assert lines(earlier, short, late) == ["eva: your command (python) runs on GPUs 3, 6.0 now, after 5 min in line"]
    assert lines(short, late) == [], "once"
    assert lines(leased("4", 0.0, 1000.0, "")) == ["eva: your command runs on GPU 3 now, after 17 min in line"]


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0, reason="runs a command of another user")
def test_the_webhook_gets_the_command_of_another_user_whose_wait_has_ended() -> None:
    """A real agent on a fake driver: both GPUs are leased until the command of uid 65534 has waited."""
    needs_program("cc", "setpriv")
    with open_folder() as folder, hook() as (taken, url):
        driver = FakeNvml(folder / "driver", build(folder / "lib"))
        driver.say("gpus 2", "recording idle")
        socket = folder / "leases.sock"
        environment = {
            **driver.environment(),
            "GPUCOMMONS_LEASES_SOCKET": str(socket),
            "GPUCOMMONS_LEASES_ENABLED": "true",
            "GPUCOMMONS_WEBHOOK_URL": url,
            "GPUCOMMONS_WEBHOOK_PROBLEMS": "false",
            "GPUCOMMONS_WEBHOOK_MIN_WAIT_S": "0.3",
        }
        with running_agent("--interval", "0.2", environment=environment):

            def queue() -> dict[str, dict[str, object]]:
                answer = answer_of([socket], {"request": "queue"})["answer"]
                return dict(answer) if isinstance(answer, dict) else {}

            until(lambda: queue()["off"] is None, "leases are given")
            with LeaseConnection([socket]) as holder:
                holder.send({"request": "run", "gpus": 2})
                until(lambda: queue()["leases"], "both GPUs are leased")
                waiting = subprocess.Popen(
                    [*as_user(65534), sys.executable, "-m", "gpucommons", "run", "--name", "secret", "--quiet", "cat"],
                    stdin=subprocess.PIPE,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
                )
                first = until(lambda: next(iter(queue()["waiting"].values()), None), "the command waits")
                assert isinstance(first, dict)
                since_s = first["since_unix_s"]
                until(lambda: time.time() - since_s > 0.5, "it has waited for long enough")
            text = until(lambda: taken.texts[0] if taken.texts else None, "a message", within_s=30)
            waiting.communicate(timeout=60)
    user = pwd.getpwuid(65534).pw_name
    assert f"\n{user}: your command (cat) runs on GPU " in text
    assert "in line" in text
    assert "secret" not in text
    assert len(taken.texts) == 1, "the command that did not wait is not news"
