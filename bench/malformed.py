"""Hand-offs and memory during a flood of malformed HTTP requests.

    python -m bench.malformed [SECONDS]

100 connections at a time send requests that no parser accepts. Hand-offs between two clients are measured without the
flood and during it. Bars: the agent below 100 MB, the slowest hand-off below 20 ms more than without the flood.
"""

import multiprocessing
import socket
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

from bench.handoff import build, measured
from bench.idle import rss_mb
from bench.table import show
from running import running_agent

SECONDS = 40
AT_ONCE, HANDOFFS = 100, 2000
MALFORMED = (
    b"GET /" + b"a" * 8000 + b" HTTP/9.9\r\n\r\n",
    b"\x00\xff" * 2000,
    b"GET / HTTP/1.1\r\nA" * 50,
    b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
)


def flood(port: int, sent: "Synchronized[int]") -> None:
    while True:
        peers = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(AT_ONCE)]
        for number, peer in enumerate(peers):
            with suppress(OSError):
                peer.sendall(MALFORMED[number % len(MALFORMED)])
        for peer in peers:
            with suppress(OSError):
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(4096):
                    pass
            peer.close()
        sent.value += AT_ONCE


def handoffs(program: Path, path: Path, seconds: float) -> dict[str, float]:
    """The median of the rounds for each percentile, and the slowest of all."""
    rounds, until_s = [], time.monotonic() + seconds
    while time.monotonic() < until_s:
        rounds.append(measured(program, "handoff", path, 2, HANDOFFS))
    found = {key: sorted(row[f"handoff.{key}"] for row in rounds)[len(rounds) // 2] for key in ("p50", "p99")}
    return {**found, "slowest": max(row["handoff.max"] for row in rounds), "count": HANDOFFS * len(rounds)}


def show_handoffs(title: str, rows: Sequence[tuple[str, dict[str, float], float]]) -> None:
    """Each row: when, the hand-offs, and the agent's memory in MB."""
    show(
        title,
        ("", "hand-offs", "p50, us", "p99, us", "slowest, ms", "RSS, MB"),
        [
            (
                name,
                f"{found['count']:,}",
                f"{found['p50']:.0f}",
                f"{found['p99']:,.0f}",
                f"{found['slowest'] / 1000:.1f}",
                f"{mb:.0f}",
            )
            for name, found, mb in rows
        ],
    )


def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as directory:
        program, path = build(Path(directory)), Path(directory) / "s.sock"
        environment = {"GPUCOMMONS_SCHEDULER_SOCKET": str(path), "NVSHARE_SCHEDULING_MODE": "serial"}
        with running_agent("--scheduler", environment=environment) as agent:
            port = urllib.parse.urlsplit(agent.url).port or 0
            before_mb = rss_mb(agent.process.pid)
            alone = handoffs(program, path, seconds / 4)
            sent: Synchronized[int] = multiprocessing.Value("q", 0)
            attacker = multiprocessing.Process(target=flood, args=(port, sent), daemon=True)
            attacker.start()
            try:
                flooded = handoffs(program, path, seconds)
            finally:
                attacker.terminate()
                attacker.join()
            after_mb = rss_mb(agent.process.pid)
    show_handoffs(
        f"{sent.value:,} malformed requests in {seconds:g} s (bars: 100 MB, and 20 ms for the slowest)",
        [("alone", alone, before_mb), ("flooded", flooded, after_mb)],
    )


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS)
