"""What the tests of the page share: a browser, and an agent with one GPU that is lost and one that is hot."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from browser import chromium, demo_agent

# A page of 4,000 rows takes some seconds where other tests need the processor as well.
expect.set_options(timeout=30_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def demo() -> Iterator[str]:
    with demo_agent("--lost", "7", "--hot", "5", "--interval", "1") as url:
        yield url
