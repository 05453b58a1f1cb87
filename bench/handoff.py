"""Hand-offs and messages per second compared with a bare uvloop lock server, in one interleaved run.

    python -m bench.handoff [ROUNDS]

Both serve one lock: ours in serial mode, with all its policy and accounting. `together` is ours in auto mode, where
these clients run at the same time. A ratio is the median of the ratios of the rounds, since the machine is shared.
"""

import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.idle import rss_mb
from bench.table import show

HERE = Path(__file__).parent
ROUNDS = 9
HANDOFFS, REGISTRATIONS, CYCLING, CYCLE_S = 1000, 200, 50, 0.7
IDLE = (0, 1000)
BARE, OURS, TOGETHER = "bare", "ours", "together"


def build(directory: Path) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        raise SystemExit("bench.handoff needs a C compiler: apt install gcc libc6-dev")
    program = directory / "nvload"
    subprocess.run([compiler, "-O2", "-o", str(program), str(HERE / "nvload.c")], check=True)
    return program


@contextmanager
def server(path: Path, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-m", *arguments], cwd=HERE.parent)
    try:
        for _ in range(500):
            if path.exists():
                break
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait()


def measured(program: Path, *arguments: object) -> dict[str, float]:
    """Every NAME.KEY=NUMBER of nvload's lines."""
    done = subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True, check=True)
    return {
        f"{line.split()[0]}.{key}": float(value)
        for line in done.stdout.splitlines()
        for key, value in re.findall(r"(\w+)=([\d.]+)", line)
    }


def one_round(program: Path, path: Path, idle: int) -> dict[str, float]:
    handoff = measured(program, "handoff", path, 2, HANDOFFS, idle)
    cycle = measured(program, "cycle", path, 2, CYCLING, idle, CYCLE_S)
    reg = measured(program, "reg", path, 2, REGISTRATIONS, idle)
    return {**handoff, **cycle, **reg}


def rss_with_clients(program: Path, path: Path, process: "subprocess.Popen[bytes]", count: int) -> float:
    with subprocess.Popen([str(program), "idle", str(path), "2", str(count), "30"], stdout=subprocess.PIPE) as load:
        assert load.stdout is not None
        load.stdout.readline()
        rss = rss_mb(process.pid)
        load.kill()
    return rss


ROWS = (
    ("handoff.p50", "hand-off p50, us", "at most 1.15x"),
    ("handoff.p99", "hand-off p99, us", ""),
    ("cycle.messages_per_s", "messages a second", "at least 0.8x"),
    ("connect_to_lock.p50", "connect to first LOCK_OK p50, us", ""),
)


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        root = Path(directory)
        program = build(root)
        paths = {name: root / f"{name}.sock" for name in (BARE, OURS, TOGETHER)}
        processes = {
            BARE: stack.enter_context(server(paths[BARE], "bench.bare_lock_server", str(paths[BARE]))),
            OURS: stack.enter_context(server(paths[OURS], "bench.lone_scheduler", str(paths[OURS]), "serial")),
            TOGETHER: stack.enter_context(
                server(paths[TOGETHER], "bench.lone_scheduler", str(paths[TOGETHER]), "auto")
            ),
        }
        table = []
        for idle in IDLE:
            found: dict[str, list[dict[str, float]]] = {name: [] for name in paths}
            for _ in range(rounds):
                for name, path in paths.items():
                    found[name].append(one_round(program, path, idle))
            for key, title, bar in ROWS:
                medians = {name: statistics.median(row[key] for row in rows) for name, rows in found.items()}
                ratio = statistics.median(
                    ours[key] / bare[key] for ours, bare in zip(found[OURS], found[BARE], strict=True)
                )
                table.append(
                    [
                        title,
                        idle,
                        *(
                            f"{medians[name]:,.0f}" if medians[name] > 1000 else f"{medians[name]:.1f}"
                            for name in paths
                        ),
                        f"{ratio:.2f}",
                        bar,
                    ]
                )
        sizes = [rss_with_clients(program, paths[name], processes[name], 1000) for name in paths]
        table.append(["RSS with 1,000 clients, MB", 1000, *(f"{size:.0f}" for size in sizes), "", "at most 60 MB"])
        show(
            f"The scheduler against a bare lock server, median of {rounds} interleaved rounds",
            ["", "idle", BARE, OURS, TOGETHER, "ours / bare", "bar"],
            table,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
