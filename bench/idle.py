"""What the agent costs when nobody looks: CPU and memory after a minute at the default interval.

Both it and Debian's node_exporter are scraped every 15 s, as a Prometheus would; node_exporter does its
work in the scrape, the agent does it each second.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from bench.table import show

SECONDS = 60
SCRAPE_EVERY_S = 15
_TICKS = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def rss_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def scrape(port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        answer.read()


def wait_for(port: int) -> None:
    for _ in range(200):
        try:
            return scrape(port)
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"nothing answers on port {port}")


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
            wait_for(port)
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
        f"Idle cost over {SECONDS} s, scraped every {SCRAPE_EVERY_S} s (bar: 1 % of a core and 60 MB)",
        ("program", "CPU of one core", "RSS"),
        rows,
    )


if __name__ == "__main__":
    main()
