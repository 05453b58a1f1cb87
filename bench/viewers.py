"""What live viewers cost the agent: CPU above idle, and the scrape beside them, with 0 and 100 streams open.

The two are measured in turns on one agent that plays a node of 8 GPUs, scraped all the while.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Sequence

import aiohttp

from bench.idle import cpu_seconds, rss_mb
from bench.page import demo_agent
from bench.table import show

VIEWERS = 100
ROUNDS = 3
SECONDS = 10
SCRAPE_EVERY_S = 0.05


async def watch(session: aiohttp.ClientSession, url: str, received: list[int]) -> None:
    async with session.get(f"{url}/api/v1/stream") as answer:
        async for piece in answer.content.iter_any():
            received[0] += len(piece)


async def scrape(session: aiohttp.ClientSession, url: str, until_s: float) -> list[float]:
    times = []
    while time.monotonic() < until_s:
        begun = time.monotonic()
        async with session.get(f"{url}/metrics") as answer:
            await answer.read()
        times.append(time.monotonic() - begun)
        await asyncio.sleep(SCRAPE_EVERY_S)
    return times


async def measured(url: str, pid: int, viewers: int) -> tuple[float, list[float], float]:
    """Share of a core, the scrapes' times, and bytes a second for each viewer."""
    received = [0]
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        watching = [asyncio.create_task(watch(session, url, received)) for _ in range(viewers)]
        await asyncio.sleep(2)
        received[0] = 0
        before, begun = cpu_seconds(pid), time.monotonic()
        times = await scrape(session, url, begun + SECONDS)
        elapsed = time.monotonic() - begun
        used = (cpu_seconds(pid) - before) / elapsed
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
    return used, times, received[0] / elapsed / max(1, viewers)


def p99_ms(times: Sequence[float]) -> float:
    return 1000 * statistics.quantiles(times, n=100)[98]


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else VIEWERS
    used: dict[int, list[float]] = {0: [], count: []}
    times: dict[int, list[float]] = {0: [], count: []}
    rate = 0.0
    with demo_agent() as (url, pid):
        for _ in range(ROUNDS):
            for viewers in (0, count):
                share, scrapes, a_second = asyncio.run(measured(url, pid, viewers))
                used[viewers].append(share)
                times[viewers] += scrapes
                rate = a_second or rate
        memory = rss_mb(pid)
    idle, busy = statistics.median(used[0]), statistics.median(used[count])
    ratio = p99_ms(times[count]) / p99_ms(times[0])
    show(
        f"{count} live viewers, {ROUNDS} rounds of {SECONDS} s each way, scraped all the while",
        ("what", "0 viewers", f"{count} viewers", "difference", "bar"),
        [
            ("CPU of one core", f"{100 * idle:.1f} %", f"{100 * busy:.1f} %", f"{100 * (busy - idle):+.1f} %", "5 %"),
            (
                "scrape, median",
                f"{1000 * statistics.median(times[0]):.2f} ms",
                f"{1000 * statistics.median(times[count]):.2f} ms",
                "",
                "",
            ),
            ("scrape, p99", f"{p99_ms(times[0]):.2f} ms", f"{p99_ms(times[count]):.2f} ms", f"{ratio:.2f}x", "1.5x"),
            ("stream, each viewer", "", f"{rate / 1000:.1f} kB/s", "", ""),
            ("RSS of the agent", "", f"{memory:.0f} MB", "", ""),
        ],
    )


if __name__ == "__main__":
    main()
