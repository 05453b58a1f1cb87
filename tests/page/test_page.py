"""The page in a real Chromium: it shows the documents of the API, its controls work, no other host is contacted."""

import itertools
import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from browser import demo_agent, keep_screenshot, opened
from demo_node import HOSTILE
from prometheus_server import free_port, running_prometheus
from running import running_agent
from waiting import until

HERE = Path(__file__).resolve().parent
SHOWN = (HERE / "shown.js").read_text()
AXE = HERE / "vendor" / "axe.min.js"
SECTIONS = ("now", "gpus", "who", "turns", "queue", "accounts", "events", "history", "node")
# High enough that every section is in view: one out of view is drawn less often.
TALL = 6000


Start = Callable[[str], str]


@pytest.fixture(scope="module")
def playing() -> Iterator[Start]:
    """The URL of an agent by its name, started when a test first needs it.

    Its interval is long enough to compare the page and the API at one snapshot.
    """
    slowly = ("--interval", "2")
    with ExitStack() as agents:

        @cache
        def start(name: str) -> str:
            if name == "demo":
                return agents.enter_context(demo_agent("--lost", "7", "--hot", "5", *slowly))
            return agents.enter_context(running_agent("--simulate", name, *slowly)).url

        yield start


def at_a_delta(page: Page) -> None:
    """Waits until the page shows a snapshot that came as a delta."""
    first = int(page.get_attribute("main", "data-sequence") or 0)
    page.wait_for_function("first => Number(document.querySelector('main').dataset.sequence) > first", arg=first)


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        ("demo", {"now", "node", "gpus", "who", "turns", "queue", "accounts", "events", "history"}),
        pytest.param("lab", {"now", "node", "gpus", "who", "turns", "history"}, marks=pytest.mark.long),
        pytest.param("faults", {"now", "node", "gpus", "who", "turns", "history"}, marks=pytest.mark.long),
    ],
)
def test_every_section_shows_the_documents_of_the_api(
    browser: Browser, playing: Start, name: str, sections: set[str]
) -> None:
    with opened(browser, playing(name), height=TALL) as page:
        # The charts are loaded one after another; this is the last.
        page.locator('#history [data-f="gpu_temperature_celsius.now"]').first.wait_for(state="attached")
        at_a_delta(page)
        result: Any = page.evaluate(SHOWN)
        assert result["wrong"] == []
        assert sections <= set(result["compared"]), result["compared"]
        for section in SECTIONS[1:]:
            absent = page.locator(f"#{section} .absent, #{section} > .quiet")
            assert section in result["compared"] or absent.count(), f"{section} shows nothing, and does not say why"


def rows(page: Page) -> list[str]:
    found: list[str] = page.eval_on_selector_all("#who tr[data-row]", "rows => rows.map(row => row.dataset.row)")
    return found


def numbers(page: Page, field: str) -> list[float]:
    texts = page.eval_on_selector_all(f"#who tr[data-row] [data-f={field}]", "cells => cells.map(c => c.textContent)")
    units = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
    found = [re.search(r"([\d.]+)\s*(\w*)", text) for text in texts]
    return [float(match[1]) * units.get(match[2], 1) for match in found if match]


def nearly_sorted(values: list[float]) -> bool:
    """Rows keep their places for a few snapshots while values change, so that near-equal rows do not swap."""
    return all(earlier <= 1.05 * later for earlier, later in itertools.pairwise(values))


def test_sort_by_mouse_and_keyboard(browser: Browser, demo: str) -> None:
    with opened(browser, demo) as page:
        memory = page.locator("#who thead th", has_text="Memory")
        expect(memory).to_have_attribute("aria-sort", "descending")
        assert nearly_sorted(numbers(page, "memory_bytes")[::-1])
        memory.locator("button").click()
        expect(memory).to_have_attribute("aria-sort", "ascending")
        assert nearly_sorted(numbers(page, "memory_bytes"))
        hours = page.locator("#who thead th", has_text="GPU-hours")
        hours.locator("button").focus()
        page.keyboard.press("Enter")
        expect(hours).to_have_attribute("aria-sort", "descending")
        shown = numbers(page, "gpu_hours_today")
        assert shown == sorted(shown, reverse=True)
        last = page.locator("#who tr[data-row] [data-f=gpu_hours_today]").last
        expect(last).to_have_text("–")
        name = page.locator("#who thead th", has_text="Name")
        name.locator("button").click()
        labels = page.locator("#who tr[data-row] th button").all_inner_texts()
        assert labels == sorted(labels)


def test_filter_search_and_group(browser: Browser, demo: str) -> None:
    with opened(browser, demo) as page:
        all_rows = rows(page)
        page.select_option("#who select", "0")
        expect(page.locator("#who tr[data-row]")).to_have_count(3)
        page.fill("#who input[type=search]", "ALI")
        expect(page.locator("#who tr[data-row]")).to_have_count(1)
        assert rows(page) == ["user/1000"]
        alice = page.locator("#who tr[data-row='user/1000']")
        # The sums are those of GPU 0: alice held GPU 1 for as long today.
        expect(alice.locator("[data-f=gpus]")).to_have_text("0")
        expect(alice.locator("[data-f=processes]")).to_have_text("1")
        expect(alice.locator("[data-f=gpu_hours_today]")).to_have_text(re.compile(r"^6\.3"))
        page.fill("#who input[type=search]", "no such name")
        expect(page.get_by_text("No row matches.")).to_be_visible()
        page.fill("#who input[type=search]", "")
        page.select_option("#who select", "")
        expect(page.locator("#who tr[data-row]")).to_have_count(len(all_rows))
        for by, kind in (("Users", "user"), ("Pods", "pod"), ("Containers", "container")):
            page.click(f"#who .choice button:has-text('{by}')")
            groups: Any = page.evaluate(f"fetch('/api/v1/who?by={kind}').then(a => a.json()).then(a => a.groups)")
            assert set(rows(page)) == set(groups)
        page.click("#who .choice button:has-text('Processes')")
        known: Any = page.evaluate("fetch('/api/v1/who').then(a => a.json()).then(a => Object.keys(a.who.processes))")
        assert set(rows(page)) == set(known)


def test_an_owner_in_focus_dims_everything_else(browser: Browser, demo: str) -> None:
    with opened(browser, demo, height=TALL) as page:
        page.click("#who tr[data-row='user/1000'] th button")
        expect(page.locator(".focus")).to_contain_text("alice")
        assert page.locator("#who tr[data-row]:not(.dim)").evaluate_all("r => r.map(x => x.dataset.row)") == [
            "user/1000"
        ]
        bright = page.locator(".card:not(.dim):not(.lost)")
        for card in bright.all():
            assert card.locator("[data-part='user/1000']:not(.dim)").count() == 1
        assert page.locator(".card.dim").count() > 0
        assert page.locator("#turns tr[data-client]:not(.dim) th").all_inner_texts() == ["alice-job"]
        page.keyboard.press("Escape")
        expect(page.locator(".focus")).to_have_count(0)
        expect(page.locator(".dim")).to_have_count(0)
        page.locator(".card [data-part='user/1001'] button").first.click()
        expect(page.locator(".focus")).to_contain_text("bob")
        page.click(".focus button")
        expect(page.locator(".dim")).to_have_count(0)


def background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))


@pytest.mark.long
def test_light_and_dark_follow_the_system(browser: Browser, demo: str) -> None:
    with opened(browser, demo) as page:
        light = background(page)
        page.emulate_media(color_scheme="dark")
        dark = background(page)
        assert sum(map(int, re.findall(r"\d+", dark)[:3])) < 100 < sum(map(int, re.findall(r"\d+", light)[:3]))
        at_a_delta(page)


def places(page: Page) -> Any:
    """Where each section is, and the bar above them."""
    return page.eval_on_selector_all(
        "header.bar, header.bar > *, main section",
        "all => all.map(e => ({ part: e.id || e.classList[0], ...e.getBoundingClientRect().toJSON() }))",
    )


# Once the test sets window.deaf, snapshots that the agent sends until it has stopped are lost: they may need more room.
# The end of the connection is noticed as always.
DEAF_ON_DEMAND = """{
    const listen = EventSource.prototype.addEventListener;
    EventSource.prototype.addEventListener = function (kind, heard) {
        listen.call(this, kind, (event) => window.deaf || heard(event));
    };
}"""


@pytest.mark.long
def test_a_lost_connection_is_shown_and_restored(browser: Browser) -> None:
    port = free_port()
    arguments = ("--simulate", "lab", "--listen", f"127.0.0.1:{port}")
    with (
        running_agent(*arguments) as agent,
        opened(browser, agent.url, height=TALL, lost_is_fine=True, before=DEAF_ON_DEMAND) as page,
    ):
        expect(page.locator(".link")).to_have_attribute("data-link", "live")
        # The charts come by themselves, one after another; this is the last.
        page.locator('#history [data-f="gpu_temperature_celsius.now"]').first.wait_for(state="attached")
        page.wait_for_function("() => Number(document.querySelector('main').dataset.sequence) >= 3")
        page.evaluate("window.deaf = true")
        page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
        sequence, before = page.get_attribute("main", "data-sequence"), places(page)
        agent.stop()
        expect(page.locator(".link")).to_have_attribute("data-link", "lost")
        expect(page.locator(".link-lost")).to_contain_text("Connection lost")
        expect(page).to_have_title(re.compile("^connection lost · "))
        assert page.get_attribute("main", "data-sequence") == sequence
        assert places(page) == before, "the layout stays"
        assert page.locator("main.old").count() == 1, "old values are marked as old"
        shown = page.inner_text("#node [data-f='memory.total_bytes']")
        page.evaluate("window.deaf = false")
        with running_agent(*arguments):
            expect(page.locator(".link")).to_have_attribute("data-link", "live", timeout=20_000)
            assert page.locator("main.old").count() == 0
            assert page.inner_text("#node [data-f='memory.total_bytes']") == shown
            at_a_delta(page)


def sequence_at(url: str) -> int:
    with urllib.request.urlopen(f"{url}/api/v1/snapshot", timeout=10) as answer:
        return int(json.load(answer)["sequence"])


def until_sequence(url: str, expected: int) -> None:
    until(lambda: sequence_at(url) >= expected, f"snapshot {expected}", within_s=30)


@pytest.mark.long
def test_a_tab_in_the_background_closes_its_stream(browser: Browser) -> None:
    with demo_agent("--interval", "0.3") as url, opened(browser, url) as page:
        at_a_delta(page)
        page.evaluate(
            """() => {
                Object.defineProperty(document, 'hidden', { get: () => window.away, configurable: true });
                window.away = true;
                document.dispatchEvent(new Event('visibilitychange'));
            }"""
        )
        left = int(page.get_attribute("main", "data-sequence") or 0)
        until_sequence(url, left + 6)
        assert page.get_attribute("main", "data-sequence") == str(left), "a tab in the background got a snapshot"
        page.evaluate("() => { window.away = false; document.dispatchEvent(new Event('visibilitychange')); }")
        page.wait_for_function(f"() => Number(document.querySelector('main').dataset.sequence) > {left} + 5")
        expect(page.locator(".link")).to_have_attribute("data-link", "live")


@pytest.mark.long
def test_hostile_names_appear_as_text(browser: Browser) -> None:
    with demo_agent("--hostile") as url, opened(browser, url, height=TALL) as page:
        script, long, turned, fire, _ = HOSTILE
        for by in ("Owners", "Users", "Pods", "Containers", "Processes"):
            page.click(f"#who .choice button:has-text('{by}')")
        text = page.inner_text("main")
        assert script in text
        assert long in text
        assert fire in text
        assert turned not in text
        assert "\\u202egnp.exe" in text, "a bidirectional control character is escaped"
        assert 'a"b' in text
        assert page.evaluate("document.querySelectorAll('main script').length") == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def axe_faults(page: Page) -> list[str]:
    page.evaluate(AXE.read_text())
    found: Any = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{fault['id']}: {fault['help']}: {[node['html'][:200] for node in fault['nodes'][:3]]}"
        for fault in found["violations"]
    ]


@pytest.mark.long
@pytest.mark.parametrize(("name", "width"), [("demo", 1280), ("demo", 360), ("lab", 360), ("faults", 1280)])
def test_axe_finds_no_violation(browser: Browser, playing: Start, name: str, width: int) -> None:
    with opened(browser, playing(name), width=width, height=2000) as page:
        page.locator("#history details").evaluate_all("all => all.forEach(each => (each.open = true))")
        page.wait_for_selector("#history .statistics")
        assert axe_faults(page) == []
        page.emulate_media(color_scheme="dark")
        assert axe_faults(page) == []


@pytest.mark.long
def test_axe_finds_no_violation_in_the_glossary(browser: Browser, demo: str) -> None:
    with opened(browser, demo) as page:
        page.click("#accounts .word")
        expect(page.locator("dt#held:target")).to_be_visible()
        assert axe_faults(page) == []
        page.emulate_media(color_scheme="dark")
        assert axe_faults(page) == []


@pytest.mark.long
def test_the_page_works_with_the_keyboard_only(browser: Browser, demo: str) -> None:
    with opened(browser, demo) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        reached = set()
        for _ in range(120):
            page.keyboard.press("Tab")
            place = page.evaluate(
                "(document.activeElement.closest('section') || {}).id || document.activeElement.tagName"
            )
            reached.add(place)
        assert {"gpus", "who", "A"} <= reached
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", "the focus is visible"


@pytest.mark.long
def test_longer_ranges_come_from_a_configured_prometheus(browser: Browser, playing: Start, tmp_path: Path) -> None:
    with opened(browser, playing("lab"), height=TALL) as page:
        page.wait_for_selector("#history .note")
        assert page.locator("#history .choice button").all_inner_texts() == [
            "5 minutes",
            "15 minutes",
            "1 hour",
            "24 hours",
        ]
        page.click("#history .choice button:has-text('24 hours')")
        expect(page.locator("#history .choice button[aria-pressed=true]")).to_have_text("24 hours")
    port = free_port()
    scrape = tmp_path / "prometheus.yml"
    scrape.write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: a, static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}]"
    )
    config = tmp_path / "g.toml"
    with running_prometheus(scrape, tmp_path / "data") as prometheus:
        config.write_text(f'[history]\nprometheus_url = "{prometheus.url}"\n')
        arguments = ("--simulate", "lab", "--config", str(config), "--listen", f"127.0.0.1:{port}")
        with running_agent(*arguments) as agent, opened(browser, agent.url, height=TALL) as page:
            # The range ends at the newest snapshot, so a scrape must precede it.
            prometheus.wait_for("DCGM_FI_DEV_POWER_USAGE offset 2s")
            for name, range_s in (("7 days", 7 * 86400), ("30 days", 30 * 86400)):
                with page.expect_response(re.compile(f"series=gpu_power_watts&range={name[:-5]}d")) as response:
                    page.click(f"#history .choice button:has-text('{name}')")
                found: Any = response.value.json()
                assert found["source"] == "prometheus"
                assert len(found["values"]) == 8
                columns = list(found["values"].values())
                assert range_s * 0.99 <= len(columns[0]) * found["step_s"] <= range_s * 1.01
                assert all(column[-1] is not None and column[0] is None for column in columns)
            page.fill("#history input[name=range]", "3d")
            sequence = page.get_attribute("main", "data-sequence")
            page.wait_for_selector(f"main:not([data-sequence='{sequence}'])")
            assert page.input_value("#history input[name=range]") == "3d", "a snapshot overwrote the input"
            with page.expect_response(re.compile("series=cpu_utilization_ratio&range=3d")) as response:
                page.keyboard.press("Enter")
            assert response.value.json()["source"] == "prometheus"


@pytest.mark.long
def test_no_section_is_wider_than_the_window(browser: Browser, demo: str) -> None:
    with opened(browser, demo, height=TALL) as page:
        at_a_delta(page)
        for width, theme in itertools.product((360, 1280, 1920, 2560), ("light", "dark")):
            page.set_viewport_size({"width": width, "height": TALL})
            page.emulate_media(color_scheme="light" if theme == "light" else "dark")
            at_a_delta(page)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            for section in SECTIONS:
                keep_screenshot(page.locator(f"#{section}"), f"{section}-{theme}-{width}")


@pytest.mark.long
def test_hidden_rows_are_shown_as_hidden(browser: Browser) -> None:
    """With `show_owners = "own"` a viewer over TCP has no identity: no section reads as empty or as zero."""
    with demo_agent("--show-owners", "own") as url, opened(browser, url, height=TALL) as page:
        at_a_delta(page)
        for section in ("who", "turns", "accounts", "events", "alerts"):
            expect(page.locator(f"[data-hidden={section}]")).to_contain_text("hidden: you see your own")
        assert page.locator("#accounts").inner_text().count("0") == 0
        expect(page.locator("#accounts table")).to_have_count(0)
        for by in ("Users", "Pods", "Containers", "Processes"):
            page.click(f"#who .choice button:has-text('{by}')")
            expect(page.locator("#who tr[data-row]")).to_have_count(0)
            assert "Nothing runs" not in page.inner_text("#who")
        for name in ("alice", "bob", "chen"):
            assert name not in page.inner_text("body")


@pytest.mark.long
def test_nothing_is_marked_as_hidden_where_all_is_shown(browser: Browser, demo: str) -> None:
    with opened(browser, demo, height=TALL) as page:
        at_a_delta(page)
        expect(page.locator("[data-hidden]")).to_have_count(0)
