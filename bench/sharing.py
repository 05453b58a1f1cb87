"""Two torch jobs on one GPU: each one's throughput over its solo throughput, left to the driver and under the agent.

`python -m bench.sharing` on a machine with a GPU and torch. The jobs are bf16 matrix products: 4096 keeps the GPU
busy, 512 waits for its launches, and so for the CPU: rounds are interleaved, and what is told is their mean. Each
round's jobs are new to the agent, so what it takes to learn their demand, 3 to 4 s alone, is in its figure.
"""

import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from bench.table import show  # noqa: E402
from running import running_agent  # noqa: E402
from scheduler.gpu_jobs import run_jobs  # noqa: E402

SOLO_S, ROUNDS = 10, 2
PAIRS = (((4096, 4096), 20), ((512, 512), 60), ((4096, 512), 20))


def shares(rounds: list[list[float]], solo: list[float]) -> list[float]:
    """Each job's mean throughput over its solo throughput."""
    return [mean(rates) / alone for rates, alone in zip(zip(*rounds, strict=True), solo, strict=True)]


def told(parts: list[float]) -> str:
    return f"{sum(parts):.2f} ({' + '.join(f'{part:.2f}' for part in parts)})"


def main() -> None:
    if shutil.which("nvidia-smi") is None or importlib.util.find_spec("torch") is None:
        print("left out: two jobs on one GPU need a GPU and torch")
        return
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/scheduler.sock"
        with running_agent("--scheduler", environment={"GPUCOMMONS_SCHEDULER_SOCKET": path}):
            solo = {size: run_jobs("none", (size,), SOLO_S)[0] for size in (4096, 512)}
            rows = []
            for pair, seconds in PAIRS:
                rounds = [(run_jobs("none", pair, seconds), run_jobs(path, pair, seconds)) for _ in range(ROUNDS)]
                alone = [solo[size] for size in pair]
                driver, ours = (shares([each[way] for each in rounds], alone) for way in range(2))
                ratio = sum(ours) / sum(driver)
                rows.append((f"{pair[0]} + {pair[1]}", str(seconds), told(driver), told(ours), f"{ratio:.2f}"))
    show(
        "Two jobs on one GPU, throughput over solo (bars: 0.97 for 4096 + 4096, 0.95 of the driver for 512 + 512)",
        ("pair", "seconds", "driver's time-slicing", "under the agent", "agent / driver"),
        rows,
    )


if __name__ == "__main__":
    main()
