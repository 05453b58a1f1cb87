"""Two torch jobs on one GPU: throughput relative to running alone, with the driver's time-slicing and with the agent.

`python -m bench.sharing` on a machine with a GPU and torch. The jobs are bf16 matrix products: 4096 keeps the GPU
busy, 512 waits for its launches and so for the CPU. Rounds are interleaved and averaged. The jobs of each round are
new to the agent, so its result includes the 3 to 4 s of running alone in which it measures their demand.
"""

import importlib.util
import shutil
import tempfile
from statistics import mean

from bench.table import show
from running import running_agent
from scheduler.gpu_jobs import run_jobs

SOLO_S, ROUNDS = 10, 2
PAIRS = (((4096, 4096), 20), ((512, 512), 60), ((4096, 512), 20))


def shares(rounds: list[list[float]], solo: list[float]) -> list[float]:
    """Each job's mean throughput over its solo throughput."""
    return [mean(rates) / alone for rates, alone in zip(zip(*rounds, strict=True), solo, strict=True)]


def sum_text(parts: list[float]) -> str:
    return f"{sum(parts):.2f} ({' + '.join(f'{part:.2f}' for part in parts)})"


def main() -> None:
    if shutil.which("nvidia-smi") is None or importlib.util.find_spec("torch") is None:
        print("skipped: bench.sharing needs a GPU and torch")
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
                rows.append((f"{pair[0]} + {pair[1]}", str(seconds), sum_text(driver), sum_text(ours), f"{ratio:.2f}"))
    show(
        "Two jobs on one GPU, throughput over solo (bars: 0.97 for 4096 + 4096, 0.95 of the driver for 512 + 512)",
        ("pair", "seconds", "driver's time-slicing", "under the agent", "agent / driver"),
        rows,
    )


if __name__ == "__main__":
    main()
