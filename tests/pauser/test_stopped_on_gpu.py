"""Torch programs in turns on a real GPU, of which one is stopped by its user: what that costs the others.

As root; under three minutes. The bars: less than 0.5 s once, and less than 5 % where it happens every second.
"""

import importlib.util
import json
import os
import pwd
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpucommons.pauser.stopped import FreezerMounts
from running import RunningAgent, running_agent
from scheduler.torch_programs import TorchProgram, rates
from stopping import WAYS, by_signal
from waiting import until

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]
USER = "gpuann"
LOST_S, LOST_RATIO = 0.5, 0.05
WATCH_S, MINUTE_S = 6.0, 60.0
FREEZER = "freezer_v1" if FreezerMounts().v1 is not None else "freezer_v2"


class Turns:
    """Three programs in turns under the agent, and their rate in total."""

    def __init__(self, agent: RunningAgent, programs: list[TorchProgram]) -> None:
        self.agent = agent
        self.programs = programs
        self.stopped, *self.others = programs
        self.usual = 0.0

    def row(self, program: TorchProgram) -> Any | None:
        clients = json.loads(self.agent.get("/api/v1/turns")[1])["turns"]["clients"]
        return next((row for row in clients.values() if program.process.pid in row["processes"]), None)

    def standing(self, program: TorchProgram) -> str:
        row = self.row(program)
        return "" if row is None else str(row["standing"])

    def take_turns(self) -> None:
        until(lambda: {self.standing(one) for one in self.programs} == {"running", "waiting"}, "they take turns", 60)


def total(programs: Sequence[TorchProgram], seconds: float) -> float:
    return sum(rates(programs, seconds))


@pytest.fixture(scope="module")
def turns() -> Iterator[Turns]:
    """Owners take turns that have different numbers of programs: two of a user, and one of root."""
    try:
        pwd.getpwnam(USER)
    except KeyError:
        # torch needs a name for its uid.
        subprocess.run(["useradd", USER], check=True)
    with tempfile.TemporaryDirectory() as name, umask(0):
        Path(name).chmod(0o777)
        yield from turns_in(Path(name))


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def turns_in(directory: Path) -> Iterator[Turns]:
    environment = {"GPUCOMMONS_SCHEDULER_SOCKET": str(directory / "scheduler.sock")}
    with running_agent("--scheduler", "--share", environment=environment) as agent:
        if "nvshare_nvml_up 1" not in agent.get("/metrics")[1]:
            pytest.skip("needs a real NVIDIA GPU")
        as_user = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
        programs = [TorchProgram(4096, directory, prefix=prefix) for prefix in (as_user, as_user, ())]
        try:
            for program in programs:
                until(lambda program=program: program.products > 0, "a torch program runs", within_s=120)  # type: ignore[misc]
            made = Turns(agent, programs)
            made.take_turns()
            time.sleep(5.0)
            made.usual = total(programs, WATCH_S)
            yield made
        finally:
            for program in programs:
                program.stop()


@pytest.mark.parametrize("way", ["signal", "debugger", "debugger_at_one_thread", FREEZER])
def test_a_stopped_program_costs_the_others_less_than_half_a_second(turns: Turns, way: str) -> None:
    turns.take_turns()
    with WAYS[way](turns.stopped.process.pid):
        lost_s = WATCH_S * (1 - total(turns.others, WATCH_S) / turns.usual)
        row = turns.row(turns.stopped)
        assert row is not None
        assert row["held_up"].startswith("stopped by its user: "), row
    assert lost_s < LOST_S, lost_s
    before = turns.stopped.products
    until(lambda: turns.stopped.products > before, "it works again", 10)


def test_a_program_that_is_stopped_every_second_for_a_minute_costs_less_than_5_percent(turns: Turns) -> None:
    turns.take_turns()
    before, begun_s = [one.products for one in turns.programs], time.monotonic()
    while time.monotonic() < begun_s + MINUTE_S:
        with by_signal(turns.stopped.process.pid):
            time.sleep(1.0)
        time.sleep(1.0)
    over_s = time.monotonic() - begun_s
    made = [(one.products - old) / over_s for one, old in zip(turns.programs, before, strict=True)]
    assert sum(made) > (1 - LOST_RATIO) * turns.usual, (made, turns.usual)
    # Three quarters are theirs at any time, and all while it is stopped.
    assert sum(made[1:]) > (1 - LOST_RATIO) * (3 / 4 + 1) / 2 * turns.usual, (made, turns.usual)


def test_after_all_that_they_share_as_before(turns: Turns) -> None:
    turns.take_turns()
    found = rates(turns.programs, WATCH_S)
    assert sum(found) > 0.95 * turns.usual, (found, turns.usual)
    assert min(found) > 0.8 * turns.usual / 4, found
