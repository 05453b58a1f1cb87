"""Every path that README.md and docs/ name is served by a running agent."""

import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from gpucommons.faces.dialects.all import DIALECTS
from running import running_agent

ROOT = Path(__file__).resolve().parents[3]
# In code quotes, or after the address of the agent's main listener; a query can follow.
_PATH = r"(/(?:(?:api|metrics|health|healthz|readyz|plain|glossary|static)(?:/[\w./-]*)?)?(?:\?[\w=&.-]+)?)"
_QUOTED = re.compile(rf"`{_PATH}`")
_URL = re.compile(rf"https?://(?:agent|[\w.]+:9460){_PATH}")


def documented_paths(text: str) -> set[str]:
    found = set(_QUOTED.findall(text)) | set(_URL.findall(text))
    by_dialect = {path.replace("NAME", dialect.name) for path in found for dialect in DIALECTS if "NAME" in path}
    return {path for path in found if "NAME" not in path} | by_dialect


def test_paths_are_found_in_text_and_commands() -> None:
    text = "See `/` and `/metrics/NAME`, not `/etc/x`.\ncurl -s 'http://127.0.0.1:9460/api/v1/who?by=user' | jq .groups"
    assert documented_paths(text) == {"/", "/api/v1/who?by=user"} | {f"/metrics/{dialect.name}" for dialect in DIALECTS}


@pytest.mark.long
def test_every_documented_path_is_served() -> None:
    files = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    by_file = {file.name: documented_paths(file.read_text()) for file in files}
    named = set().union(*by_file.values())
    assert {"/", "/plain", "/glossary", "/metrics", "/healthz", "/readyz", "/api/v1/", "/api/v1/stream"} <= named
    with running_agent("--simulate", "lab") as agent:
        missing = [
            f"{file}: {path}" for file, paths in by_file.items() for path in paths if head(agent.url + path) == 404
        ]
        assert missing == []
        assert head(f"{agent.url}/api/v1/nothing") == 404


def head(url: str) -> int:
    """The status only: a stream does not end."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
