"""Hand-offs within the whole agent compared with nvshare's own scheduler, in one interleaved run.

    python -m bench.agent_handoff NVSHARE_SCHEDULER [ROUNDS]

NVSHARE_SCHEDULER is the path of its program, built from its source; it listens in /var/run/nvshare. The agent samples a
fake node of 8 busy GPUs every second, as always, and is scraped every 15 s. `alone` is the agent's scheduler without
the rest. All have one lock in serial mode. On a shared machine other programs delay some rounds of each: the result is
the lowest of each program's rounds, and the medians show the load. A round lasts longer than the sampling interval, so
that each contains a pass.
"""

import statistics
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.handoff import build, measured, server
from bench.table import show
from fakes.nvml.build import build as build_driver
from fakes.nvml.control import FakeNvml, process, usage
from running import running_agent
from waiting import until

ROUNDS, HANDOFFS, FRAMES_VERSION = 9, 4000, 1
IDLE = (0, 200)
GPUS, PIDS, MEMORY_BYTES = 8, (1, 2, 3), 1 << 30
SCRAPE_EVERY_S = 15
PEER_SOCKET = Path("/var/run/nvshare/scheduler.sock")
PEER, ALONE, AGENT = "nvshare's", "alone", "agent"
# Of the ratio of the lowest values.
BARS = {"p50": "at most 1.15", "p99": "at most 1.4"}


@contextmanager
def peer(program: str) -> Iterator[None]:
    if PEER_SOCKET.exists():
        raise SystemExit(
            f"bench.agent_handoff: {PEER_SOCKET} exists; stop the scheduler that listens there, or remove it"
        )
    running = subprocess.Popen([program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(PEER_SOCKET.exists, "nvshare's scheduler listens")
        yield
    finally:
        running.kill()
        running.wait()
        PEER_SOCKET.unlink(missing_ok=True)


@contextmanager
def scraping(url: str) -> Iterator[None]:
    enough = threading.Event()

    def scrape() -> None:
        while not enough.wait(SCRAPE_EVERY_S):
            with urllib.request.urlopen(f"{url}/metrics") as answer:
                answer.read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def busy_node(directory: Path) -> FakeNvml:
    fake = FakeNvml(directory / "node", build_driver(directory / "lib"))
    rows = [(gpu, pid) for gpu in range(GPUS) for pid in PIDS]
    lines = [line for gpu, pid in rows for line in (process(gpu, pid, MEMORY_BYTES), usage(gpu, pid, 30))]
    fake.say(f"gpus {GPUS}", "recording busy", "replay_cost", "vary", *lines)
    return fake


def main(program: str, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        directory = Path(made)
        load, fake = build(directory), busy_node(directory)
        paths = {PEER: PEER_SOCKET, ALONE: directory / "alone.sock", AGENT: directory / "agent.sock"}
        stack.enter_context(peer(program))
        stack.enter_context(server(paths[ALONE], "bench.lone_scheduler", str(paths[ALONE]), "serial"))
        environment = {
            **fake.environment(),
            "GPUCOMMONS_SCHEDULER_SOCKET": str(paths[AGENT]),
            "NVSHARE_SCHEDULING_MODE": "serial",
        }
        agent = stack.enter_context(running_agent("--scheduler", environment=environment))
        stack.enter_context(scraping(agent.url))
        table = []
        for idle in IDLE:
            found: dict[str, list[dict[str, float]]] = {name: [] for name in paths}
            for _ in range(rounds):
                for name, path in paths.items():
                    found[name].append(measured(load, "handoff", path, FRAMES_VERSION, HANDOFFS, idle))
            for key in ("p50", "p99", "p999", "max"):
                values = {name: [row[f"handoff.{key}"] for row in rows] for name, rows in found.items()}
                lowest = {name: min(numbers) for name, numbers in values.items()}
                table.append(
                    [
                        f"hand-off {key}, us",
                        idle,
                        *(f"{lowest[name]:,.1f} ({statistics.median(values[name]):,.1f})" for name in paths),
                        f"{lowest[AGENT] / lowest[PEER]:.2f}",
                        BARS.get(key, ""),
                    ]
                )
    show(
        f"Hand-offs, lowest (median) of {rounds} interleaved rounds of {HANDOFFS:,}",
        ["", "idle clients", *paths, f"agent / {PEER}", "bar"],
        table,
    )


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print("skipped: bench.agent_handoff needs the path of nvshare's scheduler")
    else:
        main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS)
