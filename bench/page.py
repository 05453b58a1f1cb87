"""What the page costs the browser: bytes, first paint, and script time a second while a large node is live.

A real Chromium on a real agent that plays a node of 16 GPUs. Script time is the renderer's own count.
"""

import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from bench.table import show
from gpucommons.web.static_files import static_files

SECONDS = 15
PAINTS = 5
BROWSER = "/usr/bin/chromium"
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
ROOT = Path(__file__).resolve().parents[1]


@contextmanager
def demo_agent(*arguments: str) -> Iterator[tuple[str, int]]:
    """The address and pid of an agent that plays the demo node."""
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "demo_agent.py"), *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"},
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            found = re.search(r"page +(http://\S+)/", line)
            if found:
                yield found.group(1), process.pid
                return
        raise SystemExit("the agent did not start")
    finally:
        process.terminate()
        process.wait()


def compressed_bytes(prefix: str = "") -> int:
    """What goes over the wire for the page's files, each compressed by itself as it is served."""
    return sum(len(file.compressed) for name, file in static_files().items() if name.startswith(prefix))


def first_paint_ms(browser: Browser, url: str) -> float:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("main[data-sequence]")
    paint: float = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    context.close()
    return paint


def script_ms_a_second(browser: Browser, url: str, prepare: str = "") -> tuple[float, float]:
    """Script and layout milliseconds for each second that passes."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("main[data-sequence]")
    if prepare:
        page.click(prepare)
    page.wait_for_timeout(3000)
    session = context.new_cdp_session(page)
    # The thread's own time: what other programs do to this machine meanwhile must not count.
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def metrics() -> dict[str, float]:
        return {row["name"]: row["value"] for row in session.send("Performance.getMetrics")["metrics"]}

    before, begun = metrics(), time.monotonic()
    page.wait_for_timeout(SECONDS * 1000)
    after, elapsed = metrics(), time.monotonic() - begun
    context.close()
    layout = sum(after[name] - before[name] for name in ("LayoutDuration", "RecalcStyleDuration"))
    return 1000 * (after["ScriptDuration"] - before["ScriptDuration"]) / elapsed, 1000 * layout / elapsed


def main() -> None:
    rows = [
        ("page, gzipped", f"{compressed_bytes() / 1000:.1f} kB", "60 kB"),
        ("  of it vendored", f"{compressed_bytes('vendor/') / 1000:.1f} kB", ""),
    ]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=list(ARGUMENTS))
        with demo_agent("--gpus", "16", "--processes", "17") as (url, _):
            first_paint_ms(browser, url)
            paints = [first_paint_ms(browser, url) for _ in range(PAINTS)]
            rows.append(("first contentful paint, median", f"{statistics.median(paints):.0f} ms", "300 ms"))
            owners = script_ms_a_second(browser, url)
            processes = script_ms_a_second(browser, url, ".choice button:has-text('Processes')")
        rows += [
            ("16 GPUs, 200 processes, by owner: script a second", f"{owners[0]:.1f} ms", "8 ms"),
            ("  style and layout a second", f"{owners[1]:.1f} ms", ""),
            ("16 GPUs, 200 processes, each a row: script a second", f"{processes[0]:.1f} ms", "8 ms"),
            ("  style and layout a second", f"{processes[1]:.1f} ms", ""),
        ]
        browser.close()
    show(f"The page in Chromium, over {SECONDS} s each", ("what", "measured", "bar"), rows)


if __name__ == "__main__":
    main()
