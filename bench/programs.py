"""Unmodified torch programs on one GPU: throughput over solo, by the driver's time-slicing and in the agent's turns.

`python -m bench.programs [SIZE+SIZE ...] [lone]` as root on a machine with a GPU and torch. The programs are bf16
matrix products that know nothing of the agent. Both ways are measured on the same processes in interleaved rounds: the
agent's scheduler is switched off and on again. The first seconds after each switch are not counted.

`lone` is one program by itself, with the agent at work and, interleaved, with the agent stopped by a signal.
"""

import importlib.util
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median

from bench.table import show
from running import command, running_agent
from scheduler.torch_programs import rates, torch_programs

SETTLE_S, ROUND_S, ROUNDS, SOLO_S = 4.0, 5.0, 2, 5.0
LONE, LONE_SIZE, LONE_ROUNDS, LONE_ROUND_S = "lone", 4096, 6, 3.0
SETS = ("4096+4096", "2048+2048", "1536+1536", "1024+1024", "512+512", "4096+512", "4096+1536", "4096+4096+4096")


def sum_text(parts: list[float]) -> str:
    return f"{sum(parts):.2f} ({' + '.join(f'{part:.2f}' for part in parts)})"


def measured(sizes: list[int], directory: Path, environment: dict[str, str]) -> tuple[list[float], list[float]]:
    """Mean rates by the driver and under the agent."""
    with torch_programs(sizes, directory) as programs:
        ways: dict[str, list[list[float]]] = {"off": [], "on": []}
        for _ in range(ROUNDS):
            for way, found in ways.items():
                answer = command("scheduler", way, environment=environment)
                assert answer.returncode == 0, answer.stderr
                time.sleep(SETTLE_S)
                found.append(rates(programs, ROUND_S))
        return [mean(of_one) for of_one in zip(*ways["off"], strict=True)], [
            mean(of_one) for of_one in zip(*ways["on"], strict=True)
        ]


def solo_rate(size: int, directory: Path) -> float:
    """A lone program is never paused: it may run under the agent."""
    with torch_programs([size], directory) as programs:
        time.sleep(1.0)
        return rates(programs, SOLO_S)[0]


def lone(agent: "subprocess.Popen[str]", directory: Path) -> tuple[float, float]:
    """The least and the median of the agent's rounds over those without it."""
    with torch_programs([LONE_SIZE], directory) as programs:
        time.sleep(SETTLE_S)
        found = []
        for _ in range(LONE_ROUNDS):
            agent.send_signal(signal.SIGSTOP)
            without = rates(programs, LONE_ROUND_S)[0]
            agent.send_signal(signal.SIGCONT)
            found.append(rates(programs, LONE_ROUND_S)[0] / without)
        return min(found), median(found)


def main() -> None:
    if shutil.which("nvidia-smi") is None or importlib.util.find_spec("torch") is None:
        print("skipped: bench.programs needs a GPU and torch")
        return
    asked = sys.argv[1:] or [*SETS, LONE]
    sets = [[int(size) for size in text.split("+")] for text in asked if text != LONE]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        environment = {"GPUCOMMONS_SCHEDULER_SOCKET": f"{name}/scheduler.sock"}
        with running_agent("--scheduler", "--share", environment=environment) as agent:
            if LONE in asked:
                least, middle = lone(agent.process, directory)
                print(f"{LONE_SIZE} alone: {middle:.4f} of its throughput without the agent, {least:.4f} at least")
            solo = {size: solo_rate(size, directory) for size in sorted({size for sizes in sets for size in sizes})}
            rows = []
            for sizes in sets:
                driver, ours = measured(sizes, directory, environment)
                over_solo = [
                    [rate / solo[size] for rate, size in zip(found, sizes, strict=True)] for found in (driver, ours)
                ]
                ratio = sum(over_solo[1]) / sum(over_solo[0])
                rows.append((" + ".join(map(str, sizes)), *map(sum_text, over_solo), f"{ratio:.2f}"))
                print(rows[-1], file=sys.stderr, flush=True)
    show(
        "Unmodified torch programs on one GPU, throughput over solo",
        ("programs", "driver's time-slicing", "under the agent", "agent / driver"),
        rows,
    )


if __name__ == "__main__":
    main()
