"""The plain page and readiness: stale and missing sources, and hostile names as text."""

import base64
import hashlib
import re
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from fakes.faces import snapshot_now
from gpucommons.faces.web.routes import pages
from gpucommons.faces.web.routes.pages import readiness_problems
from gpucommons.model.snapshot import Snapshot, SourceState

NOW_S = 1000.0
FRESH = SourceState("memory", essential=True, up=True, last_success_monotonic_s=NOW_S - 1, stale_after_s=5)
STALE = SourceState(
    "cpu", essential=True, up=True, last_success_monotonic_s=NOW_S - 60, stale_after_s=5, detail="it hangs"
)
ABSENT = SourceState("nvml", absent=True, detail="no NVIDIA driver", remedy="install the driver")


def snapshot_at_now(*sources: SourceState, scenario: str | None = None) -> Snapshot:
    """A snapshot of the instant NOW_S, independent of this machine's clock."""
    return snapshot_now(*sources, scenario=scenario)._replace(monotonic_s=NOW_S)


def test_ready_when_the_essential_sources_are_fresh() -> None:
    snapshot = snapshot_at_now(FRESH, ABSENT)
    assert readiness_problems(snapshot, NOW_S, 10) == ()
    assert readiness_problems(snapshot, NOW_S + 4, 10) == ()
    assert readiness_problems(snapshot, NOW_S + 5, 10) == ("memory: last read 6.0 s ago",)


def test_not_ready_names_the_stale_sources() -> None:
    assert readiness_problems(None, NOW_S, 10) == ("no snapshot yet",)
    snapshot = snapshot_at_now(STALE, SourceState("pressure", essential=True, detail="cannot be read"))
    found = readiness_problems(snapshot, NOW_S + 11, 10)
    assert [line.split(":")[0] for line in found] == ["snapshot", "cpu", "pressure"]
    assert "it hangs" in found[1]
    assert "never read" in found[2]


class Elements(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_shows_links_sources_and_remedies() -> None:
    links = [("/metrics", "every dialect"), ("/healthz", "lives")]
    response = pages.render(snapshot_at_now(FRESH, STALE, ABSENT, scenario="lab"), links, ("cpu: stale",), NOW_S)
    seen = Elements(response.body.decode())
    assert ("href", "/metrics") in seen.attributes
    assert ("href", "/healthz") in seen.attributes
    for words in ("SIMULATED: scenario lab", "cpu", "stale", "it hangs", "absent", "install the driver", "fresh"):
        assert words in seen.text


def test_the_page_works_before_the_first_snapshot() -> None:
    seen = Elements(pages.render(None, [("/metrics", "m")], ("no snapshot yet",), NOW_S).body.decode())
    assert "no snapshot yet" in seen.text
    assert "SIMULATED" not in seen.text


HOSTILE = st.text() | st.sampled_from(
    ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</style><b>", "<!--", "&lt;b&gt;", "'onload='x"]
)


@given(HOSTILE, HOSTILE, HOSTILE)
def test_no_text_becomes_markup(name: str, detail: str, scenario: str) -> None:
    plain = pages.render(
        snapshot_now(SourceState("n", detail="d"), scenario="s" if scenario else None), [("/p", "w")], ("c",), 0
    )
    hostile = pages.render(
        snapshot_now(SourceState(name, detail=detail), scenario=scenario), [("/p", detail)], (name,), 0
    )
    before, after = Elements(plain.body.decode()), Elements(hostile.body.decode())
    assert after.tags == before.tags
    assert "script" not in after.tags
    assert not any(attribute.startswith("on") for attribute, _ in after.attributes)


def test_the_policy_allows_only_the_style_of_the_page() -> None:
    response = pages.render(None, [], (), NOW_S)
    policy = response.headers["Content-Security-Policy"]
    style = re.search(r"<style>(.*?)</style>", response.body.decode(), re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style.group(1).encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
