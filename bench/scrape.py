"""Scrapes per second and their p99, with wrk and 8 connections: the agent, Debian's node_exporter, and
prometheus_client's HTTP server with the agent's samples. Rounds are interleaved; ratios are of medians. A second table
shows the effect of 200 clients that send requests and do not read the responses.
"""

import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.table import show
from prometheus_server import answers, free_port
from waiting import until

ROUNDS = 5
SECONDS = 2
CONNECTIONS = 8
SLOW_READERS = 200
SETTLE_S = 1.5
BAR = 110
_UNIT_MS = {"us": 0.001, "ms": 1.0, "s": 1000.0}
_GZIP = "Accept-Encoding: gzip"


class Measured(NamedTuple):
    per_second: float
    p99_ms: float


def median(rounds: list[Measured]) -> Measured:
    return Measured(
        statistics.median(result.per_second for result in rounds), statistics.median(result.p99_ms for result in rounds)
    )


def wrk(port: int, *headers: str) -> Measured:
    arguments = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}s", "--latency"]
    for header in headers:
        arguments += ["-H", header]
    done = subprocess.run([*arguments, f"http://127.0.0.1:{port}/metrics"], capture_output=True, text=True, check=True)
    rate = re.search(r"Requests/sec:\s+([0-9.]+)", done.stdout)
    p99 = re.search(r"99%\s+([0-9.]+)(us|ms|s)", done.stdout)
    if rate is None or p99 is None or "Non-2xx" in done.stdout:
        raise SystemExit(f"wrk could not measure port {port}:\n{done.stdout}")
    return Measured(float(rate.group(1)), float(p99.group(1)) * _UNIT_MS[p99.group(2)])


@contextmanager
def program(*command: str) -> Iterator[int]:
    """Runs a command on a free port, which replaces {port}."""
    port = free_port()
    process = subprocess.Popen(
        [part.format(port=port) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: answers(f"http://127.0.0.1:{port}/metrics"), f"an answer on port {port}")
        yield port
    finally:
        process.terminate()
        process.wait()


@contextmanager
def slow_readers(port: int) -> Iterator[None]:
    """Clients that request more than the kernel buffers and read nothing."""
    peers = []
    try:
        for _ in range(SLOW_READERS):
            peer = socket.socket()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            peer.connect(("127.0.0.1", port))
            peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 60)
            peers.append(peer)
        # Let their buffers fill first: the time after that is measured.
        time.sleep(SETTLE_S)
        yield
    finally:
        for peer in peers:
            peer.close()


def size_of(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return len(answer.read())


def compare(ports: dict[str, int]) -> None:
    plain: dict[str, list[Measured]] = defaultdict(list)
    compressed: dict[str, list[Measured]] = defaultdict(list)
    for _ in range(ROUNDS):
        for name, port in ports.items():
            plain[name].append(wrk(port))
            compressed[name].append(wrk(port, _GZIP))
    base = "node_exporter" if "node_exporter" in ports else "prometheus_client"
    rows = []
    for name, port in ports.items():
        as_text, as_gzip = median(plain[name]), median(compressed[name])
        rows.append(
            (
                name,
                f"{size_of(port):,}",
                f"{as_text.per_second:,.0f}",
                f"{as_text.p99_ms:.2f} ms",
                f"{as_text.per_second / median(plain[base]).per_second:.1f}x",
                f"{as_gzip.per_second:,.0f}",
                f"{as_gzip.p99_ms:.2f} ms",
                f"{as_gzip.per_second / median(compressed[base]).per_second:.1f}x",
            )
        )
    show(
        f"Scrapes with {CONNECTIONS} connections, {ROUNDS} interleaved rounds (bar: {BAR}x node_exporter)",
        ("program", "bytes", "plain/s", "p99", f"of {base}", "gzip/s", "p99", f"of {base}"),
        rows,
    )


def harm(port: int) -> None:
    without, with_slow = [], []
    for _ in range(ROUNDS):
        without.append(wrk(port))
        with slow_readers(port):
            with_slow.append(wrk(port))
    alone, crowded = median(without), median(with_slow)
    show(
        f"The same with {SLOW_READERS} clients that do not read (bar: 2x the p99)",
        ("", "scrapes/s", "p99", "p99 of alone"),
        [
            ("alone", f"{alone.per_second:,.0f}", f"{alone.p99_ms:.2f} ms", "1.00x"),
            (
                "with slow readers",
                f"{crowded.per_second:,.0f}",
                f"{crowded.p99_ms:.2f} ms",
                f"{crowded.p99_ms / alone.p99_ms:.2f}x",
            ),
        ],
    )


def main() -> None:
    if shutil.which("wrk") is None:
        raise SystemExit("needs wrk (see scripts/install-test-programs)")
    with ExitStack() as stack:
        agent = (sys.executable, "-m", "gpucommons", "up", "--listen", "127.0.0.1:{port}")
        ports = {"gpucommons": stack.enter_context(program(*agent))}
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        samples = Path(folder) / "samples.txt"
        with urllib.request.urlopen(f"http://127.0.0.1:{ports['gpucommons']}/metrics", timeout=10) as answer:
            samples.write_bytes(answer.read())
        if shutil.which("prometheus-node-exporter"):
            exporter = ("prometheus-node-exporter", "--web.listen-address=127.0.0.1:{port}")
            ports["node_exporter"] = stack.enter_context(program(*exporter))
        client = (sys.executable, "-m", "bench.client_server", "{port}", str(samples))
        ports["prometheus_client"] = stack.enter_context(program(*client))
        compare(ports)
        harm(ports["gpucommons"])


if __name__ == "__main__":
    main()
