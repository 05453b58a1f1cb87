"""An owner that keeps starting CUDA programs, next to a trainer of another owner, on a real GPU.

`python -m bench.churn [EVERY/LIVES ...] [--seconds 30]` as root on a machine with a GPU, torch and transformers. A
pattern such as 0.5/2 starts a program every 0.5 s, each of which is killed 2 s after its start. The programs
(tests/scheduler/driver_program.py) fill the GPU with kernels from 0.2 s after their start on. Each pattern runs for a
third of its seconds by the driver alone and for two thirds under the agent, from the moment in which it is switched on.
"""

import argparse
import importlib.util
import pwd
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.real_programs import at_work, real_programs
from bench.real_work import SETTLE_S, SOLO_S, USERS, add_users, order, work
from bench.table import show
from running import running_agent

PROGRAM = Path(__file__).resolve().parents[1] / "tests" / "scheduler" / "driver_program.py"
PATTERNS = ("0.5/2", "1/4", "0.5/10", "2/4", "5/10")
OFF_PART, ON_PART = 1 / 3, 2 / 3


class Churn(threading.Thread):
    """Starts a program every so many seconds, and ends each when it has lived for so long."""

    def __init__(self, every_s: float, lives_s: float, counter: Path) -> None:
        super().__init__(daemon=True)
        self._every_s, self._lives_s = every_s, lives_s
        self._counter = counter
        self._user = pwd.getpwnam(USERS[1])
        self._ended = threading.Event()
        self.started = 0

    def run(self) -> None:
        living: list[tuple[float, subprocess.Popen[bytes]]] = []
        start_s = time.monotonic()
        while not self._ended.wait(0.01):
            now_s = time.monotonic()
            if now_s >= start_s:
                living.append((now_s + self._lives_s, self._start()))
                start_s += self._every_s
            while living and living[0][0] <= now_s:
                _kill(living.pop(0)[1])
        for _, process in living:
            _kill(process)

    def _start(self) -> "subprocess.Popen[bytes]":
        self.started += 1
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), str(self._counter)],
            start_new_session=True,
            user=self._user.pw_uid,
            group=self._user.pw_gid,
            cwd="/tmp",
        )

    def end(self) -> None:
        self._ended.set()
        self.join()


def _kill(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()


@contextmanager
def churning(pattern: str, directory: Path) -> Iterator[Churn]:
    every_s, _, lives_s = pattern.partition("/")
    counter = directory / "counter"
    counter.write_bytes(bytes(8))
    counter.chmod(0o666)
    churn = Churn(float(every_s), float(lives_s), counter)
    churn.start()
    try:
        yield churn
    finally:
        churn.end()


def main() -> None:
    if shutil.which("nvidia-smi") is None or importlib.util.find_spec("transformers") is None:
        print("skipped: bench.churn needs a GPU, torch and transformers")
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", default=PATTERNS)
    parser.add_argument("--seconds", type=float, default=30.0, help="for each pattern")
    asked = parser.parse_args()
    add_users()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        environment = {"GPUCOMMONS_SCHEDULER_SOCKET": f"{name}/scheduler.sock"}
        with (
            real_programs(["train"], directory, [USERS[0]]) as programs,
            running_agent("--scheduler", "--share", environment=environment),
            at_work(programs),
        ):
            time.sleep(SETTLE_S)
            solo = work(programs, SOLO_S)[0].rate
            for pattern in asked.patterns:
                order(environment, "off")
                with churning(pattern, directory) as churn:
                    time.sleep(SETTLE_S)
                    by_driver = work(programs, OFF_PART * asked.seconds)[0].rate / solo
                    order(environment, "on")
                    by_agent = work(programs, ON_PART * asked.seconds)[0].rate / solo
                rows.append([pattern, f"{by_driver:.2f}", f"{by_agent:.2f}", str(churn.started)])
                print(*rows[-1], file=sys.stderr, flush=True)
    show(
        "A trainer next to an owner that keeps starting programs", ["every/lives, s", "driver", "agent", "starts"], rows
    )


if __name__ == "__main__":
    main()
