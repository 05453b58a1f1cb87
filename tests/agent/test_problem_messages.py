"""Problems as messages: once each, when they last and when they are over; and through a real webhook."""

import asyncio
from dataclasses import replace

from gpucommons.agent.idle.problems import LASTS_S, ProblemMessages, ProblemNews
from gpucommons.config.accounts import WebhookSettings
from gpucommons.config.settings import Settings
from gpucommons.model.problems import HealthLevel, Problem, ProblemKind
from gpucommons.model.snapshot import Snapshot, SourceState
from receivers import hook
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
        part = ProblemMessages(settings, "gpu1")
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
