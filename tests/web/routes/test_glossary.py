"""The glossary is served offline, and the page links only to words that it has."""

import re
from importlib.resources import files
from pathlib import Path

import pytest

from gpucommons.faces.web.routes.pages import GLOSSARY, anchor, glossary_page
from gpucommons.faces.web.routes.request import Request
from running import running_agent

README = Path(__file__).resolve().parents[3] / "README.md"


def test_the_page_links_to_words_that_the_glossary_has() -> None:
    sections = files("gpucommons.faces.web") / "static" / "sections"
    linked = [word for file in sections.iterdir() for word in re.findall(r' word="([^"]+)"', file.read_text())]
    assert len(linked) >= 5
    assert set(linked) <= {anchor(word) for word, _ in GLOSSARY}
    assert "docs/glossary.md" in README.read_text()


def test_every_word_is_explained_once() -> None:
    words = [word for word, _ in GLOSSARY]
    assert {"slot", "managed", "held", "active", "idle"} <= set(words)
    assert len(words) == len(set(words))


@pytest.mark.long
def test_the_agent_serves_the_glossary() -> None:
    with running_agent("--simulate", "lab") as agent:
        status, body = agent.get("/glossary")
    assert status == 200
    for word, _ in GLOSSARY:
        assert f'<dt id="{anchor(word)}">' in body


def test_the_policy_forbids_scripts_and_other_hosts() -> None:
    response = glossary_page(Request("GET", "/glossary"))
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    assert b"<script" not in response.body
