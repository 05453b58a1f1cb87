"""Why a client waits: every face prints the same sentence, for every reason."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page

from browser import chromium, demo_agent, opened
from demo_node import GIB, DemoNode
from gpucommons.cli.scheduler_view import explanations, status_lines
from gpucommons.cli.top_rows import turn_rows
from gpucommons.model.sharing import ClientSharing, SharingReading, WaitReading, WaitReason
from gpucommons.model.snapshot import Readings
from gpucommons.rules.wait_reasons import sharing_sentence, wait_sentence
from played import Played, snapshot_of

SENTENCES = [
    (WaitReason.QUOTA, 0.5, "core quota of 25 % used up, debt 1.3 s"),
    (WaitReason.TURN, 0.5, "another client has the turn"),
    (WaitReason.MEMORY, 0.5, "needs 12.0 GiB of memory, 4.2 GiB free"),
    (WaitReason.DEMAND, 0.5, "another client has the turn: together they would be slower"),
    (WaitReason.SOLO, None, "must run alone first, to be measured"),
    (WaitReason.SOLO, 0.5, "measuring a client that runs alone"),
    (
        WaitReason.FAIRNESS,
        0.5,
        "another owner has the turn: together, an owner would get less than its share",
    ),
    (WaitReason.BACKGROUND, 0.5, "it is of class background, and another program uses the GPU"),
    (WaitReason.READY, 0.5, "about to run"),
]


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with chromium() as browser, demo_agent() as url, opened(browser, url) as found:
        yield found


def waiting_for(reason: WaitReason, demand_ratio: float | None) -> tuple[SharingReading, ClientSharing]:
    """The demo node's clients, of which the first that waits does so for this reason."""
    sharing = DemoNode().readings(1.0).sharing
    assert sharing is not None
    first = next(client for client in sharing.clients if client.wait is not None)
    client = first._replace(
        wait=WaitReading(reason, 5.0, 1, int(4.2 * GIB), 7.0),
        need_bytes=12 * GIB,
        core_quota_effective_percent=25.0,
        debt_s=1.3,
        demand_ratio=demand_ratio,
    )
    return sharing._replace(clients=tuple(client if row is first else row for row in sharing.clients)), client


@pytest.mark.parametrize(("reason", "demand_ratio", "sentence"), SENTENCES)
def test_all_faces_print_the_sentence(reason: WaitReason, demand_ratio: float | None, sentence: str) -> None:
    sharing, client = waiting_for(reason, demand_ratio)
    assert wait_sentence(client) == sentence
    api = Played()
    api.show(snapshot_of(Readings(sharing=sharing)))
    document: Any = api.get("snapshot")
    row = document["turns"]["clients"][client.client_id]
    assert (row["wait"]["reason"], row["wait"]["sentence"]) == (reason.value, sentence)
    (top,) = [row for row in turn_rows(document) if row.key == client.client_id]
    assert top.cells[2] == f"waits 5 s: {sentence}"
    assert any(line.endswith(f"for 5.0 s: {sentence}") for line in status_lines(document["turns"]))
    (explained,) = explanations(document["turns"], client.client_id)
    assert f"waiting for 5.0 s: {sentence}; " in explained
    # The page shows the words of the document: page/test_page.py compares them.
    assert row["standing_sentence"] == f"waits 5 s: {sentence}, 1 ahead"


def test_every_reason_has_a_sentence() -> None:
    assert {reason for reason, _, _ in SENTENCES} == set(WaitReason)
    running = next(client for client in waiting_for(WaitReason.TURN, None)[0].clients if client.wait is None)
    assert wait_sentence(running) == ""


@pytest.mark.long
def test_how_a_gpu_is_shared_is_printed_by_all_faces(page: Page) -> None:
    sharing, _ = waiting_for(WaitReason.TURN, None)
    api = Played()
    api.show(snapshot_of(Readings(sharing=sharing)))
    turns: Any = api.get("turns")["turns"]
    (sentence,) = {gpu["way_sentence"] for gpu in turns["gpus"].values()}
    assert sentence == sharing_sentence("demand") == "in turns: together the clients need more than the GPU has"
    assert any(f": {sentence}" in line for line in status_lines(turns))
    assert set(page.locator("#turns [data-f=way]").all_inner_texts()) == {sentence}
