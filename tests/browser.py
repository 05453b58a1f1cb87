"""A real Chromium: an error on the console or a request to another host fails the test."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Locator, Page, sync_playwright

from needs import needs_program

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
TESTS = Path(__file__).resolve().parent
# Where screenshots are written; they take longer than the tests, so that none is without it.
SCREENSHOTS = os.environ.get("TEST_SCREENSHOTS", "")


@contextmanager
def chromium() -> Iterator[Browser]:
    needs_program("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Watch:
    """Collects errors and forbidden requests of a page."""

    host: str
    complaints: list[str] = field(default_factory=list)
    lost_is_fine: bool = False

    def on(self, page: Page) -> None:
        page.on("console", lambda message: self._console(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))
        page.on("request", lambda request: self._request(request.url))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))

    def _console(self, kind: str, text: str) -> None:
        # A browser logs a refused connection; only a test that stops the agent may cause that.
        refused = any(word in text for word in ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "502"))
        if kind in ("error", "warning") and not (self.lost_is_fine and refused):
            self.complaints.append(f"{kind}: {text}")

    def _request(self, url: str) -> None:
        if urlsplit(url).netloc != self.host:
            self.complaints.append(f"request to another host: {url}")


@contextmanager
def opened(
    browser: Browser,
    url: str,
    *,
    width: int = 1280,
    height: int = 900,
    theme: str = "light",
    lost_is_fine: bool = False,
    ready: str = "main[data-sequence]",
    before: str = "",
) -> Iterator[Page]:
    """The page with its first readings drawn. A complaint at the end fails the test.

    `before` is a script that runs before those of the page.
    """
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)  # type: ignore[arg-type]
    watch = Watch(urlsplit(url).netloc, lost_is_fine=lost_is_fine)
    page = context.new_page()
    page.add_init_script(before)
    watch.on(page)
    try:
        page.goto(url)
        page.wait_for_selector(ready)
        yield page
        assert watch.complaints == []
        assert context.cookies() == []
    finally:
        context.close()


@contextmanager
def demo_agent(*arguments: str) -> Iterator[str]:
    """The URL of an agent in a separate process that simulates the demo node."""
    with demo_process(*arguments) as (url, _):
        yield url


@contextmanager
def demo_process(*arguments: str) -> Iterator[tuple[str, int]]:
    """The same, and its pid."""
    process = subprocess.Popen(
        [sys.executable, str(TESTS / "demo_agent.py"), *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            found = re.search(r"page +(http://\S+)/", line)
            if found:
                # Keep reading its log: a full pipe would block it.
                threading.Thread(target=process.stderr.read, daemon=True).start()
                yield found.group(1), process.pid
                return
        raise AssertionError("the agent did not start")
    finally:
        process.terminate()
        process.wait(timeout=10)


def keep_screenshot(shown: Locator, name: str) -> None:
    """For a person to look at; nothing unless TEST_SCREENSHOTS names a folder."""
    if SCREENSHOTS:
        shown.screenshot(path=Path(SCREENSHOTS) / f"{name}.png")
