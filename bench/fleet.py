"""The view of a fleet of 200 and of 1,000 nodes with 8 GPUs each, in a real Prometheus and a real Chromium.

    python -m bench.fleet [200 | 1000]

Of 200 nodes: the agent's document (queries, view and encoding), the first paint of the grid after it, the refresh, and
frames while scrolling from top to bottom. Of 1,000 nodes: the document and the agent's memory.
"""

import json
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, CDPSession, Page

from bench.idle import cpu_seconds, rss_mb
from bench.table import show
from browser import chromium
from fleet_nodes import MODELS, SimpleNode, fleet
from gpucommons.faces.fleet import queries
from gpucommons.faces.web.routes.static_files import static_files
from gpucommons.model.allocations import SlotState
from running import running_agent

NODES, MANY_NODES = 200, 1000
GPUS = 8
USERS = 60
PAINTS = 5
READINGS = 5
SCRAPES_S = 15
ROUNDS = 3
# Longer than the agent keeps a view.
STALE_S = 6
# The first cell, and the frame after the one that draws it.
PAINTED = """
new MutationObserver((_, watch) => {
  if (!document.querySelector('.cell')) return;
  watch.disconnect();
  requestAnimationFrame(() => requestAnimationFrame(() => { window.painted = performance.now(); }));
}).observe(document, { childList: true, subtree: true });
"""
RESPONSE_END = (
    "performance.getEntriesByType('resource').find(entry => entry.name.endsWith('/api/v1/fleet')).responseEnd"
)
SCROLL = """async () => {
  const frames = [];
  const height = document.documentElement.scrollHeight - innerHeight;
  let last = await new Promise(requestAnimationFrame);
  for (let at = 0; at <= 180; at += 1) {
    window.scrollTo(0, (height * at) / 180);
    const now = await new Promise(requestAnimationFrame);
    frames.push(now - last);
    last = now;
  }
  return frames;
}"""


def slots_of(number: int) -> list[tuple[SlotState, str]]:
    """About one in twelve free, one in eight held idle, a few reserved or lost."""
    slots = []
    for index in range(GPUS):
        chance = (number * 7 + index * 13) % 96
        user = f"user{(number + index // 4) % USERS:02d}"
        if chance < 8:
            slots.append((SlotState.FREE, ""))
        elif chance < 20:
            slots.append((SlotState.HELD_IDLE, user))
        elif chance == 20:
            slots.append((SlotState.RESERVED, ""))
        elif chance == 21:
            slots.append((SlotState.LOST, ""))
        else:
            slots.append((SlotState.BUSY, user))
    return slots


def fleet_of(nodes: int) -> dict[str, SimpleNode]:
    return {
        f"gpu-{number:03d}:9460": SimpleNode(number, slots_of(number), MODELS[number % len(MODELS)], 600 + 97 * number)
        for number in range(1, nodes + 1)
    }


def document(url: str, nodes: int = NODES) -> tuple[float, int]:
    """Seconds and bytes of one document."""
    begun = time.monotonic()
    with urllib.request.urlopen(f"{url}/api/v1/fleet", timeout=60) as answer:
        body = answer.read()
    assert len(json.loads(body)["fleet"]["slots"]) == nodes * GPUS
    return time.monotonic() - begun, len(body)


def scrapes_ms(url: str, with_viewer: bool) -> list[float]:
    """The length of each scrape, while a viewer has the fleet read again and again, or none does."""
    ended = threading.Event()

    def view() -> None:
        # Not decoded: that would hold up this program's scrapes.
        while not ended.wait(0.1):
            urllib.request.urlopen(f"{url}/api/v1/fleet", timeout=60).read()

    viewer = threading.Thread(target=view)
    if with_viewer:
        viewer.start()
    times_ms = []
    until_s = time.monotonic() + SCRAPES_S
    while time.monotonic() < until_s:
        begun = time.monotonic()
        urllib.request.urlopen(f"{url}/metrics", timeout=60).close()
        times_ms.append(1000 * (time.monotonic() - begun))
        time.sleep(0.02)
    ended.set()
    if with_viewer:
        viewer.join()
    return times_ms


def thread_ms(session: CDPSession) -> float:
    """Milliseconds of the page's main thread, without those of other programs."""
    rows: dict[str, float] = {row["name"]: row["value"] for row in session.send("Performance.getMetrics")["metrics"]}
    return 1000 * rows["TaskDuration"]


@contextmanager
def fleet_page(browser: Browser, url: str) -> Iterator[tuple[Page, CDPSession]]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.add_init_script(PAINTED)
    session = context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(url)
    page.wait_for_function("() => window.painted")
    yield page, session
    context.close()


def paint_ms(browser: Browser, url: str) -> tuple[float, float, float]:
    """From the end of the document's response to the painted grid, from the start of the page, and on the thread."""
    with fleet_page(browser, url) as (page, session):
        end: float = page.evaluate(RESPONSE_END)
        painted: float = page.evaluate("window.painted")
        return painted - end, painted, thread_ms(session)


def scrolling(browser: Browser, url: str) -> tuple[list[float], float, float]:
    """The length of each frame, its part of the thread, and what refreshes take of the thread in a second."""
    with fleet_page(browser, url) as (page, session):
        page.wait_for_timeout(1000)
        before = thread_ms(session)
        frames: list[float] = page.evaluate(SCROLL)
        a_frame = (thread_ms(session) - before) / len(frames)
        before, begun = thread_ms(session), time.monotonic()
        page.wait_for_timeout(16_000)
        return frames, a_frame, (thread_ms(session) - before) / (time.monotonic() - begun)


def many_nodes() -> None:
    """Prometheus keeps only what the page reads: what else it has does not change the cost of the queries."""
    metrics = (*queries.READINGS, queries.SLOT_STATE)
    with (
        tempfile.TemporaryDirectory() as folder,
        fleet(fleet_of(MANY_NODES), Path(folder), interval_s=60, only=metrics) as (_, prometheus),
        tempfile.NamedTemporaryFile("w", suffix=".toml") as config,
    ):
        config.write(f'[fleet]\nprometheus_url = "{prometheus.url}"\n')
        config.flush()
        with running_agent("--simulate", "lab", "--config", config.name) as agent:
            pid = agent.process.pid
            time.sleep(STALE_S)
            before_mb, before_s = rss_mb(pid), cpu_seconds(pid)
            time.sleep(STALE_S)
            without_s = cpu_seconds(pid) - before_s
            documents, own_s = [], []
            for _ in range(READINGS):
                begun_s = cpu_seconds(pid)
                documents.append(document(agent.url, MANY_NODES))
                time.sleep(max(0.0, STALE_S - documents[-1][0]))
                own_s.append(cpu_seconds(pid) - begun_s - without_s)
            after_mb, peak_mb = rss_mb(pid), _peak_mb(pid)
    rows = [
        (
            "queries, view and document, median",
            f"{1000 * statistics.median(d[0] for d in documents):.0f} ms",
            "1000 ms",
        ),
        ("  processor time of the agent", f"{1000 * statistics.median(own_s):.0f} ms", ""),
        ("document", f"{documents[0][1] / 1000:.0f} kB", ""),
        ("agent before the first document", f"{before_mb:.0f} MB", ""),
        ("agent after the last one, and its peak", f"{after_mb:.0f} / {peak_mb:.0f} MB", "150 MB"),
    ]
    show(f"A fleet of {MANY_NODES} nodes x {GPUS} GPUs", ("what", "measured", "bar"), rows)


def _peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) * 1024 / 1e6


def with_browser() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        fleet(fleet_of(NODES), Path(folder), interval_s=15) as (_, prometheus),
        tempfile.NamedTemporaryFile("w", suffix=".toml") as config,
    ):
        config.write(f'[fleet]\nprometheus_url = "{prometheus.url}"\n')
        config.flush()
        with running_agent("--simulate", "lab", "--config", config.name) as agent, chromium() as browser:
            documents = []
            for _ in range(READINGS):
                documents.append(document(agent.url))
                time.sleep(STALE_S)
            # In turns, so that the load of the machine is the same for both.
            rounds = [(scrapes_ms(agent.url, False), scrapes_ms(agent.url, True)) for _ in range(ROUNDS)]
            alone, viewed = ([ms for round_ms in rounds for ms in round_ms[which]] for which in (0, 1))
            paints = [paint_ms(browser, f"{agent.url}/fleet") for _ in range(PAINTS)]
            by_state = scrolling(browser, f"{agent.url}/fleet")
            by_node = scrolling(browser, f"{agent.url}/fleet?by=node")
    size = sum(len(file.compressed) for name, file in static_files().items() if name.startswith("fleet."))
    rows = [
        ("queries, view and document, median", f"{1000 * statistics.median(d[0] for d in documents):.0f} ms", ""),
        ("scrape, p50 / p99: without a viewer", _scrapes(alone), ""),
        ("scrape, p50 / p99: with one, a reading every 5 s", _scrapes(viewed), ""),
        ("document", f"{documents[0][1] / 1000:.0f} kB", ""),
        ("files of the fleet alone, gzipped", f"{size / 1000:.1f} kB", ""),
        ("grid painted after the document, median", f"{statistics.median(p[0] for p in paints):.0f} ms", "1000 ms"),
        ("grid painted after the start of the page, median", f"{statistics.median(p[1] for p in paints):.0f} ms", ""),
        ("  time of the main thread", f"{statistics.median(p[2] for p in paints):.0f} ms", ""),
        *(
            (f"scrolling, {name}: frame p50 / p95 / longest; thread a frame", _frames(frames, thread), "17 ms")
            for name, (frames, thread, _) in (("free first", by_state), ("by node", by_node))
        ),
        ("refresh every 5 s: thread a second", f"{by_state[2]:.1f} ms", ""),
    ]
    show(f"A fleet of {NODES} nodes x {GPUS} GPUs", ("what", "measured", "bar"), rows)


def _scrapes(times_ms: list[float]) -> str:
    return f"{statistics.median(times_ms):.1f} / {statistics.quantiles(times_ms, n=100)[-1]:.1f} ms"


def _frames(frames: list[float], thread: float) -> str:
    quantiles = statistics.quantiles(frames, n=20)
    return f"{statistics.median(frames):.0f} / {quantiles[-1]:.0f} / {max(frames):.0f} ms; {thread:.1f} ms"


def main() -> None:
    chosen = sys.argv[1:] or [str(NODES), str(MANY_NODES)]
    if str(NODES) in chosen:
        with_browser()
    if str(MANY_NODES) in chosen:
        many_nodes()


if __name__ == "__main__":
    main()
