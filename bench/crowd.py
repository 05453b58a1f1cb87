"""Hand-offs, status and memory with thousands of clients whose names are as long as the protocol allows.

    python -m bench.crowd [CLIENTS [SECONDS]]

Two further clients hand the GPU over, first alone and then while a loop requests `status` on the control socket
without a pause. As root: other users have fewer connections and requests. One owner gets 3,840 of the 4,096 slots: the
others are reserved. Bars: 200 MB, and 8 MB of `/metrics`.
"""

import json
import multiprocessing
import resource
import socket
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from multiprocessing.queues import Queue
from pathlib import Path

from bench.handoff import build
from bench.idle import rss_mb
from bench.malformed import handoffs, show_handoffs
from gpucommons.config.runtime_directory import control_path
from running import running_agent
from scheduler.served import Scripted

CLIENTS, SECONDS = 3800, 30.0


def request_status(path: str, took_s: "Queue[float]") -> None:
    while True:
        begun_s = time.monotonic()
        with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
            connection.settimeout(30)
            connection.connect(control_path(path))
            connection.sendall(json.dumps({"command": "status"}).encode() + b"\n")
            if connection.makefile("rb").readline():
                took_s.put(time.monotonic() - begun_s)


def main(clients: int, seconds: float) -> None:
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most_files, 2 * clients + 1024), most_files))
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        program, path = build(Path(directory)), Path(directory) / "s.sock"
        environment = {"GPUCOMMONS_SCHEDULER_SOCKET": str(path), "NVSHARE_SCHEDULING_MODE": "serial"}
        agent = stack.enter_context(running_agent("--scheduler", environment=environment))
        before_mb = rss_mb(agent.process.pid)
        for number in range(clients):
            client = Scripted(str(path)).register(f"{number:05}" + "p" * 249, "n" * 254)
            stack.enter_context(client.socket)
        body_mb = len(agent.get("/metrics")[1]) / 1e6
        with_clients_mb = rss_mb(agent.process.pid)
        alone = handoffs(program, path, seconds / 3)
        took_s: Queue[float] = multiprocessing.Queue()
        asking = multiprocessing.Process(target=request_status, args=(str(path), took_s), daemon=True)
        asking.start()
        try:
            asked = handoffs(program, path, seconds)
        finally:
            asking.terminate()
            asking.join()
        answers = []
        while not took_s.empty():
            answers.append(took_s.get())
        after_mb = rss_mb(agent.process.pid)
    slowest_s = max(answers, default=float("nan"))
    show_handoffs(
        f"{clients:,} clients with names of 254 bytes; /metrics {body_mb:.1f} MB; RSS without them {before_mb:.0f} MB; "
        f"{len(answers):,} answers to status in {seconds:g} s, the slowest after {slowest_s:.2f} s",
        [("alone", alone, with_clients_mb), ("with a loop of status", asked, after_mb)],
    )


if __name__ == "__main__":
    given = sys.argv[1:]
    main(int(given[0]) if given else CLIENTS, float(given[1]) if given[1:] else SECONDS)
