"""Orders of nvsharectl and xpusharectl: how many of root's are lost, and how many of other roots are obeyed.

`python -m bench.orders TOOL...`, as root, with the programs that the builds of nvshare (both versions) and XPUShare
make. They send one frame and exit, mostly before the agent can look at them. The agent runs as root, and as the
confined service: with a user of its own and the one capability of deploy/systemd/gpucommons.service. Each runs on the
idle machine and next to 20 busy loops. Bar: none lost of those of root, none obeyed of those of root in
a user namespace or a pid namespace, in the same cgroup and network namespace.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.table import show

ORDERS, FOREIGN_ORDERS, AT_ONCE, LOOPS = 1000, 100, 4, 20
SOCKETS = ("/run/nvshare/scheduler.sock", "/run/xpushare/scheduler.sock")
USER = 61_500
# DAC_READ_SEARCH is for a Python below a directory of root. It gives no right to perf events.
CAPABILITIES = "-all,+perfmon,+dac_read_search"
CONFINED = (
    *("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs"),
    *(f"--bounding-set={CAPABILITIES}", f"--inh-caps={CAPABILITIES}", f"--ambient-caps={CAPABILITIES}"),
)
AGENTS: dict[str, Sequence[str]] = {"root": (), "confined": CONFINED}
ELSEWHERE = {
    "user namespace": ("unshare", "--user", "--map-root-user"),
    "pid namespace": ("unshare", "--pid", "--fork"),
}
OBEYED = "SET_TQ by uid 0"


def main() -> None:
    """The sockets are those of the tools: hence a /run, and a network, of our own."""
    if sys.argv[1] != "--inside":
        own = 'mount -t tmpfs none /run && ip link set lo up && exec "$@"'
        again = [sys.executable, "-m", "bench.orders", "--inside", *sys.argv[1:]]
        os.execvp("unshare", ["unshare", "--mount", "--net", "sh", "-c", own, "sh", *again])
    with TemporaryDirectory() as directory:
        os.chmod(directory, 0o711)
        measure([Path(tool).resolve() for tool in sys.argv[2:]], Path(directory))


def measure(tools: Sequence[Path], directory: Path) -> None:
    rows: list[list[str | int]] = []
    for agent, prefix in AGENTS.items():
        with running(prefix, directory / f"{agent}.log") as obeyed:
            for load in (0, LOOPS):
                for tool in tools:
                    with busy(load):
                        lost = ORDERS - sent(tool, (), ORDERS, obeyed, ORDERS)
                        wrong = [sent(tool, place, FOREIGN_ORDERS, obeyed, 0) for place in ELSEWHERE.values()]
                    rows.append([tool.name, agent, load, f"{lost} of {ORDERS}", *wrong])
                    print(*rows[-1], flush=True)
    header = ["tool", "agent", "busy loops", "lost", *(f"obeyed of {FOREIGN_ORDERS}, {name}" for name in ELSEWHERE)]
    show("Orders of nvsharectl and xpusharectl", header, rows)
    sys.exit(0 if all(row[3] == f"0 of {ORDERS}" and not any(row[4:]) for row in rows) else 1)


class Obeyed:
    """How many orders the agent has carried out, by its log."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def count(self) -> int:
        return self._log.read_text(errors="replace").count(OBEYED)


@contextmanager
def running(prefix: Sequence[str], log: Path) -> Iterator[Obeyed]:
    """The agent, with its log at `log`."""
    uid = USER if prefix else 0
    state = log.with_suffix(".state")
    for place in (state, *(Path(path).parent for path in SOCKETS)):
        place.mkdir(parents=True, exist_ok=True)
        os.chown(place, uid, uid)
        place.chmod(0o711)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "RUNTIME_DIRECTORY": str(state),
        "STATE_DIRECTORY": str(state),
        "GPUCOMMONS_LEDGER_ENABLED": "false",
        "GPUCOMMONS_SCHEDULER_SOCKET": SOCKETS[0],
        "GPUCOMMONS_SCHEDULER_XPUSHARE_SOCKET": SOCKETS[1],
        "GPUCOMMONS_LEASES_ENABLED": "false",
    }
    command = [*prefix, sys.executable, "-m", "gpucommons", "up", "--scheduler", "--listen", "127.0.0.1:9460"]
    with log.open("wb") as out:
        agent = subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd="/")
    try:
        deadline_s = time.monotonic() + 60
        while not all(Path(path).is_socket() for path in SOCKETS):
            if agent.poll() is not None or time.monotonic() > deadline_s:
                raise SystemExit(f"the agent does not serve its sockets:\n{log.read_text()}")
            time.sleep(0.1)
        if "are not recorded" in log.read_text():
            print(log.read_text())
        yield Obeyed(log)
    finally:
        agent.terminate()
        agent.wait(timeout=30)
        for path in SOCKETS:
            Path(path).unlink(missing_ok=True)


@contextmanager
def busy(loops: int) -> Iterator[None]:
    started = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(loops)]
    try:
        yield
    finally:
        for loop in started:
            loop.kill()
            loop.wait()


def sent(tool: Path, prefix: Sequence[str], count: int, obeyed: Obeyed, expected: int) -> int:
    """Sends so many orders; returns how many were carried out. Waits for those that are expected."""
    before = obeyed.count()
    numbers = "\n".join(str(number) for number in range(1, count + 1))
    done = subprocess.run(
        ["xargs", f"--max-procs={AT_ONCE}", "--max-args=1", *prefix, str(tool), "-T"],
        input=numbers,
        text=True,
        capture_output=True,
    )
    printed = (done.stdout + done.stderr).count("Successfully set")
    if done.returncode != 0 or printed != count:
        raise SystemExit(f"{tool.name}: {printed} of {count} orders were sent: {done.stderr[-500:]}")
    deadline_s = time.monotonic() + (20 if expected else 1)
    while obeyed.count() - before < (expected or count) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return obeyed.count() - before


if __name__ == "__main__":
    main()
