"""The cost of the page in the browser: bytes, first paint, and script time per second with a large node.

Chromium shows an agent that simulates 16 GPUs. Script time is measured by the renderer.
"""

import statistics
import time

from playwright.sync_api import Browser

from bench.table import show
from browser import chromium, demo_agent
from gpucommons.faces.web.routes.static_files import static_files

SECONDS = 15
PAINTS = 5


def compressed_bytes(prefix: str = "") -> int:
    """Bytes sent for the files of the page, each compressed as it is served; the view of a fleet is another page."""
    files = {name: file for name, file in static_files().items() if not name.startswith("fleet.")}
    return sum(len(file.compressed) for name, file in files.items() if name.startswith(prefix))


def first_paint_ms(browser: Browser, url: str) -> float:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("main[data-sequence]")
    paint: float = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    context.close()
    return paint


def script_ms_a_second(browser: Browser, url: str, prepare: str = "") -> tuple[float, float]:
    """Milliseconds of script and layout per second."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("main[data-sequence]")
    if prepare:
        page.click(prepare)
    page.wait_for_timeout(3000)
    session = context.new_cdp_session(page)
    # Thread time, so that other programs on this machine do not count.
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
        ("page, gzipped", f"{compressed_bytes() / 1000:.1f} kB", "80 kB"),
        ("  of it vendored", f"{compressed_bytes('vendor/') / 1000:.1f} kB", ""),
    ]
    with chromium() as browser, demo_agent("--gpus", "16", "--processes", "17") as url:
        first_paint_ms(browser, url)
        paints = [first_paint_ms(browser, url) for _ in range(PAINTS)]
        owners = script_ms_a_second(browser, url)
        processes = script_ms_a_second(browser, url, ".choice button:has-text('Processes')")
        charts = script_ms_a_second(browser, url, "nav a[href='#history']")
    rows += [
        ("first contentful paint, median", f"{statistics.median(paints):.0f} ms", "300 ms"),
        ("16 GPUs, 200 processes, by owner: script a second", f"{owners[0]:.1f} ms", "8 ms"),
        ("  style and layout a second", f"{owners[1]:.1f} ms", ""),
        ("16 GPUs, 200 processes, each a row: script a second", f"{processes[0]:.1f} ms", "8 ms"),
        ("  style and layout a second", f"{processes[1]:.1f} ms", ""),
        ("16 GPUs, 200 processes, History in view: script a second", f"{charts[0]:.1f} ms", "8 ms"),
        ("  style and layout a second", f"{charts[1]:.1f} ms", ""),
    ]
    show(f"The page in Chromium, over {SECONDS} s each", ("what", "measured", "bar"), rows)


if __name__ == "__main__":
    main()
