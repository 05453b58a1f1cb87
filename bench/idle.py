"""The cost of an idle agent: CPU and memory over a minute at the default interval.

The agent and Debian's node_exporter are scraped every 15 s, as by Prometheus. node_exporter works during the scrape,
the agent every second.
"""

import os
import shutil
import subprocess
import sys
import time
import urllib.request
from functools import partial
from pathlib import Path

from bench.table import show
from prometheus_server import answers, free_port
from waiting import until

SECONDS = 60
SCRAPE_EVERY_S = 15
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def rss_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def scrape(port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        answer.read()


def main() -> None:
    commands = {"gpucommons": [sys.executable, "-m", "gpucommons", "up", "--listen", "127.0.0.1:{port}"]}
    if shutil.which("prometheus-node-exporter"):
        commands["node_exporter"] = ["prometheus-node-exporter", "--web.listen-address=127.0.0.1:{port}"]
    running = {}
    for name, command in commands.items():
        port = free_port()
        arguments = [part.format(port=port) for part in command]
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        running[name] = (port, process)
    try:
        for port, _ in running.values():
            until(partial(answers, f"http://127.0.0.1:{port}/metrics"), f"an answer on port {port}")
        before = {name: cpu_seconds(process.pid) for name, (_, process) in running.items()}
        begun = time.monotonic()
        while time.monotonic() - begun < SECONDS:
            time.sleep(SCRAPE_EVERY_S)
            for port, _ in running.values():
                scrape(port)
        elapsed = time.monotonic() - begun
        rows = []
        for name, (_, process) in running.items():
            used = cpu_seconds(process.pid) - before[name]
            rows.append((name, f"{100 * used / elapsed:.2f} %", f"{rss_mb(process.pid):.0f} MB"))
    finally:
        for _, process in running.values():
            process.terminate()
            process.wait()
    show(
        f"Idle cost over {SECONDS} s, scraped every {SCRAPE_EVERY_S} s (bar: 0.35 % of a core and 48 MB)",
        ("program", "CPU of one core", "RSS"),
        rows,
    )


if __name__ == "__main__":
    main()
