"""The cost of live viewers: CPU of the agent above idle, and scrape times, with 0 and with 100 open streams.

The two are measured alternately on one agent that simulates 8 GPUs and is scraped throughout. The viewers run in a
separate process, so that their work does not delay the scrapes.
"""

import asyncio
import multiprocessing
import statistics
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.sharedctypes import Synchronized

import aiohttp

from bench.idle import cpu_seconds, rss_mb
from bench.table import show
from browser import demo_process

VIEWERS = 100
ROUNDS = 6
SECONDS = 6
SCRAPE_EVERY_S = 0.02


async def _watch(session: aiohttp.ClientSession, url: str, received: "Synchronized[int]") -> None:
    async with session.get(f"{url}/api/v1/stream") as answer:
        async for piece in answer.content.iter_any():
            received.value += len(piece)


async def _watch_all(url: str, count: int, received: "Synchronized[int]") -> None:
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        await asyncio.gather(*(_watch(session, url, received) for _ in range(count)))


def _view(url: str, count: int, received: "Synchronized[int]") -> None:
    asyncio.run(_watch_all(url, count, received))


@contextmanager
def viewers(url: str, count: int) -> Iterator["Synchronized[int]"]:
    """Opens `count` streams; yields the number of bytes received so far."""
    received: Synchronized[int] = multiprocessing.Value("q", 0)
    process = multiprocessing.Process(target=_view, args=(url, count, received), daemon=True)
    if count:
        process.start()
    try:
        yield received
    finally:
        if count:
            process.terminate()
            process.join()


def scrape(url: str, until_s: float) -> list[float]:
    times = []
    while time.monotonic() < until_s:
        begun = time.monotonic()
        urllib.request.urlopen(f"{url}/metrics", timeout=10).read()
        times.append(time.monotonic() - begun)
        time.sleep(SCRAPE_EVERY_S)
    return times


def measured(url: str, pid: int, count: int) -> tuple[float, list[float], float]:
    """Share of a core, the times of the scrapes, and bytes per second per viewer."""
    with viewers(url, count) as received:
        time.sleep(2)
        first, before, begun = received.value, cpu_seconds(pid), time.monotonic()
        times = scrape(url, begun + SECONDS)
        elapsed = time.monotonic() - begun
        return (cpu_seconds(pid) - before) / elapsed, times, (received.value - first) / elapsed / max(1, count)


def p99_ms(times: Sequence[float]) -> float:
    return 1000 * statistics.quantiles(times, n=100)[98]


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else VIEWERS
    used: dict[int, list[float]] = {0: [], count: []}
    times: dict[int, list[float]] = {0: [], count: []}
    rate = 0.0
    with demo_process() as (url, pid):
        for _ in range(ROUNDS):
            for number in (0, count):
                share, scrapes, a_second = measured(url, pid, number)
                used[number].append(share)
                times[number] += scrapes
                rate = a_second or rate
        memory = rss_mb(pid)
    idle, busy = statistics.median(used[0]), statistics.median(used[count])
    ratio = p99_ms(times[count]) / p99_ms(times[0])
    medians = [f"{1000 * statistics.median(times[number]):.2f} ms" for number in (0, count)]
    show(
        f"{count} live viewers, {ROUNDS} rounds of {SECONDS} s each, scraped throughout",
        ("what", "0 viewers", f"{count} viewers", "difference", "bar"),
        [
            ("CPU of one core", f"{100 * idle:.1f} %", f"{100 * busy:.1f} %", f"{100 * (busy - idle):+.1f} %", "5 %"),
            ("scrape, median", *medians, "", ""),
            ("scrape, p99", f"{p99_ms(times[0]):.2f} ms", f"{p99_ms(times[count]):.2f} ms", f"{ratio:.2f}x", "1.5x"),
            ("stream, each viewer", "", f"{rate / 1000:.1f} kB/s", "", ""),
            ("RSS of the agent", "", f"{memory:.0f} MB", "", ""),
        ],
    )


if __name__ == "__main__":
    main()
