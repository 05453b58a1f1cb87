"""Real programs on one GPU: throughput and latency by the driver alone and under the agent, on the same processes.

`python -m bench.real_work [SET ...] [--on S] [--off S]` as root on a machine with a GPU, torch and transformers. A set
is kinds of real_program.py joined by +; `train*3/train` is three of one user and one of another. Each set works for
--off seconds with the scheduler off, --on seconds from the moment in which it is switched on, and --off seconds with
it off again: the first seconds after the switch count. Throughput is over that of the program alone.
"""

import argparse
import importlib.util
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, quantiles
from typing import NamedTuple

from bench.real_programs import RealProgram, Step, at_work, real_programs
from bench.table import show
from running import command_process, running_agent

SETS = (
    "train+train", "train+conv", "train+small", "train+loader", "train+serve", "train+burst", "serve+serve",
    "loop+loop", "train+train+serve", "train*3/train",
)  # fmt: skip
SOLO_S, SETTLE_S = 5.0, 1.0
USERS = ("gpuann", "gpubob")
# Requests that come at their own rate: their length matters, not their number.
REQUESTS = {"serve", "burst"}


class Window(NamedTuple):
    """What one program did in a time: steps a second, and the median and the 95th percentile of their length."""

    rate: float
    median_ms: float
    p95_ms: float


def window(steps: Sequence[Step], seconds: float) -> Window:
    lengths = [1000 * step.length_s for step in steps]
    cuts = quantiles(lengths, n=20) if len(lengths) > 1 else [*lengths, 0.0] * 19
    return Window(len(steps) / seconds, cuts[9], cuts[18])


def groups(text: str) -> list[list[str]]:
    """The kinds of each user."""
    found = []
    for group in text.split("/"):
        kinds = []
        for part in group.split("+"):
            kind, _, times = part.partition("*")
            kinds += [kind] * int(times or 1)
        found.append(kinds)
    return found


def work(programs: Sequence[RealProgram], seconds: float) -> list[Window]:
    begin_s = time.monotonic()
    time.sleep(seconds)
    end_s = time.monotonic()
    return [window(program.steps(begin_s, end_s), end_s - begin_s) for program in programs]


def switch(way: str, environment: dict[str, str]) -> None:
    answer = command_process("scheduler", way, environment=environment)
    assert answer.returncode == 0, answer.stderr


def compare(
    programs: Sequence[RealProgram], on_s: float, off_s: float, environment: dict[str, str]
) -> tuple[list[list[Window]], list[Window], str]:
    """The windows with the scheduler off, before and after, those with it on, and the status at the end."""
    switch("off", environment)
    with at_work(programs):
        time.sleep(SETTLE_S)
        before = work(programs, off_s)
        switch("on", environment)
        with_agent = work(programs, on_s)
        status = command_process("scheduler", "status", environment=environment).stdout
        switch("off", environment)
        after = work(programs, off_s)
    return [before, after], with_agent, status


def row(text: str, kinds: list[str], solo: dict[str, float], off: list[list[Window]], on: list[Window]) -> list[str]:
    trainers = [number for number, kind in enumerate(kinds) if kind not in REQUESTS]
    by_driver = [mean(windows[number].rate for windows in off) / solo[kinds[number]] for number in trainers]
    by_agent = [on[number].rate / solo[kinds[number]] for number in trainers]
    lengths = []
    for number, kind in enumerate(kinds):
        if kind in REQUESTS:
            driver = [mean(getattr(windows[number], name) for windows in off) for name in ("median_ms", "p95_ms")]
            agent = [on[number].median_ms, on[number].p95_ms]
            lengths.append(f"{kind} p50 {driver[0]:.0f} -> {agent[0]:.0f}, p95 {driver[1]:.0f} -> {agent[1]:.0f} ms")

    def parts(values: list[float]) -> str:
        return f"{sum(values):.2f} ({' + '.join(f'{value:.2f}' for value in values)})" if values else ""

    ratio = f"{sum(by_agent) / sum(by_driver):.3f}" if by_driver else ""
    return [text, parts(by_driver), parts(by_agent), ratio, "; ".join(lengths)]


def add_users() -> None:
    for name in USERS:
        try:
            pwd.getpwnam(name)
        except KeyError:
            subprocess.run(["useradd", "--create-home", name], check=True)


def main() -> None:
    if shutil.which("nvidia-smi") is None or importlib.util.find_spec("transformers") is None:
        print("skipped: bench.real_work needs a GPU, torch and transformers")
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("sets", nargs="*", default=SETS)
    parser.add_argument("--on", type=float, default=60.0)
    parser.add_argument("--off", type=float, default=15.0)
    asked = parser.parse_args()
    add_users()
    # Each set takes its programs from these: of every user, as many of a kind as the set that has most of it.
    needed: dict[tuple[str, str], int] = {}
    for text in asked.sets:
        for user, kinds in zip(USERS, groups(text), strict=False):
            for kind in kinds:
                needed[kind, user] = max(needed.get((kind, user), 0), kinds.count(kind))
    started = [(kind, user) for (kind, user), count in needed.items() for _ in range(count)]
    rows = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        environment = {"GPUCOMMONS_SCHEDULER_SOCKET": f"{name}/scheduler.sock"}
        with (
            real_programs([kind for kind, _ in started], directory, [user for _, user in started]) as programs,
            running_agent("--scheduler", "--share", environment=environment),
        ):
            solo = {}
            for kind in dict.fromkeys(kind for kind, _ in started):
                one = next(program for program in programs if program.kind == kind)
                with at_work([one]):
                    time.sleep(SETTLE_S)
                    solo[kind] = work([one], SOLO_S)[0].rate
                print(kind, f"{solo[kind]:.1f} steps/s alone", file=sys.stderr, flush=True)
            for text in asked.sets:
                left = list(zip(started, programs, strict=True))
                chosen = []
                for user, kinds in zip(USERS, groups(text), strict=False):
                    for kind in kinds:
                        found = next(pair for pair in left if pair[0] == (kind, user))
                        left.remove(found)
                        chosen.append(found[1])
                off, on, status = compare(chosen, asked.on, asked.off, environment)
                rows.append(row(text, [program.kind for program in chosen], solo, off, on))
                print(rows[-1], status.splitlines()[1:2], file=sys.stderr, flush=True)
    header = ("programs", "driver", "under the agent", "agent / driver", "requests, driver -> agent")
    show("Real programs on one GPU, throughput over that alone", header, rows)


if __name__ == "__main__":
    main()
