"""The page at a glance: the first screen answers what is broken, what is free, and what is held idle."""

import json
import math
import re
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from browser import demo_agent, opened
from demo_node import DemoNode
from gpucommons.faces.documents.turns import turns_of
from gpucommons.model.sharing import ARRIVAL, ArrivalReading, ParkedFor, ParkedReading, ParkingReading
from running import running_agent
from waiting import until

pytestmark = pytest.mark.long

# The text that a person reads without scrolling: its box is inside the window, and nothing covers it.
FIRST_SCREEN = """() => {
    const seen = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const holder = walker.currentNode.parentElement;
        const range = document.createRange();
        range.selectNodeContents(walker.currentNode);
        const box = range.getBoundingClientRect();
        const begins = box.top >= 0 && box.left >= 0;
        const ends = box.bottom <= innerHeight && box.right <= innerWidth;
        if (!box.width || !begins || !ends || holder.closest('.hidden, .skip')) continue;
        const [first] = range.getClientRects();
        const top = document.elementFromPoint(first.x + first.width / 2, first.y + first.height / 2);
        if (top && (top.contains(holder) || holder.contains(top))) seen.push(walker.currentNode.textContent);
    }
    return seen.join(' ').replace(/\\s+/g, ' ');
}"""


@pytest.fixture(scope="module")
def lab() -> Iterator[str]:
    with running_agent("--simulate", "lab") as agent:
        yield agent.url


@pytest.fixture(scope="module")
def faults() -> Iterator[str]:
    with running_agent("--simulate", "faults") as agent:
        yield agent.url


def problems_of(page: Page) -> Any:
    return page.evaluate("fetch('/api/v1/problems').then(a => a.json())")


def summary_of(page: Page) -> Any:
    return problems_of(page)["summary"]


def part(page: Page, name: str) -> Any:
    return next((each for each in summary_of(page)["parts"] if each["name"] == name), None)


def expect_free_and_idle(page: Page, shown: str) -> None:
    """The number of free slots and the holder that has been idle for longest, as the slots are."""
    slots: Any = page.evaluate("fetch('/api/v1/slots').then(a => a.json()).then(a => Object.values(a.slots))")
    free = sum(slot["state"] == "free" for slot in slots)
    assert re.search(rf"\b{free} free\b", shown), shown
    idle = [slot for slot in slots if slot["state"] == "held_idle"]
    longest_s = max(slot["idle_s"] for slot in idle)
    holders = {each["account"] for slot in idle if slot["idle_s"] >= longest_s - 1 for each in slot["holders"]}
    found = re.search(rf"\b{len(idle)} held idle (\S+): GPU", shown)
    assert found, shown
    assert found[1] in holders


@pytest.mark.parametrize(("width", "height"), [(360, 640), (1280, 720)])
def test_the_first_screen_of_a_bad_day_answers(browser: Browser, faults: str, width: int, height: int) -> None:
    with opened(browser, faults, width=width, height=height) as page:
        # GPU 3 is lost some seconds after the start.
        until(lambda: part(page, "lost") is not None, "a lost GPU", within_s=60)
        page.wait_for_selector("[data-part-of-sentence=lost]")
        shown = page.evaluate(FIRST_SCREEN)
        assert re.search(r"1 GPU lost GPU 3 for \d+ s", shown), shown
        assert re.search(r"1 overheating GPU 1", shown), shown
        assert "fallen off the bus" in shown
        expect_free_and_idle(page, shown)
        assert page.evaluate("document.title").startswith("1 GPU lost · 1 overheating")
        expect(page.locator("link[rel=icon]")).to_have_attribute("href", "/static/icon-bad.svg")


@pytest.mark.parametrize(("width", "height"), [(360, 640), (1280, 720)])
def test_the_first_screen_of_a_good_day_answers(browser: Browser, lab: str, width: int, height: int) -> None:
    with opened(browser, lab, width=width, height=height) as page:
        until(lambda: part(page, "held_idle") is not None, "a slot that is held idle", within_s=60)
        page.wait_for_selector("[data-part-of-sentence=held_idle]")
        shown = page.evaluate(FIRST_SCREEN)
        expect_free_and_idle(page, shown)
        assert "lost" not in shown
        if part(page, "waiting") is None:
            assert "No problem." in shown, problems_of(page)


def test_the_first_screen_counts_only_what_is_visible(browser: Browser, lab: str) -> None:
    """The measure itself: text under another element, out of the window or hidden does not count."""
    with opened(browser, lab, width=360, height=640) as page:
        page.wait_for_selector("[data-part-of-sentence=free]")
        assert " free" in page.evaluate(FIRST_SCREEN)
        page.evaluate("document.querySelector('.bar').style.minHeight = '640px'")
        assert " free" not in page.evaluate(FIRST_SCREEN), "pushed out of the window"
        page.evaluate("document.querySelector('.bar').style.minHeight = ''")
        assert " free" in page.evaluate(FIRST_SCREEN)
        page.evaluate("document.querySelector('.bar').style.cssText = 'position: fixed; inset: 0'")
        assert " free" not in page.evaluate(FIRST_SCREEN), "covered by the bar"


def test_the_lost_card_says_the_cause_the_job_and_what_to_do(browser: Browser, faults: str) -> None:
    with opened(browser, faults, height=2000) as page:
        card = page.locator(".card.lost")
        expect(card).to_contain_text("XID 79, the GPU has fallen off the bus", timeout=60_000)
        expect(card).to_contain_text("It ended", timeout=15_000)
        expect(card).to_contain_text("What to do: Drain the node and reboot it")
        storm = page.locator("[data-problem*='xid/'][data-problem$='/31']")
        expect(storm).to_contain_text(re.compile(r"XID 31 x \d+ in \d+ min: page fault of the program"), timeout=30_000)


def test_a_part_of_the_sentence_leads_to_its_rows(browser: Browser, lab: str) -> None:
    with opened(browser, lab, height=2400) as page:
        until(lambda: part(page, "free") is not None, "a summary", within_s=30)
        page.click("[data-part-of-sentence=free] a")
        free = part(page, "free")["slots"]
        assert free
        assert page.url.endswith(f"#gpu-{free[0].split('.')[0]}")
        cells = page.locator("[data-mig]:not(.dim)").evaluate_all("cells => cells.map(c => c.dataset.state)")
        assert set(cells) == {"free"}
        cards = {name.split(".")[0] for name in free}
        expect(page.locator(".card:not(.dim)")).to_have_count(len(cards))
        page.keyboard.press("Escape")
        expect(page.locator(".dim")).to_have_count(0)


def test_cards_show_mig_activity_and_who_holds(browser: Browser, lab: str) -> None:
    with opened(browser, lab, height=2400) as page:
        mig = page.locator(".card", has=page.locator(".mig"))
        expect(mig.locator("[data-f=use_ratio]").first).to_have_text(re.compile(r"\d"))
        expect(mig.locator(".spark polyline").first).to_be_attached()
        expect(page.locator(".card .states[data-state=busy]").first).to_contain_text("by alice")
        assert page.locator(".card [data-queued=waiting]").count() >= 1
        assert page.locator(".card .mark", has_text="power cap").count() == 0, "a power cap is normal"


@pytest.mark.parametrize(("width", "expected"), [(360, 1), (1280, 4), (1920, 4), (2560, 8)])
def test_rows_of_cards_have_equal_length(browser: Browser, demo: str, width: int, expected: int) -> None:
    with opened(browser, demo, width=width) as page:
        tops = page.locator(".cards > li").evaluate_all("cards => cards.map(c => c.getBoundingClientRect().top)")
        rows = [tops.count(top) for top in sorted(set(tops))]
        assert rows == [expected] * (8 // expected)


def test_a_card_keeps_its_height_when_chips_come_and_go(browser: Browser, demo: str) -> None:
    with opened(browser, demo, width=1920) as page:
        heights: Any = page.evaluate(
            """() => {
                const card = document.querySelector('.card:not(.lost)');
                const marks = card.querySelector('.facts');
                const before = card.getBoundingClientRect().height;
                marks.innerHTML = '<span class="mark bad">hw thermal slowdown</span>'.repeat(9);
                const full = card.getBoundingClientRect().height;
                marks.innerHTML = '';
                return [before, full, card.getBoundingClientRect().height];
            }"""
        )
        assert len(set(heights)) == 1, heights


WATCHED_CARDS = """async () => {
    const main = document.querySelector('main');
    const marks = new Set();
    const places = new Set();
    for (let snapshots = 0; snapshots < 90 && marks.size < 3; snapshots += 1) {
        const cards = [...document.querySelectorAll('.card')];
        const chips = [...document.querySelectorAll('.card .state, .card .facts')];
        marks.add(chips.map(each => each.innerText).join());
        // The strip above them has a line more while a user waits: their places are those among each other.
        const first = cards[0].getBoundingClientRect();
        places.add(cards.map(card => card.getBoundingClientRect())
            .map(box => [box.x, Math.round(box.y - first.y), box.width, box.height].join()).join(';'));
        await new Promise(done => new MutationObserver((_, watch) => { watch.disconnect(); setTimeout(done, 50); })
            .observe(main, { attributeFilter: ['data-sequence'] }));
    }
    return [marks.size, [...places]];
}"""


def test_cards_stay_in_place_while_snapshots_arrive(browser: Browser, lab: str) -> None:
    # In one column no card is as high as its neighbour.
    with opened(browser, lab, width=360, height=4000) as page:
        found: Any = page.evaluate(WATCHED_CARDS)
        chips, places = found
        assert chips >= 3, "no chip came or went"
        assert len(places) == 1, places


def test_on_a_phone_tables_become_cards_or_scroll_visibly(browser: Browser, demo: str) -> None:
    with opened(browser, demo, width=360, height=6000) as page:
        page.locator("#history details").evaluate_all("all => all.forEach(each => (each.open = true))")
        page.wait_for_selector("#history .statistics")
        found: Any = page.evaluate(
            """() => [...document.querySelectorAll('main table')].map(table => {
                const holder = table.closest('.scroll');
                const fits = table.getBoundingClientRect().right <= innerWidth;
                const { overflowX, backgroundImage } = getComputedStyle(holder || table);
                const scrolls = holder && holder.scrollWidth > holder.clientWidth && overflowX === 'auto';
                const shows = scrolls && backgroundImage.includes('gradient') && holder.tabIndex === 0;
                return [table.className, fits ? 'fits' : shows ? 'scrolls' : 'is cut'];
            })"""
        )
        assert {"fits", "scrolls"} == {how for _, how in found}, found
        for kind in ("stacked", "who", "accounts", "statistics"):
            assert any(kind in name for name, _ in found), kind


def test_the_address_keeps_the_view(browser: Browser, demo: str) -> None:
    with opened(browser, demo) as page:
        page.click("#who .choice button:has-text('Users')")
        page.locator("#who thead th", has_text="Power").locator("button").click()
        page.select_option("#who select", "0")
        page.fill("#who input[type=search]", "ali")
        page.click("#history .choice button:has-text('24 hours')")
        page.click("#accounts .choice button:has-text('7 days')")
        page.click("#who tr[data-row] th button")
        address = page.url
        for piece in ("by=user", "sort=-power_watts", "gpu=0", "q=ali", "range=24h", "period=7d", "focus=user%3A"):
            assert piece in address
    with opened(browser, address) as page:
        expect(page.locator(".focus")).to_contain_text("alice")
        expect(page.locator("#who .choice button[aria-pressed=true]")).to_have_text("Users")
        power = page.locator("#who thead th", has_text="Power")
        expect(power).to_have_attribute("aria-sort", "descending")
        assert page.input_value("#who input[type=search]") == "ali"
        assert page.input_value("#who select") == "0"
        expect(page.locator("#history .choice button[aria-pressed=true]")).to_have_text("24 hours")
        expect(page.locator("#accounts .choice button[aria-pressed=true]")).to_have_text("7 days")


def test_on_a_phone_the_expected_wait_is_on_the_screen(browser: Browser, demo: str) -> None:
    with opened(browser, demo, width=360, height=6000) as page:
        for cell in ("#turns [data-label='Expected wait']:not(:empty)", "#queue [data-label='Expected wait']"):
            # A cell that is drawn again at this moment has none.
            found = until(page.locator(cell).first.bounding_box, f"{cell} is drawn")
            assert found["x"] >= 0
            assert found["x"] + found["width"] <= 360
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_paused_parked_and_waiting_are_distinguished(browser: Browser, demo: str) -> None:
    turns = {
        "clients": {
            "a": {"gpu_uuid": "G", "wait": {}, "program": "p1"},
            "b": {"gpu_uuid": "G", "wait": {}, "program": None},
            "c": {"gpu_uuid": "G", "wait": None, "program": "p2"},
        },
        "parking": {"programs": {"p3": {"gpu_uuid": "G"}}},
    }
    with opened(browser, demo) as page:
        found: Any = page.evaluate(
            """async turns => {
                const { queuedByGpu } = await import('/static/states.js');
                return queuedByGpu({ turns }).get('G');
            }""",
            turns,
        )
    assert found == {"waiting": 1, "paused": 1, "parked": 1}


def test_both_owners_read_one_sentence_about_room_that_was_made(browser: Browser, demo: str) -> None:
    train, notebook = ParkedFor("train.py", "dana", 1003, 0), ParkedFor("lab.ipynb", "alice", 1000, 40 << 30)
    sharing = DemoNode().sharing(3.0)
    uuid = sharing.gpus[0].uuid
    parked = ParkedReading(
        *("session:8@1000", "alice · lab.ipynb (pid 4711)", "alice", 1000, "parked", uuid, (4711,), 0, 40 << 30),
        *(100.0, ARRIVAL),
        made_for=train,
    )
    arrival = ArrivalReading(
        *("arrival:7.1", "dana · train.py (pid 7)", "dana", 1003, 7, uuid, False, 100.0, 6.2, (notebook,))
    )
    turns = turns_of(sharing._replace(parking=ParkingReading(0.0, False, "", (parked,), arrivals=(arrival,))), {})
    with opened(browser, demo) as page:
        found: Any = page.evaluate(
            """async turns => {
                const { render } = await import('/static/vendor/preact.mjs');
                const { html } = await import('/static/html.js');
                const { Turns } = await import('/static/sections/turns.js');
                const document = { ...await (await fetch('/api/v1/snapshot')).json(), turns };
                const place = window.document.createElement('div');
                render(html`<${Turns} document=${document} />`, place);
                return [...place.querySelectorAll('.parked li, .arrivals li')].map(row => row.textContent);
            }""",
            json.loads(json.dumps(turns)),
        )
    for_alice, for_dana = (" ".join(text.split()) for text in found)
    assert for_alice.startswith("alice · lab.ipynb (pid 4711): parked for")
    assert for_alice.endswith("to make room for dana's train.py; wakes when it is used")
    assert for_dana == "dana · train.py (pid 7) waited 6 s for room: 40.0 GiB of alice's idle lab.ipynb was parked"


def test_the_queue_shows_leases_waiters_and_reservations(browser: Browser, demo: str) -> None:
    with opened(browser, demo, height=6000) as page:
        queue = page.locator("#queue")
        expect(queue).to_contain_text("2 leases · 2 waiting · 1 reservation")
        expect(queue).to_contain_text("the quota is used up: user bob has 1 of 1 GPUs")
        expect(queue.locator("[data-span]")).to_have_count(5)
        expect(queue).to_contain_text("farah python (30001)")


def test_a_reserved_slot_is_held_until_it_is_free_and_memory_has_the_unit_that_was_asked_for(
    browser: Browser, demo: str
) -> None:
    reserved = {"user": "dana", "name": "", "gpus": 1, "slots": ["3"], "from_unix_s": 0.0, "until_unix_s": 9e9}
    held = [{"sentence": "GPU 3 is held by emeka, idle for 2 min"}]
    reservations = {
        "r1": {**reserved, "active": False, "held": []},
        "r2": {**reserved, "active": True, "held": held},
        "r3": {**reserved, "active": True, "held": []},
    }
    with opened(browser, demo) as page:
        found: Any = page.evaluate(
            """async reservations => {
                const { render } = await import('/static/vendor/preact.mjs');
                const { html } = await import('/static/html.js');
                const { Queue } = await import('/static/sections/queue.js');
                const document = await (await fetch('/api/v1/snapshot')).json();
                const [first] = Object.values(document.queue.leases);
                const leases = { 1: { ...first, memory_bytes: 20e9, memory_text: '20 GB' } };
                document.queue = { ...document.queue, leases, reservations };
                const place = window.document.createElement('div');
                render(html`<${Queue} document=${document} />`, place);
                const cells = label => [...place.querySelectorAll(`[data-label='${label}']`)].map(c => c.textContent);
                return [cells('State'), cells('Memory')];
            }""",
            reservations,
        )
    assert found == [["to come", "GPU 3 is held by emeka, idle for 2 min", "active"], ["20 GB"]]


def test_headroom_is_not_called_health_and_its_bars_agree_with_the_panels(browser: Browser, demo: str) -> None:
    with opened(browser, demo, height=6000) as page:
        node = page.locator("#node")
        expect(node).to_contain_text("CPU and memory headroom")
        assert "Health" not in page.inner_text("main")
        texts: Any = page.evaluate(
            """() => ['health.cpu_utilization', 'cpu.utilization_ratio']
                .map(name => parseInt(document.querySelector(`#node [data-f="${name}"]`).textContent))"""
        )
        assert abs(texts[0] - texts[1]) <= 1
        order = page.eval_on_selector_all("main section", "sections => sections.map(s => s.id)")
        assert order.index("now") < order.index("gpus") < order.index("node")


GROUPINGS = {"Owners": "owner", "Users": "account", "Pods": "pod_uid", "Containers": "container_id"}
SEARCHED = ("user", "account", "pid", "pod", "container", "job")


def processes_of(page: Page) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate("fetch('/api/v1/who').then(a => a.json()).then(a => a.who.processes)")
    return found


def expect_found(page: Page, text: str, row: str) -> None:
    page.fill("#who input[type=search]", text)
    expect(page.locator(f"#who tr[data-row='{row}']"), f"search for {text}").to_have_count(1)


def test_the_search_covers_users_commands_pids_pods_and_models_in_every_grouping(browser: Browser) -> None:
    # Command lines, which have the name of the file, are shown to everyone only where the administrator says so.
    with demo_agent("--show-owners", "all") as url, opened(browser, url, height=2400) as page:
        processes = processes_of(page)
        for by, field in (*GROUPINGS.items(), ("Processes", "")):
            page.click(f"#who .choice button:has-text('{by}')")
            key, process = next((key, row) for key, row in processes.items() if not field or row[field])
            row = process[field] if field else key
            for name in SEARCHED:
                if process[name] is not None:
                    expect_found(page, str(process[name]), row)
            expect_found(page, f"run-{process['pid']}.yaml", row)
            expect(page.locator("#who tr[data-row]")).to_have_count(1)
            expect_found(page, "h200", row)
            page.fill("#who input[type=search]", "no such thing")
            expect(page.locator("#who tr[data-row]")).to_have_count(0)


def test_the_search_finds_users_of_slurm_jobs(browser: Browser, lab: str) -> None:
    with opened(browser, lab, height=2400) as page:
        processes = processes_of(page)
        key, job = next((key, row) for key, row in processes.items() if row["job"] and row["user"])
        for by, row in (("Owners", job["owner"]), ("Users", job["account"]), ("Processes", key)):
            page.click(f"#who .choice button:has-text('{by}')")
            for text in (job["user"], job["job"], str(job["pid"])):
                expect_found(page, text, row)


def who_rows(page: Page) -> dict[str, tuple[str, str]]:
    """The number of processes and the GPUs of each row of the table."""
    shown = page.locator("#who tr[data-row]").evaluate_all(
        """rows => rows.map(row => [row.dataset.row, ...['processes', 'gpus']
            .map(name => row.querySelector(`[data-f=${name}]`)?.textContent)])"""
    )
    return {row: (count, gpus) for row, count, gpus in shown}


def test_a_gpu_filter_filters_the_sums_of_every_grouping(browser: Browser, demo: str) -> None:
    with opened(browser, demo, height=2400) as page:
        processes = processes_of(page).values()
        page.select_option("#who select", "0")
        for by, field in GROUPINGS.items():
            page.click(f"#who .choice button:has-text('{by}')")
            expected: dict[str, int] = {}
            for each in processes:
                if each["gpu_index"] == 0 and each[field]:
                    expected[each[field]] = expected.get(each[field], 0) + 1
            # The rows of the grouping before may be as many.
            until(lambda: who_rows(page).keys() == expected.keys(), f"the rows by {by}")  # noqa: B023 - called here
            assert who_rows(page) == {row: (str(count), "0") for row, count in expected.items()}


def test_rows_of_accounts_and_turns_can_be_focused(browser: Browser, demo: str) -> None:
    with opened(browser, demo, height=6000) as page:
        page.click("#accounts tr[data-user=bob] th button")
        expect(page.locator(".focus")).to_contain_text("bob")
        assert page.locator("#who tr[data-row].lit").evaluate_all("rows => rows.map(r => r.dataset.row)") == [
            "user/1001"
        ]
        expect(page.locator("#accounts tr[data-user=bob]")).to_have_class(re.compile("lit"))
        expect(page.locator("#accounts tr[data-user=alice]")).to_have_class(re.compile("dim"))
        page.keyboard.press("Escape")
        page.locator("#turns tr[data-client] th button", has_text="alice-job").first.click()
        expect(page.locator(".focus")).to_contain_text("alice")
        expect(page.locator("#who tr[data-row='user/1000']")).to_have_class(re.compile("lit"))
        expect(page.locator("#accounts tr[data-user=alice]")).to_have_class(re.compile("lit"))


def perceived(colour: str) -> tuple[float, float, float]:
    """A colour of CSS in OKLab, where distances are as people see them: black and white are 1 apart."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    long = math.cbrt(0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue)
    medium = math.cbrt(0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue)
    short = math.cbrt(0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue)
    return (
        0.2104542553 * long + 0.7936177850 * medium - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * medium + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * medium - 0.8086757660 * short,
    )


def unlike(one: str, other: str) -> float:
    return math.dist(perceived(one), perceived(other))


COLOURS_SHOWN = """() => {
    const colourOf = row => row && row.querySelector('.swatch') && getComputedStyle(row.querySelector('.swatch')).color;
    const rows = (selector, label) => [...document.querySelectorAll(selector)].map(row => [label(row), colourOf(row)]);
    return {
        cards: rows('.card [data-part^="user/"]', row => row.querySelector('.name').textContent),
        who: rows('#who tr[data-row^="user/"]', row => row.querySelector('button').textContent),
        accounts: rows('#accounts tr[data-user]', row => row.dataset.user),
        turns: rows('#turns tr[data-client]', row => row.querySelector('bdi').textContent.replace('-job', '')),
        queue: [...document.querySelectorAll('#queue [data-span]')].map(row => [
            row.textContent.trim().split(/[ :]/)[0], getComputedStyle(row.querySelector('.span')).color]),
    };
}"""


def test_an_owner_has_one_colour_everywhere(browser: Browser, demo: str) -> None:
    with opened(browser, demo, height=6000) as page:
        shown: Any = page.evaluate(COLOURS_SHOWN)
        found: dict[str, set[str]] = {}
        for section, rows in shown.items():
            assert rows, section
            for name, colour in rows:
                found.setdefault(name, set()).add(colour)
        assert {"alice", "bob", "chen"} <= set(found)
        assert {name: colours for name, colours in found.items() if len(colours) != 1} == {}
        assert len(set.union(*found.values())) == len(found), "two owners have one colour"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_twenty_owners_have_twenty_colours_and_gpus_have_others(browser: Browser, demo: str, theme: str) -> None:
    with opened(browser, demo, height=6000, theme=theme) as page:
        page.wait_for_selector("#history .swatch.stroke")
        found: Any = page.evaluate(
            """async () => {
                // A module of its own: it knows no owner yet.
                const { colour } = await import('/static/owners.js?alone');
                const names = Array.from({ length: 20 }, (_, at) => `user/${1000 + 7 * at}`);
                const shown = classes => {
                    const probe = document.body.appendChild(document.createElement('i'));
                    probe.className = classes;
                    const found = getComputedStyle(probe).color;
                    probe.remove();
                    return found;
                };
                const lines = document.querySelectorAll('#history .swatch.stroke');
                const gpus = Array.from(lines, each => getComputedStyle(each).color);
                return [names.map(name => shown(colour(name))), gpus];
            }"""
        )
        owners, gpus = found
        assert len(gpus) == 8
        nearest = min(unlike(*pair) for pair in combinations(owners, 2))
        assert nearest > 0.08, "two owners look alike"
        nearest = min(unlike(*pair) for pair in product(owners, gpus))
        assert nearest > 0.10, "a GPU looks like an owner"
