"""Real programs on one GPU: throughput and latency by the driver alone and under the agent, on the same processes.

`python -m bench.real_work [SET[:SECONDS] ...] [--seconds S] [--within S]` as root on a machine with a GPU, torch and
transformers. A set is kinds of real_program.py joined by +; `train*3/train` is three of one user and one of another;
`serve@latency+train` gives the server a class. Each set works for a fifth of its seconds with the scheduler off, for
three fifths from the moment in which it is switched on, and for a fifth with it off again: the first seconds after the
switch count. Throughput is over that of the program alone. `stop:train*2/train` also stops the last program for a while
(SIGSTOP), and shows the longest step of the others meanwhile.

A row is printed when its set is done. --within bounds the whole, start included: what does not fit is left out.
"""

import argparse
import importlib.util
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import mean, quantiles
from typing import NamedTuple

from bench.real_programs import RealProgram, Step, at_work, real_programs
from bench.table import machine
from running import command_process, running_agent

SETS = (
    "train+train", "train+conv", "train+small", "train+loader", "train+serve", "train+burst", "serve+serve",
    "loop+loop", "train+train+serve", "serve@latency+train+train", "train+train@background", "train*3/train",
)  # fmt: skip
SOLO_S, SETTLE_S, STOPPED_S = 4.0, 1.0, 5.0
# The parts of a set's time: off before, on, off after.
ON_PART, OFF_PART = 0.6, 0.2
USERS = ("gpuann", "gpubob")
# Requests that come at their own rate: their length matters, not their number.
REQUESTS = {"serve", "burst"}
STOP = "stop:"


class Member(NamedTuple):
    """One program of a set: what it is, whose, and its class; empty: batch."""

    kind: str
    user: str
    sharing_class: str = ""


class Set(NamedTuple):
    text: str
    seconds: float
    members: tuple[Member, ...]
    stops: bool


class Window(NamedTuple):
    """What one program did in a time: steps a second, and the median and the 95th percentile of their length."""

    rate: float
    median_ms: float
    p95_ms: float


def window(steps: Sequence[Step], seconds: float) -> Window:
    lengths = [1000 * step.length_s for step in steps]
    cuts = quantiles(lengths, n=20) if len(lengths) > 1 else [*lengths, 0.0] * 19
    return Window(len(steps) / seconds, cuts[9], cuts[18])


def parse_set(text: str, seconds: float) -> Set:
    stops, rest = text.startswith(STOP), text.removeprefix(STOP)
    programs, _, given = rest.partition(":")
    members = []
    for user, group in zip(USERS, programs.split("/"), strict=False):
        for part in group.split("+"):
            name, _, times = part.partition("*")
            kind, _, sharing_class = name.partition("@")
            members += [Member(kind, user, sharing_class)] * int(times or 1)
    return Set(text.removesuffix(f":{given}") if given else text, float(given or seconds), tuple(members), stops)


def work(programs: Sequence[RealProgram], seconds: float) -> list[Window]:
    begin_s = time.monotonic()
    time.sleep(seconds)
    end_s = time.monotonic()
    return [window(program.steps(begin_s, end_s), end_s - begin_s) for program in programs]


def order(environment: dict[str, str], *words: str) -> str:
    answer = command_process("scheduler", *words, environment=environment)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@contextmanager
def classes(chosen: Set, programs: Sequence[RealProgram], environment: dict[str, str]) -> Iterator[None]:
    """The programs have their classes."""
    pairs = zip(programs, chosen.members, strict=True)
    special = [(f"pid:{one.process.pid}", member.sharing_class) for one, member in pairs if member.sharing_class]
    for target, sharing_class in special:
        order(environment, "set-class", target, sharing_class)
    try:
        yield
    finally:
        for target, _ in special:
            order(environment, "set-class", target, "batch")


class Outcome(NamedTuple):
    """The windows with the scheduler off, before and after, those with it on, the status at the end, and the longest
    step of the others while one program was stopped."""

    off: list[list[Window]]
    on: list[Window]
    status: str
    longest_ms: float | None = None


def compare(chosen: Set, programs: Sequence[RealProgram], environment: dict[str, str]) -> Outcome:
    order(environment, "off")
    with at_work(programs):
        time.sleep(SETTLE_S)
        before = work(programs, OFF_PART * chosen.seconds)
        order(environment, "on")
        with_agent = work(programs, ON_PART * chosen.seconds)
        status = order(environment, "status")
        longest_ms = stopped(programs) if chosen.stops else None
        order(environment, "off")
        after = work(programs, OFF_PART * chosen.seconds)
    return Outcome([before, after], with_agent, status, longest_ms)


def stopped(programs: Sequence[RealProgram]) -> float:
    """The longest time without a step of another program while the last one is stopped by a signal."""
    *others, last = programs
    begin_s = time.monotonic()
    last.process.send_signal(signal.SIGSTOP)
    time.sleep(STOPPED_S)
    last.process.send_signal(signal.SIGCONT)
    end_s = time.monotonic()
    longest_s = 0.0
    for one in others:
        times_s = [begin_s, *(step.done_s for step in one.steps(begin_s, end_s)), end_s]
        longest_s = max(longest_s, *(after - before for before, after in pairwise(times_s)))
    return 1000 * longest_s


def row(chosen: Set, solo: dict[str, float], found: Outcome) -> list[str]:
    kinds = [member.kind for member in chosen.members]
    off, on = found.off, found.on
    trainers = [number for number, kind in enumerate(kinds) if kind not in REQUESTS]
    by_driver = [mean(windows[number].rate for windows in off) / solo[kinds[number]] for number in trainers]
    by_agent = [on[number].rate / solo[kinds[number]] for number in trainers]
    notes = []
    for number, kind in enumerate(kinds):
        if kind in REQUESTS:
            driver = [mean(getattr(windows[number], name) for windows in off) for name in ("median_ms", "p95_ms")]
            agent = [on[number].median_ms, on[number].p95_ms]
            notes.append(f"{kind} p50 {driver[0]:.0f} -> {agent[0]:.0f}, p95 {driver[1]:.0f} -> {agent[1]:.0f} ms")
    if found.longest_ms is not None:
        notes.append(f"longest step of the others while one is stopped {found.longest_ms:.0f} ms")

    def parts(values: list[float]) -> str:
        return f"{sum(values):.2f} ({' + '.join(f'{value:.2f}' for value in values)})" if values else ""

    ratio = f"{sum(by_agent) / sum(by_driver):.3f}" if by_driver and sum(by_driver) else ""
    return [chosen.text, parts(by_driver), parts(by_agent), ratio, "; ".join(notes)]


def add_users() -> None:
    for name in USERS:
        try:
            pwd.getpwnam(name)
        except KeyError:
            subprocess.run(["useradd", "--create-home", name], check=True)


def needed_by(sets: Sequence[Set]) -> list[tuple[str, str]]:
    """Each set takes its programs from these: of every user, as many of a kind as the set that has most of it."""
    needed: dict[tuple[str, str], int] = {}
    for one in sets:
        pairs = [(member.kind, member.user) for member in one.members]
        for pair in pairs:
            needed[pair] = max(needed.get(pair, 0), pairs.count(pair))
    return [pair for pair, count in needed.items() for _ in range(count)]


def chosen_from(
    started: Sequence[tuple[str, str]], programs: Sequence[RealProgram], members: Sequence[Member]
) -> list[RealProgram]:
    left = list(zip(started, programs, strict=True))
    found = []
    for member in members:
        pair = next(pair for pair in left if pair[0] == (member.kind, member.user))
        left.remove(pair)
        found.append(pair[1])
    return found


def say(cells: Sequence[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    if shutil.which("nvidia-smi") is None or importlib.util.find_spec("transformers") is None:
        print("skipped: bench.real_work needs a GPU, torch and transformers")
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=SETS)
    parser.add_argument("--seconds", type=float, default=90.0, help="of each set that names none")
    parser.add_argument("--within", type=float, default=float("inf"), help="seconds for all, start included")
    asked = parser.parse_args()
    end_s = time.monotonic() + asked.within
    sets = [parse_set(text, asked.seconds) for text in asked.sets]
    add_users()
    started = needed_by(sets)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        environment = {"GPUCOMMONS_SCHEDULER_SOCKET": f"{name}/scheduler.sock"}
        with (
            real_programs([kind for kind, _ in started], directory, [user for _, user in started]) as programs,
            running_agent("--scheduler", "--share", environment=environment),
        ):
            solo = {}
            for kind in dict.fromkeys(kind for kind, _ in started if kind not in REQUESTS):
                one = next(program for program in programs if program.kind == kind)
                with at_work([one]):
                    time.sleep(SETTLE_S)
                    solo[kind] = work([one], SOLO_S)[0].rate
                print(kind, f"{solo[kind]:.1f} steps/s alone", file=sys.stderr, flush=True)
            print(f"\nReal programs on one GPU, throughput over that alone  ({machine()})\n")
            say(("programs", "driver", "under the agent", "agent / driver", "requests, driver -> agent"))
            say(("---",) * 5)
            for one_set in sets:
                if time.monotonic() + one_set.seconds + STOPPED_S * one_set.stops > end_s:
                    say((one_set.text, "", "", "", "left out: no time"))
                    continue
                chosen = chosen_from(started, programs, one_set.members)
                with classes(one_set, chosen, environment):
                    found = compare(one_set, chosen, environment)
                say(row(one_set, solo, found))
                print(*found.status.splitlines()[1:], sep="\n", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
