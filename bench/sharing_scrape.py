"""The effect of scheduler clients on scrapes and of scrapes on clients, with the whole agent in one process.

    python -m bench.sharing_scrape [ROUNDS]

First the time of `/metrics` with 500 clients, for successive scrapes and for the first scrape of each snapshot, which
renders it. Then hand-offs among 2,000 clients, alternately without scrapes and with one every 100 ms. The result is
what scrapes add to the slowest hand-off; delays of the machine itself are in both.
"""

import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.handoff import build, measured
from bench.table import show
from running import RunningAgent, running_agent
from waiting import until

ROUNDS = 7
SCRAPED, CROWD = 500, 2000
SCRAPES, HANDOFFS = 300, 2000
PAUSE_S = 0.1
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
# Longer than the agent's interval, so that each scrape reads a new snapshot.
FIRSTS, NEXT_SNAPSHOT_S = 10, 1.07


def shown_clients(metrics: str) -> int:
    """Those beyond the limit of series of their user are in one series, whose value is their number."""
    found = re.findall(r"^nvshare_client_info\{.*\} (\d+)$", metrics, re.MULTILINE)
    return sum(map(int, found))


@contextmanager
def standing_by(program: Path, path: Path, agent: RunningAgent, count: int) -> Iterator[None]:
    """This many registered clients, once the agent reports them."""
    with subprocess.Popen([str(program), "idle", str(path), "2", str(count), "600"], stdout=subprocess.PIPE) as load:
        assert load.stdout is not None
        load.stdout.readline()
        until(lambda: shown_clients(agent.get("/metrics")[1]) >= count, "all are shown")
        try:
            yield
        finally:
            load.kill()


@contextmanager
def scraping(port: int | None) -> Iterator[None]:
    """Reads and discards, so that the scraper takes little CPU time from the agent."""
    enough, buffer = threading.Event(), bytearray(1 << 20)

    def scrape() -> None:
        while not enough.wait(PAUSE_S):
            with socket.create_connection(("127.0.0.1", port or 0)) as peer:
                peer.sendall(REQUEST)
                while peer.recv_into(buffer):
                    pass

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def first_scrape_ms(program: Path, port: int | None) -> float:
    time.sleep(NEXT_SNAPSHOT_S)
    return measured(program, "http", "-", 1, port, 1)["http.max"] / 1000


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        program, path = build(Path(directory)), Path(directory) / "s.sock"
        environment = {
            "GPUCOMMONS_SCHEDULER_SOCKET": str(path),
            "GPUCOMMONS_SCHEDULER_MAX_CONNECTIONS_PER_UID": str(2 * CROWD),
            "NVSHARE_SCHEDULING_MODE": "serial",
        }
        with running_agent("--scheduler", environment=environment) as agent:
            port = urllib.parse.urlsplit(agent.url).port
            with standing_by(program, path, agent, SCRAPED):
                scrapes = [measured(program, "http", "-", 1, port, SCRAPES) for _ in range(rounds)]
                first_ms = statistics.median(first_scrape_ms(program, port) for _ in range(FIRSTS))
            found: dict[str, list[dict[str, float]]] = {"alone": [], "scraped": []}
            with standing_by(program, path, agent, CROWD):
                for _ in range(rounds):
                    found["alone"].append(measured(program, "handoff", path, 2, HANDOFFS))
                    with scraping(port):
                        found["scraped"].append(measured(program, "handoff", path, 2, HANDOFFS))
    p99_ms = [row["http.p99"] / 1000 for row in scrapes]
    show(
        f"/metrics with {SCRAPED} clients, {scrapes[0]['body.bytes'] / 1e6:.1f} MB, {rounds} x {SCRAPES} scrapes",
        ["p50", "p99", "bar", "worst round's p99", "first of a snapshot"],
        [
            (
                f"{statistics.median(row['http.p50'] for row in scrapes) / 1000:.2f} ms",
                f"{statistics.median(p99_ms):.2f} ms",
                "p99 at most 5 ms",
                f"{max(p99_ms):.2f} ms",
                f"{first_ms:.1f} ms",
            )
        ],
    )
    rows = []
    for key in ("p50", "p99", "p999", "max"):
        alone, scraped = (statistics.median(row[f"handoff.{key}"] for row in found[way]) for way in found)
        bar = "at most 2 ms more" if key == "max" else ""
        rows.append((key, f"{alone:,.0f} us", f"{scraped:,.0f} us", f"{scraped - alone:+,.0f} us", bar))
    show(
        f"Hand-offs among {CROWD:,} clients, median of {rounds} interleaved rounds of {HANDOFFS:,}",
        ["", "alone", f"a scrape every {PAUSE_S * 1000:.0f} ms", "added", "bar"],
        rows,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
