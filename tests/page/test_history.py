"""History on the page: the pointer, the zoom and its statistics, the axis, gaps, limits and the legend."""

import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, FloatRect, Page, Route, expect

from browser import demo_agent, opened
from waiting import until

pytestmark = pytest.mark.long

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
STEP_S = 5.0


@pytest.fixture(scope="module")
def demo() -> Iterator[str]:
    """Without a GPU that is hot."""
    with demo_agent("--lost", "7", "--interval", "0.5") as url:
        yield url


@contextmanager
def history_of(browser: Browser, url: str) -> Iterator[Page]:
    """The page, scrolled to its charts."""
    with opened(browser, url if "?" in url else f"{url}/?range=1h", height=1000) as page:
        page.wait_for_selector("#history [data-series=gpu_temperature_celsius]")
        page.locator("#history details").evaluate_all("all => all.forEach(each => (each.open = true))")
        page.evaluate("document.getElementById('history').scrollIntoView({ behavior: 'instant' })")
        yield page


def gpus_of(page: Page) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate("fetch('/api/v1/gpus').then(a => a.json()).then(a => a.gpus.by_uuid)")
    return found


class PlayedHistory:
    """Answers of `/api/v1/history` that are a function of time: an agent in a test has run for seconds only."""

    def __init__(self, page: Page, value: Callable[[float, int], float | None]) -> None:
        self._value = value
        self.uuids = sorted(gpus_of(page), key=lambda uuid: uuid)
        self.now_s: float = math.floor(page.evaluate("Date.now() / 1000"))
        page.route(re.compile(r"/api/v1/history\?"), self._answer)

    def value(self, unix_s: float, index: int = 0) -> float | None:
        return self._value((unix_s - self.now_s) / 3600, index)

    def _answer(self, route: Route) -> None:
        given = {name: values[0] for name, values in parse_qs(urlsplit(route.request.url).query).items()}
        range_s = int(given["range"][:-1]) * UNITS[given["range"][-1]]
        end_s = float(given.get("end_unix_s", self.now_s))
        step_s = max(STEP_S, math.ceil(range_s / int(given["points"])))
        length = int(range_s // step_s)
        start_s = end_s - length * step_s
        subjects = self.uuids if given["series"].startswith("gpu_") else ["node"]
        values = {
            subject: [self.value(start_s + (at + 1) * step_s, index) for at in range(length)]
            for index, subject in enumerate(subjects)
        }
        kept = {"fine_step_s": 1, "fine_span_s": 3600, "coarse_step_s": 15, "coarse_span_s": 86400, "bytes": 1}
        document = {"step_s": step_s, "start_unix_s": start_s, "values": values, "source": "memory"}
        route.fulfill(body=json.dumps({**document, "kept": {**kept, "beyond": None}}), content_type="application/json")


def power_plot(page: Page) -> FloatRect:
    box = page.locator("#history [data-series=gpu_power_watts] .u-over").bounding_box()
    assert box is not None
    return box


def play(page: Page, value: Callable[[float, int], float | None]) -> PlayedHistory:
    """Loads the charts again, with played readings."""
    played = PlayedHistory(page, value)
    with page.expect_response(re.compile("series=gpu_temperature_celsius")):
        page.click("#history .choice button:has-text('24 hours')")
    with page.expect_response(re.compile("series=gpu_temperature_celsius&range=1h")):
        page.click("#history .choice button:has-text('1 hour')")
    return played


def point_at(page: Page, share: float) -> None:
    box = power_plot(page)
    page.mouse.move(box["x"] + share * (box["width"] - 1), box["y"] + 40)


def tip_of(page: Page) -> tuple[float, dict[str, str]]:
    """The time under the pointer, and the text of each value."""
    tip = page.locator("#history [data-series=gpu_power_watts] .tip")
    expect(tip).to_be_visible()
    unix_s = float(tip.locator("[data-f=time]").get_attribute("data-unix") or "nan")
    values = tip.locator("[data-value]").evaluate_all(
        "rows => rows.map(row => [row.dataset.value, row.querySelector('b').textContent])"
    )
    return unix_s, dict(values)


def watts(value: float | None) -> str:
    return "–" if value is None else f"{math.floor(value + 0.5)}\u202fW"


def ramp(hours: float, index: int) -> float:
    """100 W an hour ago, 700 W now, less for each further GPU."""
    return 700 + 600 * hours - 10 * index


def test_the_pointer_shows_the_time_and_the_values(browser: Browser, demo: str) -> None:
    with history_of(browser, demo) as page:
        played = play(page, ramp)
        point_at(page, 0.5)
        unix_s, values = tip_of(page)
        assert abs(unix_s - (played.now_s - 1800)) < 60
        assert values == {uuid: watts(played.value(unix_s, index)) for index, uuid in enumerate(played.uuids)}
        shown = page.locator("#history .tip [data-f=time]").inner_text()
        assert re.search(r"\d\d:\d\d:\d\d", shown)
        chart = page.locator("#history [data-series=gpu_temperature_celsius]")
        for share in (0.05, 0.5, 0.95):
            chart.locator(".u-over").hover(position={"x": share * power_plot(page)["width"], "y": 40})
            tip = chart.locator(".tip").bounding_box()
            assert tip is not None
            assert 0 <= tip["x"] <= 1280 - tip["width"], "the tip of the last column is in the window"
        page.mouse.move(0, 0)
        expect(page.locator("#history .tip")).to_have_count(0)


def test_the_axis_covers_the_range_asked_for(browser: Browser, demo: str) -> None:
    """The agent has run for seconds: the rest of the hour and of the day is empty, not cut off."""
    with history_of(browser, demo) as page:
        for name, range_s in (("1 hour", 3600), ("24 hours", 86400)):
            with page.expect_response(re.compile("series=gpu_temperature_celsius")):
                page.click(f"#history .choice button:has-text('{name}')")
            now_s = page.evaluate("Date.now() / 1000")
            for share in (0.0, 0.5):
                point_at(page, share)
                unix_s, values = tip_of(page)
                assert abs(unix_s - (now_s - (1 - share) * range_s)) < 0.02 * range_s
                assert values == {}
                expect(page.locator("#history .tip")).to_contain_text("no reading")


LINE_PIXELS = """(at) => {
    const canvas = document.querySelector('#history [data-series=gpu_power_watts] canvas');
    const over = document.querySelector('#history [data-series=gpu_power_watts] .u-over');
    const ratio = canvas.width / canvas.clientWidth;
    const left = Math.round((over.offsetLeft + at * over.clientWidth) * ratio);
    const column = new OffscreenCanvas(1, Math.round(over.clientHeight * ratio));
    const copy = column.getContext('2d', { willReadFrequently: true });
    copy.drawImage(canvas, -left, 0);
    const { data } = copy.getImageData(0, 0, 1, column.height);
    let coloured = 0;
    for (let pixel = 0; pixel < data.length; pixel += 4) {
        const [red, green, blue, opaque] = data.subarray(pixel, pixel + 4);
        if (opaque && Math.max(red, green, blue) - Math.min(red, green, blue) > 60) coloured += 1;
    }
    return coloured;
}"""


def test_a_gap_is_a_gap(browser: Browser, demo: str) -> None:
    with history_of(browser, demo) as page:
        play(page, lambda hours, index: None if -0.7 < hours < -0.3 else ramp(hours, index))
        until(lambda: page.evaluate(LINE_PIXELS, 0.15) > 0, "the lines are drawn", within_s=20)
        assert page.evaluate(LINE_PIXELS, 0.5) == 0
        point_at(page, 0.5)
        assert tip_of(page)[1] == {}
        point_at(page, 0.15)
        assert len(tip_of(page)[1]) == 8


def test_missing_snapshots_are_a_gap(browser: Browser, demo: str) -> None:
    with opened(browser, demo) as page:
        found: Any = page.evaluate(
            """async () => {
                const { Recent } = await import('/static/recent.js');
                const recent = new Recent('gpu_power_watts', '1h', 720);
                const at = unix => ({ time_unix_s: unix, gpus: { by_uuid: { G: { up: true, power_watts: unix } } } });
                for (const unix of [100, 101, 102, 140, 141]) recent.add(at(unix));
                return [recent.times, recent.columns.get('G')];
            }"""
        )
    assert found == [[100, 101, 102, 103, 140, 141], [100, 101, 102, None, 140, 141]]


def statistics(page: Page, uuid: str) -> list[str]:
    row = page.locator(f"#history .statistics [data-subject='{uuid}']")
    return [row.locator(f"[data-f='gpu_power_watts.{name}']").inner_text() for name in ("least", "mean", "most")]


def least(page: Page, uuid: str) -> int:
    return int(statistics(page, uuid)[0].split()[0])


def expected_statistics(played: PlayedHistory, from_s: float, to_s: float) -> list[str]:
    length = int((to_s - from_s) // STEP_S)
    start_s = to_s - length * STEP_S
    values = [played.value(start_s + (at + 1) * STEP_S) or 0.0 for at in range(length)]
    return [watts(each) for each in (min(values), sum(values) / len(values), max(values))]


def drag(page: Page, start: float, end: float) -> None:
    point_at(page, start)
    page.mouse.down()
    point_at(page, (start + end) / 2)
    point_at(page, end)
    page.mouse.up()


def zoomed_to(page: Page) -> tuple[int, int]:
    given = parse_qs(urlsplit(page.url).query)
    return int(given["from"][0]), int(given["to"][0])


def test_the_zoom_has_statistics_an_address_and_a_reset(browser: Browser, demo: str) -> None:
    with history_of(browser, demo) as page:
        played = play(page, ramp)
        uuid = played.uuids[0]
        whole, first = statistics(page, uuid), least(page, uuid)
        expect(page.locator("#history .zoom")).to_have_count(0)
        with page.expect_response(re.compile(r"series=gpu_temperature_celsius.*end_unix_s=")):
            drag(page, 0.2, 0.4)
        from_s, to_s = zoomed_to(page)
        assert abs(from_s - (played.now_s - 0.8 * 3600)) < 60
        assert abs(to_s - (played.now_s - 0.6 * 3600)) < 60
        expected = expected_statistics(played, from_s, to_s)
        until(lambda: statistics(page, uuid) == expected, f"statistics {expected}", within_s=20)
        assert expected != whole
        # The axis of every chart is the zoom, and a snapshot does not end it.
        sequence = page.get_attribute("main", "data-sequence")
        page.wait_for_selector(f"main:not([data-sequence='{sequence}'])")
        point_at(page, 0.0)
        assert abs(tip_of(page)[0] - from_s) <= 10
        address = page.url
        page.click("#history .zoom button:has-text('Reset zoom')")
        expect(page.locator("#history .zoom")).to_have_count(0)
        assert "from=" not in page.url
        # Within the test, snapshots move the range by less than a minute: 10 W of the ramp.
        until(lambda: abs(least(page, uuid) - first) < 10, f"the whole range again, from {first} W", within_s=20)
    with history_of(browser, address) as page:
        expect(page.locator("#history .zoom button")).to_have_text("Reset zoom")
        assert zoomed_to(page) == (from_s, to_s)
        page.keyboard.press("Escape")
        expect(page.locator("#history .zoom")).to_have_count(0)


def test_limits_are_lines(browser: Browser, demo: str) -> None:
    with history_of(browser, demo) as page:
        page.wait_for_selector("#history [data-series=gpu_temperature_celsius] .limit")
        found: Any = page.evaluate(
            """() => Object.fromEntries([...document.querySelectorAll('#history [data-series]')].map(chart => [
                chart.dataset.series,
                [...chart.querySelectorAll('.limit')].map(line => {
                    const box = line.getBoundingClientRect();
                    const over = chart.querySelector('.u-over').getBoundingClientRect();
                    const inside = box.top > over.top && box.top < over.bottom && box.width >= over.width - 1;
                    return [line.innerText.replace(/\\s+/g, ' '), Number(line.dataset.limit), inside];
                }),
            ]))"""
        )
        up = [gpu for gpu in gpus_of(page).values() if gpu["up"]]
        assert found["gpu_power_watts"] == [["limit 700 W", up[0]["power_limit_watts"], True]]
        assert found["gpu_temperature_celsius"] == [["slowdown 95 °C", up[0]["temperature_slowdown_celsius"], True]]
        assert found["gpu_memory_used_bytes"] == [["capacity 141 GiB", up[0]["memory_total_bytes"], True]]
        assert found["gpu_utilization_ratio"] == found["cpu_utilization_ratio"] == []


def test_there_is_one_legend_and_it_selects_lines(browser: Browser, demo: str) -> None:
    with history_of(browser, demo) as page:
        expect(page.locator("#history .swatch.stroke")).to_have_count(8)
        rows = page.locator("#history .statistics tbody th")
        page.click("#history .legend-line button:has-text('GPU 2')")
        expect(rows).to_have_text(["GPU 2"])
        page.click("#history .legend-line button:has-text('GPU 0')")
        expect(rows).to_have_text(["GPU 0", "GPU 2"])
        address = page.url
        assert "lines=2.0" in address
        page.click("#history .legend-line button:has-text('GPU 2')")
        page.click("#history .legend-line button:has-text('GPU 0')")
        expect(rows).to_have_count(8)
    with history_of(browser, address) as page:
        expect(page.locator("#history .statistics tbody th")).to_have_text(["GPU 0", "GPU 2"])
