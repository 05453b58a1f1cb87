"""Two torch jobs on one GPU: each one's throughput over its solo throughput, left to the driver and under the agent.

`python -m bench.sharing` on a machine with a GPU and torch. The jobs are bf16 matrix products: 4096 keeps the GPU
busy, 512 waits for its launches, and so for the CPU: rounds are interleaved, and the ratio is the median of the rounds'
own. Each round's jobs are new to the agent, so what it takes to learn their demand is in its figure.
"""

import importlib.util
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from bench.table import show  # noqa: E402
from running import running_agent  # noqa: E402
from scheduler.gpu_jobs import run_jobs  # noqa: E402

SOLO_S, PAIR_S, ROUNDS = 10, 20, 3
PAIRS = ((4096, 4096), (512, 512), (4096, 512))


def told(rounds: list[list[float]], solo: list[float]) -> str:
    """The median round's throughput over solo: the sum and its parts."""
    rates = sorted(rounds, key=sum)[len(rounds) // 2]
    shares = [rate / alone for rate, alone in zip(rates, solo, strict=True)]
    return f"{sum(shares):.2f} ({' + '.join(f'{share:.2f}' for share in shares)})"


def main() -> None:
    if shutil.which("nvidia-smi") is None or importlib.util.find_spec("torch") is None:
        print("left out: two jobs on one GPU need a GPU and torch")
        return
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/scheduler.sock"
        with running_agent("--scheduler", environment={"GPUCOMMONS_SCHEDULER_SOCKET": path}):
            solo = {size: run_jobs("none", (size,), SOLO_S)[0] for size in (4096, 512)}
            rows = []
            for pair in PAIRS:
                rounds = [(run_jobs("none", pair, PAIR_S), run_jobs(path, pair, PAIR_S)) for _ in range(ROUNDS)]
                ratio = statistics.median(sum(ours) / sum(driver) for driver, ours in rounds)
                alone = [solo[size] for size in pair]
                driver, ours = ([each[way] for each in rounds] for way in range(2))
                rows.append((f"{pair[0]} + {pair[1]}", told(driver, alone), told(ours, alone), f"{ratio:.2f}"))
    show(
        "Two jobs on one GPU, throughput over solo (bars: 0.97 for 4096 + 4096, 0.95 of the driver for 512 + 512)",
        ("pair", "driver's time-slicing", "under the agent", "agent / driver"),
        rows,
    )


if __name__ == "__main__":
    main()
