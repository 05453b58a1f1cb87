"""What it costs that new programs would wait for room, while none begins: processor time of the agent and its pauser.

    python -m bench.arrival_watch [SECONDS]

As root. Idle programs fill a fake GPU, so that the pauser watches the device files and the programs that are executed.
Then 20 programs a second are executed that use no GPU, as by a build. "off" is the same with `arrival_room = "off"`.
Bar: 0.2 % of a core while no program begins.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.table import show
from fakes.gpu.account import Phase
from shared_node import SharedNode, device_files, shared_node
from waiting import until

SECONDS, ROUNDS = 60.0, 2
MIB = 1 << 20
EXECUTE_EVERY_S = 0.05
WATCHED = "new programs wait for room"
# Idle programs are looked at as seldom as with the default of 120 s, every 10 s.
SECTIONS = '[parking]\narrival_room = "{room}"\narrival_idle_after_s = 40\ndevice_files = "{files}"\n'


def cpu_ms(pid: int) -> float:
    """Of all threads that it has, to the nanosecond."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e6


def core_percent(node: SharedNode, seconds: float) -> list[float]:
    """Of the agent, and of its pauser."""
    pids = node.agent.process.pid, node.pauser()
    before = [cpu_ms(pid) for pid in pids if pid is not None]
    begun_s = time.monotonic()
    time.sleep(seconds)
    elapsed_ms = (time.monotonic() - begun_s) * 1e3
    return [100 * (cpu_ms(pid) - used) / elapsed_ms for pid, used in zip(pids, before, strict=True) if pid is not None]


@contextmanager
def executing() -> Iterator[None]:
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(EXECUTE_EVERY_S):
            subprocess.run(["true"], check=True)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def measure(room: str, seconds: float) -> list[list[float]]:
    """Alone, and while programs are executed."""
    with shared_node() as node:
        files = device_files(node.run / "dev")
        node.shared.cuda.gpu_has(200 * MIB)
        for _ in range(2):
            node.program(phases=[Phase(None)], memory_bytes=64 * MIB).program.wait_for_user()
        node.start_agent(sections=SECTIONS.format(room=room, files=files))
        node.wait_for(lambda: len(node.turns()["clients"]) == 2, "the agent sees both")
        if room != "off":
            until(lambda: any(WATCHED in line for line in node.agent.lines), "the pauser watches")
        time.sleep(5)
        alone = core_percent(node, seconds)
        with executing():
            return [alone, core_percent(node, seconds)]


def main(seconds: float) -> None:
    rows = []
    for number in range(ROUNDS):
        for room in ("off", "100%"):
            for what, (agent, pauser) in zip(("nothing begins", "a build"), measure(room, seconds), strict=True):
                rows.append((number + 1, room, what, f"{agent:.2f} %", f"{pauser:.3f} %"))
    show(
        "New programs would wait for room, and none begins (bar: 0.2 % of a core more than off)",
        ("round", "arrival_room", "", "agent", "pauser"),
        rows,
    )


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS)
