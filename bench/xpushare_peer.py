"""XPUShare's scheduler and the agent, each driven by the same client: memory of the running clients, and the log.

`python -m bench.xpushare_peer SCHEDULER`, as root, with `xpushare-scheduler` or, of nvshare's version 2,
`nvshare-scheduler`, as their builds make them. A fake driver has one GPU. The client allocates 3 GiB of managed
memory; its process uses 3.5 GiB. Each scheduler runs alone, with the same variables, in a network namespace and a root
of its own. Bar: no difference.
"""

import http.client
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from bench.inside import logged_program, run_inside
from bench.table import show
from fakes.nvml.build import build
from fakes.nvml.control import FakeNvml, process
from parsing import Series, parsed
from scheduler.served import Scripted

GIB = 1 << 30
VARIABLES = {"METRICS_ENABLE": "1", "METRICS_ADDR": "127.0.0.1:9402", "MAX_RUNTIME_SEC": "60"}
FAMILIES = ("running_clients", "running_memory_bytes", "peak_running_memory_bytes", "memory_overloaded")
STEPS = ("registered", "running with 4 GiB", "running with 3 GiB", "released")
LOGGED = "Max runtime per task: 60 seconds"
WAIT_S = 30.0

Seen = dict[tuple[str, str], float | str]


def main() -> None:
    if len(sys.argv) == 2:
        run_inside("bench.xpushare_peer", sys.argv[1], within_s=200)
    compare(Path(sys.argv[1]), Path(sys.argv[2]))


def compare(program: Path, directory: Path) -> None:
    name = program.name.partition("-")[0]
    if name not in ("nvshare", "xpushare"):
        raise SystemExit(f"{program}: expected a program named nvshare-scheduler or xpushare-scheduler")
    fake = FakeNvml(directory / "driver", build(directory / "library"))
    fake.say("gpus 1", process(0, os.getpid(), 7 * GIB // 2))
    # The program's own libraries may be on the path of this script.
    libraries = f"{fake.environment()['LD_LIBRARY_PATH']}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    variables = {f"{name.upper()}_{variable}": value for variable, value in VARIABLES.items()}
    environment = {**os.environ, **fake.environment(), **variables, "LD_LIBRARY_PATH": libraries}
    own = {"PYTHONPATH": os.pathsep.join(sys.path), "GPUCOMMONS_LEDGER_ENABLED": "false"}
    agent = [sys.executable, "-m", "gpucommons", "up", "--scheduler", "--listen", "127.0.0.1:9460"]
    theirs = drive(name, [str(program)], environment, directory / "peer.log")
    ours = drive(name, agent, {**environment, **own}, directory / "agent.log")
    rows: list[list[object]] = [[*key, theirs[key], ours.get(key), theirs[key] == ours.get(key)] for key in theirs]
    show(f"{program.name} and the agent", ["step", "metric or log", name, "agent", "same"], rows)
    sys.exit(0 if all(row[-1] for row in rows) else 1)


def drive(name: str, command: list[str], environment: Mapping[str, str], log: Path) -> Seen:
    socket = f"/var/run/{name}/scheduler.sock"
    seen: Seen = {}
    with logged_program(command, environment, log):
        client = connect(socket)
        for step in STEPS:
            if step == "registered":
                client.register("pod", "ns", gpu="0")
            elif step == "running with 4 GiB":
                client.ask().granted().report(4 * GIB)
            elif step == "running with 3 GiB":
                client.report(3 * GIB)
            else:
                client.release()
            for metric, value in settled(name).items():
                seen[step, metric] = value
    Path(socket).unlink(missing_ok=True)
    seen["start", LOGGED] = LOGGED in log.read_text(errors="replace")
    return seen


def connect(socket: str) -> Scripted:
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            scrape()
            return Scripted(socket)
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)


def settled(name: str) -> Mapping[str, float]:
    """The values two seconds later: longer than either takes to read its state."""
    time.sleep(2.0)
    sums: dict[str, float] = {}
    for (metric, _), value in scrape().items():
        if metric in {f"{name}_scheduler_{family}" for family in FAMILIES}:
            sums[metric] = sums.get(metric, 0.0) + value
    return sums


def scrape() -> Series:
    connection = http.client.HTTPConnection("127.0.0.1", 9402, timeout=10)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        if response.status != 200:
            raise OSError(f"status {response.status}")
        return parsed(response.read().decode())
    finally:
        connection.close()


if __name__ == "__main__":
    main()
