"""The page's files: small enough, from here alone, nothing inline, and told when they have not changed."""

import gzip
import re
from pathlib import Path

from fakes.faces import snapshot_now
from gpucommons.web.routes.app import Request
from gpucommons.web.routes.static_files import BASE, page_routes, static_files

STATIC = Path(__file__).resolve().parents[3] / "src" / "gpucommons" / "web" / "static"
BUDGET_BYTES = 60_000


def test_all_of_it_is_within_the_budget() -> None:
    size = sum(len(file.compressed) for file in static_files().values())
    assert size < BUDGET_BYTES, f"{size} bytes gzipped"


def test_what_is_vendored_has_its_licence_and_version() -> None:
    told = (STATIC / "vendor" / "README.md").read_text()
    for file in (STATIC / "vendor").iterdir():
        assert file.name in told or file.name == "README.md", f"{file.name} is not in the list"
    for name in re.findall(r"`(LICENSE\.\w+)`", told):
        assert len((STATIC / "vendor" / name).read_text()) > 500


def test_every_file_that_is_named_is_served() -> None:
    routes = page_routes(lambda: None)
    index = routes["/"].answer(Request("GET", "/")).body.decode()
    named = re.findall(r'(?:src|href)="(/static/[^"]+)"', index)
    assert named
    for path in named:
        assert path in routes
    for name, file in static_files().items():
        if name.endswith(".js"):
            for imported in re.findall(rb"from '([^']+)'", file.plain):
                place = (Path(BASE) / name).parent / imported.decode()
                assert str(Path("/" + "/".join(_flat(place.parts)))) in routes, f"{name} imports {imported!r}"


def _flat(parts: tuple[str, ...]) -> list[str]:
    found: list[str] = []
    for part in parts:
        if part == "..":
            found.pop()
        elif part not in ("/", "."):
            found.append(part)
    return found


def test_nothing_in_the_page_needs_to_be_allowed_inline() -> None:
    reply = page_routes(lambda: None)["/"].answer(Request("GET", "/"))
    policy = reply.headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "connect-src 'self'" in policy
    index = reply.body.decode()
    assert not re.search(r"<style|style=|<script(?![^>]*src=)|\son\w+=", index)
    assert not re.search(r"https?://", index)
    assert "Set-Cookie" not in reply.headers


def test_no_file_of_ours_names_another_host() -> None:
    for name, file in static_files().items():
        if not name.startswith("vendor/") and not name.endswith(".svg"):
            assert b"http" not in file.plain.replace(b"http://127.0.0.1", b""), name


def test_the_page_says_at_once_where_it_is_and_that_it_is_simulated() -> None:
    page = page_routes(lambda: snapshot_now(scenario="<lab>"))["/"].answer(Request("GET", "/")).body.decode()
    assert "node-1" in page
    assert "SIMULATED: scenario &lt;lab&gt;" in page
    assert "SIMULATED" not in page_routes(lambda: snapshot_now())["/"].answer(Request("GET", "/")).body.decode()


def test_a_file_that_the_browser_has_is_not_sent_again() -> None:
    route = page_routes(lambda: None)[f"{BASE}/page.js"]
    first = route.answer(Request("GET", "/"))
    again = route.answer(Request("GET", "/", if_none_match=first.headers["ETag"]))
    assert (again.status, again.body) == (304, b"")
    compressed = route.answer(Request("GET", "/", accept_encoding="gzip"))
    assert gzip.decompress(compressed.body) == first.body


def test_lines_are_counted_as_in_the_source() -> None:
    for name, file in static_files().items():
        assert file.plain.count(b"\n") == (STATIC / name).read_bytes().count(b"\n")
