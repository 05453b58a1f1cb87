"""The layout of the lab at the widths of phones and screens: nothing overflows or overlaps, and the page has an end.

At 1280 x 800 the first screen answers, in words that a person reads without scrolling: which GPUs are free, which are
held idle by which user and for how long, what waits for what and since when, what is lost, and what each GPU does.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from browser import opened
from fakes.nvml.build import build
from fakes.nvml.control import FakeNvml
from needs import needs_program
from page.test_glance import FIRST_SCREEN
from running import running_agent
from waiting import until

pytestmark = pytest.mark.long

MAX_HEIGHT = {360: 6000, 390: 6000, 768: 6000, 1280: 3000, 1920: 3000}

# What is wrong with the layout, in words.
FAULTS = """() => {
    const faults = [];
    const name = (e) => e.tagName.toLowerCase() + (e.id ? '#' + e.id : '') + '.' + String(e.getAttribute('class'));
    const isSeen = (e) => e.checkVisibility() && !e.closest('.hidden, .skip, svg, .plot');
    // The lanes of a timeline cut their names; the table below has them in full.
    const scrolls = (e) => e.closest('.scroll, nav, .choice, .tall, .lanes');
    // A name that ends in an ellipsis is longer than what is shown of it.
    const cut = (e, right) => {
        for (let above = e.parentElement; above && right > innerWidth; above = above.parentElement) {
            const hides = getComputedStyle(above).overflowX === 'hidden';
            if (hides) right = Math.min(right, above.getBoundingClientRect().right);
        }
        return right;
    };
    for (const e of document.querySelectorAll('body *')) {
        const box = e.getBoundingClientRect();
        if (!isSeen(e) || !box.width || scrolls(e)) continue;
        const leaves = cut(e, box.right) > innerWidth + 1 || box.left < -1;
        if (leaves) faults.push(`${name(e)} leaves the window at ${box.right}`);
    }
    const overlap = (a, b) =>
        a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
    const apart = (what, found) => {
        const boxes = found.filter(isSeen).map((e) => [name(e), e.getBoundingClientRect()]);
        boxes.forEach(([one, a], at) => boxes.slice(at + 1).forEach(([other, b]) => {
            if (overlap(a, b)) faults.push(`${what}: ${one} overlaps ${other}`);
        }));
    };
    apart('page', [...document.querySelectorAll('header.bar, main section')]);
    apart('strip', [...document.querySelectorAll('.sentence > li')]);
    apart('cards', [...document.querySelectorAll('.card')]);
    for (const card of document.querySelectorAll('.card')) {
        apart(card.getAttribute('aria-labelledby'), [...card.children]);
        const box = card.getBoundingClientRect();
        for (const e of card.querySelectorAll('*')) {
            const own = e.getBoundingClientRect();
            if (isSeen(e) && own.height && own.bottom > box.bottom + 1) faults.push(`${name(e)} leaves its card`);
        }
    }
    // The sums of a table that scrolls stay at its bottom edge: no row shows below them.
    for (const sums of document.querySelectorAll('.rolled tfoot th')) {
        const table = sums.closest('.rolled').getBoundingClientRect();
        const reach = sums.getBoundingClientRect().bottom + parseFloat(getComputedStyle(sums).boxShadow.split('px')[1]);
        if (!(reach >= table.bottom)) faults.push(`a row shows below the sums, at ${reach}`);
        const collapses = getComputedStyle(sums.closest('table')).borderCollapse === 'collapse';
        if (collapses) faults.push('the line above the sums does not stay with them');
    }
    if (document.documentElement.scrollWidth > innerWidth) faults.push('the page scrolls sideways');
    return faults;
}"""

# Texts that only a mouse can reach: a title whose words are not on the page.
HOVER_ONLY = """() => [...document.querySelectorAll('main [title]')]
    .filter((e) => e.checkVisibility())
    .map((e) => [e.title, e.closest('section').innerText])
    .filter(([title, text]) => title && !title.split(/[:(),]+/).every((part) => text.includes(part.trim())))
    .map(([title]) => title)"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """With a price, so that the accounts have a cost."""
    config = tmp_path_factory.mktemp("lab") / "gpucommons.toml"
    config.write_text('[accounts]\nprice_per_gpu_hour = 2.5\ncurrency = "EUR"\n')
    with running_agent("--simulate", "lab", "--share", "--config", str(config)) as agent:
        yield agent.url


def parts_of(page: Page) -> dict[str, Any]:
    found: Any = page.evaluate("fetch('/api/v1/problems').then(a => a.json())")
    return {part["name"]: part for part in found["summary"]["parts"]}


def with_all_kinds(page: Page) -> dict[str, Any]:
    """The parts of the strip, once users hold GPUs idle and others wait."""
    return until(
        lambda: parts if {"held_idle", "waiting"} <= (parts := parts_of(page)).keys() else None,
        "idle holders and waiting users",
        within_s=120,
    )


def drawn(page: Page) -> None:
    """Every section and chart: they are drawn when they come into view."""
    size = page.viewport_size
    assert size is not None
    page.set_viewport_size({"width": size["width"], "height": 7000})
    if size["width"] > 640:
        page.locator('#history [data-series="gpu_temperature_celsius"] canvas').wait_for()
    page.set_viewport_size(size)


@pytest.mark.parametrize("width", [360, 390, 768, 1280, 1920])
def test_nothing_overflows_or_overlaps_and_the_page_has_an_end(browser: Browser, lab: str, width: int) -> None:
    with opened(browser, lab, width=width, height=800) as page:
        with_all_kinds(page)
        drawn(page)
        assert page.evaluate(FAULTS) == []
        height = page.evaluate("document.documentElement.scrollHeight")
        assert height <= MAX_HEIGHT[width], f"{height} px high"
        if width <= 640:
            assert page.evaluate(HOVER_ONLY) == [], "a phone has no mouse"
        cost = page.locator("#accounts [data-total] [data-f=cost]")
        # The first sums come with the first batch of the ledger.
        cost.wait_for(state="attached", timeout=60_000)
        right = cost.evaluate("cell => cell.getBoundingClientRect().right")
        assert right <= width - 8, "what was held, what of it idle, and the cost are in view without scrolling sideways"


def strip_of(page: Page) -> str | None:
    """The first screen, once it names all holders and requests of the API. The page may be a snapshot behind."""
    parts, shown = with_all_kinds(page), str(page.evaluate(FIRST_SCREEN))
    lines = [line for part in ("held_idle", "waiting") for line in parts[part]["lines"][:4]]
    # Times and turns go on between two readings: holders and requests are compared, without their times.
    named = all(line.rpartition(" for ")[0] in shown for line in lines if "its turn" not in line)
    holds_idle = re.search(r"\S+: GPU \d(\.\d)? for \d+ (s|min)", shown)
    waits = re.search(r"\S+: \d GPUs? .*for \d+ (s|min)", shown)
    return shown if named and holds_idle and waits else None


def test_the_first_screen_answers_the_questions_of_five_seconds(browser: Browser, lab: str) -> None:
    with opened(browser, lab, width=1280, height=800) as page:
        shown = until(lambda: strip_of(page), "holders and requests with their times", within_s=120)
        assert re.search(r"\b\d+ free\b", shown), shown
        assert "No problem." not in shown, "a user waits"
        bottoms = page.eval_on_selector_all(".card", "cards => cards.map(card => card.getBoundingClientRect().bottom)")
        assert len(bottoms) == 8
        assert max(bottoms) <= 800, "eight GPUs without scrolling"
        accounts = page.eval_on_selector("#accounts", "section => section.getBoundingClientRect().bottom")
        assert accounts <= 1600, "cost within two screens"
        cut = "tables => tables.map(table => table.scrollWidth - table.clientWidth)"
        cuts = page.eval_on_selector_all("#accounts .scroll, #queue .scroll", cut)
        assert max(cuts) <= 0, "their columns are in view"
        page.locator("#turns .queue tbody td").first.wait_for(state="attached", timeout=60_000)
        cuts = page.eval_on_selector_all("#turns .shared .scroll", cut)
        assert max(cuts) <= 0, "what a client waits for is not cut"
        expect(page.locator("#accounts [data-total] [data-f=gpu_equivalent_hours]")).to_have_text(re.compile(r"\d\sh"))
        expect(page.locator("#accounts [data-total] [data-f=cost]")).to_have_text(re.compile(r"^\d+\.\d\d$"))


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="for a machine without an NVIDIA driver")
def test_without_a_gpu_the_page_shows_what_there_is_and_names_the_driver_once(browser: Browser) -> None:
    with running_agent() as agent, opened(browser, agent.url, height=2400) as page:
        expect(page.locator("#now")).to_contain_text("no GPU")
        expect(page.locator("#gpus .absent")).to_contain_text("libnvidia-ml.so.1")
        expect(page.locator("#gpus")).to_contain_text("gpucommons up --simulate lab")
        expect(page.locator("#who .quiet")).to_have_text("No process uses a GPU: this node has none.")
        text = page.inner_text("main")
        assert text.count("libnvidia-ml.so.1") == 1, text
        expect(page.locator("#node [data-f='memory.total_bytes']")).to_have_text(re.compile(r"^\d"))
        expect(page.locator("#history [data-series=cpu_utilization_ratio] canvas")).to_be_visible()
        charts = page.locator("#history [data-series]")
        expect(charts).to_have_count(2)
        hint = page.locator("#history .by-mouse").evaluate(
            "hint => hint.getBoundingClientRect().left - hint.closest('section').getBoundingClientRect().left"
        )
        assert hint == 0, "no gap for the legend of GPUs that do not exist"
        assert page.evaluate(FAULTS) == []


def test_a_driver_that_does_not_answer_is_the_first_line_of_the_page(browser: Browser, tmp_path: Path) -> None:
    needs_program("cc")
    (tmp_path / "library").mkdir()
    driver = FakeNvml(tmp_path / "driver", build(tmp_path / "library"))
    driver.say("gpus 2", "fail * 18", "fail nvmlInit 18")
    with running_agent(environment=driver.environment()) as agent, opened(browser, agent.url, height=800) as page:
        problem = page.locator("#problems li").first
        expect(problem).to_contain_text("The NVIDIA driver does not answer")
        expect(problem.locator("[data-f=remedy]")).to_have_text(re.compile("[Rr]eboot"))
        shown = str(page.evaluate(FIRST_SCREEN))
        assert "driver does not answer" in shown
        assert "No problem." not in shown
        assert page.evaluate("document.title").startswith("driver does not answer")


def test_processes_have_a_user_a_pid_a_time_and_their_share_of_the_cpu(browser: Browser, lab: str) -> None:
    with opened(browser, f"{lab}/?by=process", height=2400) as page:
        head = page.locator("#who thead th")
        expect(head).to_have_text(["Name", "User", "PID", re.compile("Memory"), "SM", "Power", "CPU", "Time", "GPU"])
        row = page.locator("#who tr[data-row]", has_text="alice").first
        expect(row.locator("[data-f=pid]")).to_have_text(re.compile(r"^\d+$"))
        expect(row.locator("[data-f=age_s]")).to_have_text(re.compile(r"^\d+\s(s|min|h|d)"))
        expect(row.locator("[data-f=cpu_ratio]")).to_have_text(re.compile(r"\d\s%"))


def test_the_history_opens_on_a_range_that_has_readings(browser: Browser, lab: str) -> None:
    with opened(browser, lab, height=2400) as page:
        expect(page.locator("#history .choice button[aria-pressed=true]")).to_have_text(re.compile("^(5|15) minutes"))
        page.click("#history .choice button:has-text('1 hour')")
        expect(page.locator("#history .choice button[aria-pressed=true]")).to_have_text("1 hour")


def test_slots_have_names_and_memory_in_the_turns(browser: Browser, lab: str) -> None:
    with opened(browser, lab, height=2400) as page:
        page.locator("#turns [data-calm]").wait_for(timeout=30_000)
        page.click("#turns [data-calm] summary")
        names = page.locator("#turns h3", has_text=re.compile("^GPU ")).all_inner_texts()
        assert any(re.fullmatch(r"GPU 6\.\d", name) for name in names), names
        assert not any("MIG" in name for name in names)
        memory = page.locator("#turns [data-f=memory]").all_inner_texts()
        assert all(re.search(r"[1-9][\d.]* GiB held by programs, safe limit", text) for text in memory), memory
