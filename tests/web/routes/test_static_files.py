"""The page's files: within the size budget, from this host only, nothing inline, with ETags."""

import gzip
import re
from pathlib import Path

from fakes.faces import snapshot_now
from gpucommons.faces.web.routes.request import Request, Response
from gpucommons.faces.web.routes.static_files import index_endpoint, static_files
from gpucommons.model.snapshot import Snapshot

STATIC = Path(__file__).resolve().parents[3] / "src" / "gpucommons" / "faces" / "web" / "static"
BUDGET_BYTES = 80_000
FLEET_BUDGET_BYTES = 8_000
BASE = "/static"


def index(snapshot: Snapshot | None = None) -> Response:
    return index_endpoint(static_files()["index.html"], lambda: snapshot)(Request("GET", "/"))


def test_the_page_is_within_its_size_budget() -> None:
    files = static_files()
    fleet = sum(len(file.compressed) for name, file in files.items() if name.startswith("fleet."))
    size = sum(len(file.compressed) for file in files.values()) - fleet
    assert size < BUDGET_BYTES, f"{size} bytes gzipped"
    assert 0 < fleet < FLEET_BUDGET_BYTES, f"{fleet} bytes gzipped for the fleet alone"


def test_vendored_files_are_listed_with_licence_and_version() -> None:
    readme = (STATIC / "vendor" / "README.md").read_text()
    for file in (STATIC / "vendor").iterdir():
        assert file.name in readme or file.name == "README.md", f"{file.name} is not in the list"
    for name in re.findall(r"`(LICENSE\.\w+)`", readme):
        assert len((STATIC / "vendor" / name).read_text()) > 500


def test_every_file_that_is_named_is_served() -> None:
    routes = {f"{BASE}/{name}" for name in static_files()}
    named = re.findall(r'(?:src|href)="(/static/[^"]+)"', index().body.decode())
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


def test_the_page_has_no_inline_code() -> None:
    response = index()
    policy = response.headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "connect-src 'self'" in policy
    html = response.body.decode()
    assert not re.search(r"<style|style=|<script(?![^>]*src=)|\son\w+=", html)
    assert not re.search(r"https?://", html)
    assert "Set-Cookie" not in response.headers


def test_no_file_names_another_host() -> None:
    for name, file in static_files().items():
        if not name.startswith("vendor/") and not name.endswith(".svg"):
            assert b"http" not in file.plain.replace(b"http://127.0.0.1", b""), name


def test_the_index_names_the_host_and_the_scenario() -> None:
    page = index(snapshot_now(scenario="<lab>")).body.decode()
    assert "node-1" in page
    assert "SIMULATED: scenario &lt;lab&gt;" in page
    assert "SIMULATED" not in index(snapshot_now()).body.decode()


def test_a_file_that_the_browser_has_is_not_sent_again() -> None:
    file = static_files()["page.js"]
    first = file.endpoint(Request("GET", "/"))
    again = file.endpoint(Request("GET", "/", if_none_match=first.headers["ETag"]))
    assert (again.status, again.body) == (304, b"")
    compressed = file.endpoint(Request("GET", "/", accept_encoding="gzip"))
    assert gzip.decompress(compressed.body) == first.body


def test_line_numbers_match_the_source() -> None:
    for name, file in static_files().items():
        assert file.plain.count(b"\n") == (STATIC / name).read_bytes().count(b"\n")
