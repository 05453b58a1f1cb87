"""The page of the fleet in a real Chromium, over a real Prometheus that scrapes a few nodes, one of which is dead."""

import itertools
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from browser import keep_screenshot, opened
from cli.test_fleet_report import EUR, fleet_of
from fleet_nodes import SimpleNode, fleet
from gpucommons.model.allocations import SlotState
from page.test_page import AXE
from prometheus_server import Prometheus
from running import RunningAgent, running_agent
from waiting import until

pytestmark = pytest.mark.long

FREE, BUSY, IDLE = (SlotState.FREE, ""), (SlotState.BUSY, "alice"), (SlotState.HELD_IDLE, "bob")
SCRIPT = "<script>alert(1)</script>"
A100 = "NVIDIA A100-SXM4-80GB"
NODES = {
    "gpu-1:9460": SimpleNode(1, [BUSY, FREE, IDLE, BUSY]),
    "gpu-2:9460": SimpleNode(2, [BUSY, (SlotState.LOST, ""), FREE, (SlotState.RESERVED, "")], A100),
    "gpu-10:9460": SimpleNode(10, [FREE, (SlotState.BUSY, SCRIPT)]),
    "gpu-3:9460": SimpleNode(3, [FREE, BUSY]),
    "no host/<b>": SimpleNode(4, [IDLE], idle_s=90_000),
}
READY = ".cell"


@dataclass(frozen=True)
class ShownFleet:
    prometheus: Prometheus
    agent: RunningAgent

    @property
    def url(self) -> str:
        return f"{self.agent.url}/fleet"

    def document(self) -> Any:
        return json.loads(self.agent.get("/api/v1/fleet")[1])["fleet"]


def config_of(folder: Path, url: str, more: str = "") -> str:
    file = folder / "agent.toml"
    file.write_text(f'[fleet]\nprometheus_url = "{url}"\n{more}')
    return str(file)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShownFleet]:
    """gpu-3 no longer answers."""
    folder = tmp_path_factory.mktemp("fleet")
    with fleet(NODES, folder) as (server, prometheus):
        del server.texts["node-3"]
        until(lambda: prometheus.query("up == 0"), "the dead node is down")
        with running_agent("--simulate", "lab", "--config", config_of(folder, prometheus.url)) as agent:
            yield ShownFleet(prometheus, agent)


def states(page: Page) -> list[str]:
    found: list[str] = page.eval_on_selector_all(".cell", "cells => cells.map(cell => cell.dataset.state)")
    return found


def places(page: Page) -> list[str]:
    return page.locator(".cell b").all_text_contents()


def test_the_sentence_and_every_slot_of_the_document_free_first(browser: Browser, shown: ShownFleet) -> None:
    with opened(browser, shown.url, ready=READY) as page:
        found = shown.document()
        texts = page.locator(".sentence a b").all_inner_texts()
        assert texts == [part["text"] for part in found["summary"]["parts"]]
        assert texts[:3] == ["1 node not answering", "1 GPU lost", "3 free"]
        expect(page).to_have_title(f"{found['summary']['sentence']} · fleet")
        assert page.get_attribute("link[rel=icon]", "href") == "/static/icon-bad.svg"
        uuids = page.eval_on_selector_all(".cell", "cells => cells.map(cell => cell.dataset.slot)")
        assert uuids == [slot["uuid"] for slot in found["slots"]]
        assert states(page)[:5] == ["free", "free", "free", "held_idle", "held_idle"]
        assert places(page)[:3] == ["gpu-1 · 1", "gpu-2 · 2", "gpu-10 · 0"], "in natural order"
        idle = page.locator(".cell[data-state=held_idle]")
        expect(idle.first).to_contain_text("bob")
        expect(idle.first).to_contain_text("1\u202fd")
        expect(idle.last).to_contain_text("1\u202fh")
        assert page.evaluate("document.querySelectorAll('main script').length") == 0
        expect(page.locator(".cell .detail", has_text=SCRIPT)).to_have_count(1)


def test_each_cell_links_to_its_gpu_on_the_page_of_its_node(browser: Browser, shown: ShownFleet) -> None:
    with opened(browser, shown.url, ready=READY) as page:
        links = page.eval_on_selector_all(".cell a", "links => links.map(link => link.getAttribute('href'))")
        assert links[:3] == ["http://gpu-1:9460/#gpu-1", "http://gpu-2:9460/#gpu-2", "http://gpu-10:9460/#gpu-0"]
        assert len(links) == len(states(page)) - 1
        unsafe = page.locator(f".cell[data-slot='{NODES['no host/<b>'].uuid(0)}']")
        expect(unsafe).to_contain_text("no host/<b>")
        expect(unsafe.locator("a")).to_have_count(0)


def test_a_dead_node_is_listed_with_the_time_of_its_last_answer(browser: Browser, shown: ShownFleet) -> None:
    with opened(browser, shown.url, ready=READY) as page:
        expect(page.locator("[data-silent='gpu-3:9460']")).to_contain_text(
            re.compile(r"gpu-3 not answering since \d\d:\d\d:\d\d, for ")
        )
        page.click("[data-part-of-sentence=silent] a")
        assert states(page) == ["silent", "silent"]
        assert places(page) == ["gpu-3 · 0", "gpu-3 · 1"]


def test_nodes_with_nothing_but_idle_gpus_are_folded(browser: Browser, shown: ShownFleet) -> None:
    with opened(browser, shown.url, ready=READY) as page:
        fold = page.locator("#now details")
        expect(fold.locator("summary")).to_have_text("2 nodes with GPUs held idle")
        expect(fold).not_to_have_attribute("open", re.compile(""))
        for node in ("gpu-1:9460", "no host/<b>"):
            expect(fold.locator(f"[data-problems-of='{node}']")).to_be_hidden()
        expect(page.locator("#problems [data-problems-of='gpu-2:9460']")).to_be_visible()
        fold.locator("summary").click()
        expect(fold.locator("[data-problems-of='gpu-1:9460']")).to_have_text(
            re.compile("gpu-1: .*GPU held idle for long")
        )


def test_filters_are_in_the_address(browser: Browser, shown: ShownFleet) -> None:
    with opened(browser, shown.url, ready=READY) as page:
        page.click("[data-part-of-sentence=free] a")
        assert states(page) == ["free"] * 3
        expect(page.locator(".sentence a.chosen")).to_contain_text("3 free")
        expect(page.locator("#slots .note")).to_have_text("3 of 13")
        page.select_option("select[name=model]", A100)
        assert places(page) == ["gpu-2 · 2"]
        address = page.url
        assert "state=free" in address
        page.select_option("select[name=state]", "")
        page.select_option("select[name=model]", "")
        page.fill("input[name=user]", "BOB")
        assert states(page) == ["held_idle"] * 2
        assert page.url.endswith("?user=BOB")
        page.fill("input[name=user]", "no such user")
        expect(page.get_by_text("No slot matches.")).to_be_visible()
        page.fill("input[name=user]", "")
        assert len(states(page)) == 13
        assert page.url == shown.url
    with opened(browser, address, ready=READY) as page:
        assert places(page) == ["gpu-2 · 2"], "a copied address shows the same"
        assert page.input_value("select[name=model]") == A100


def test_by_node_every_node_has_its_slots_in_order(browser: Browser, shown: ShownFleet) -> None:
    with opened(browser, f"{shown.url}?by=node", ready=READY) as page:
        nodes = page.eval_on_selector_all("[data-node]", "nodes => nodes.map(node => node.dataset.node)")
        assert nodes == ["gpu-1:9460", "gpu-2:9460", "gpu-3:9460", "gpu-10:9460", "no host/<b>"]
        first = page.locator("[data-node='gpu-1:9460']")
        expect(first.locator("h3")).to_have_text("gpu-1 H200, 1 of 4 slots free")
        assert first.locator(".cell b").all_text_contents() == ["0", "1", "2", "3"]
        words = first.locator(".detail").all_text_contents()
        assert words == ["alice", "free", "idle · bob", "alice"], "the state is not in the colour alone"
        page.click(".choice button:has-text('Free first')")
        expect(page.locator("[data-group=free]")).to_be_visible()


def test_the_main_page_links_to_the_fleet_only_where_there_is_one(browser: Browser, shown: ShownFleet) -> None:
    with opened(browser, shown.agent.url) as page:
        page.click("nav a:has-text('Fleet')")
        page.wait_for_selector(READY)
        assert page.url == shown.url
        page.click("nav a:has-text('This node')")
        page.wait_for_selector("main[data-sequence]")
    with running_agent("--simulate", "lab") as alone:
        with opened(browser, alone.url) as page:
            expect(page.locator("nav a:has-text('Fleet')")).to_have_count(0)
        status, text = alone.get("/fleet")
        assert (status, "fleet.prometheus_url" in text) == (404, True)
        assert json.loads(alone.get("/api/v1/fleet")[1]) == {"hidden": None, "fleet": None}


def test_a_prometheus_that_went_away_is_named_and_the_last_view_stays(browser: Browser, tmp_path: Path) -> None:
    with ExitStack() as viewing:
        with fleet({"gpu-1:9460": NODES["gpu-1:9460"]}, tmp_path) as (_, prometheus):
            config = config_of(tmp_path, prometheus.url)
            agent = viewing.enter_context(running_agent("--simulate", "lab", "--config", config))
            page = viewing.enter_context(opened(browser, f"{agent.url}/fleet", ready=READY, lost_is_fine=True))
        alert = page.locator("[role=alert]")
        expect(alert).to_contain_text(f"Prometheus at {prometheus.url} does not answer", timeout=40_000)
        assert len(states(page)) == 4, "the last view stays"
        assert page.locator("main.old").count() == 1, "and is marked as old"


def test_no_problem_is_not_said_next_to_a_user_who_waits(browser: Browser, shown: ShownFleet) -> None:
    document = json.loads(shown.agent.get("/api/v1/fleet")[1])
    fleet_now = document["fleet"]
    for node in fleet_now["nodes"].values():
        node.update({"answers": True, "problems": {}, "problem_sentence": ""})
    free = [part for part in fleet_now["summary"]["parts"] if part["name"] == "free"]
    waiting = {**free[0], "name": "waiting", "text": "1 waiting", "tone": "plain", "detail": ""}
    for parts, is_calm in ((free, True), ([*free, waiting], False)):
        fleet_now["summary"]["parts"] = parts
        with opened(browser, shown.url, ready=READY) as page:
            page.route("**/api/v1/fleet", lambda route: route.fulfill(json=document))
            page.reload()
            expect(page.locator(".sentence > li")).to_have_count(len(parts))
            assert ("No problem." in page.inner_text("main")) is is_calm


def test_a_very_large_fleet_is_drawn_up_to_a_limit_and_in_full_when_asked(browser: Browser, shown: ShownFleet) -> None:
    document = json.loads(shown.agent.get("/api/v1/fleet")[1])
    slot = document["fleet"]["slots"][0]
    document["fleet"]["slots"] = [{**slot, "uuid": f"GPU-{number}"} for number in range(4010)]
    with opened(browser, shown.url, ready=READY) as page:
        page.route("**/api/v1/fleet", lambda route: route.fulfill(json=document))
        page.reload()
        expect(page.locator(".cell")).to_have_count(4000)
        expect(page.locator("#slots .note")).to_have_text("all 4010")
        page.click("button:has-text('Show 10 more')")
        expect(page.locator(".cell")).to_have_count(4010)


def test_owners_are_hidden_from_a_viewer_without_an_identity(
    browser: Browser, shown: ShownFleet, tmp_path: Path
) -> None:
    config = config_of(tmp_path, shown.prometheus.url, '[privacy]\nshow_owners = "own"\n')
    with (
        running_agent("--simulate", "lab", "--config", config) as agent,
        opened(browser, f"{agent.url}/fleet", ready=READY) as page,
    ):
        expect(page.locator("[data-hidden=slots]")).to_contain_text("hidden: you see your own")
        text = page.inner_text("body")
        assert "alice" not in text
        assert "bob" not in text
        expect(page.locator(".cell[data-state=busy]").first).to_contain_text("1 hidden")


@pytest.mark.parametrize(("query", "width", "theme"), [("", 1280, "light"), ("?by=node", 360, "dark")])
def test_axe_finds_no_violation(browser: Browser, shown: ShownFleet, query: str, width: int, theme: str) -> None:
    with opened(browser, f"{shown.url}{query}", width=width, theme=theme, ready=READY) as page:
        page.evaluate(AXE.read_text())
        found: Any = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
        assert [
            f"{fault['id']}: {[node['html'][:200] for node in fault['nodes'][:3]]}" for fault in found["violations"]
        ] == []


def test_no_width_scrolls_sideways(browser: Browser, shown: ShownFleet) -> None:
    with opened(browser, shown.url, ready=READY) as page:
        for width, theme in itertools.product((360, 1280, 1920, 2560), ("light", "dark")):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme="light" if theme == "light" else "dark")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            keep_screenshot(page.locator("body"), f"fleet-{theme}-{width}")


def test_the_accounts_of_this_month_by_user_group_and_month(browser: Browser, tmp_path: Path) -> None:
    with (
        fleet_of(tmp_path, {"gpu-1": EUR, "gpu-2": EUR}) as found,
        running_agent("--simulate", "lab", "--config", config_of(tmp_path, found.prometheus.url)) as agent,
        opened(browser, f"{agent.url}/fleet", ready="[data-account]") as page,
    ):
        document = json.loads(agent.get("/api/v1/fleet/report")[1])["accounts"][found.month]
        rows = page.locator("#accounts [data-account]")
        assert [row.get_attribute("data-account") for row in rows.all()] == list(document["users"])
        assert page.locator("[data-account=bob] [data-f=held_gpu_hours]").inner_text() == "2.00\u202fh"
        cost = page.locator("#accounts [data-total] [data-f=cost]").inner_text()
        assert float(cost.replace(",", "")) == pytest.approx(document["total"]["cost"], abs=0.01)
        expect(page.locator("#accounts thead")).to_contain_text("Cost EUR")
        page.locator("#accounts").get_by_text("Groups").click()
        expect(page.locator("[data-account=lab]")).to_be_visible()
        assert page.url.endswith("?accounts=group")
        page.locator("#accounts").get_by_text("Months").click()
        expect(page.locator(f"[data-account='{found.month}']")).to_be_visible()
        page.set_viewport_size({"width": 360, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
