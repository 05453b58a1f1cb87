"""Words that plain technical English does not need. Names, comments, docstrings and texts are checked alike."""

import re
from pathlib import Path

import pytest

from scripts.house_numbers import REPOSITORY

WORDS = re.compile(
    r"\b(tell|tells|told|nobody|somebody|everybody|anybody|anew|beside|befalls|whoever|wants?|wanted)\b"
    r"|(?<!there )\bis no (?!longer\b|more\b)",
    re.IGNORECASE,
)
# Legitimate uses: a method of files, and the user of containers.
ALLOWED = re.compile(r"\.tell\(\)|_NOBODY\b|as nobody if that user is root")

TEST_HELPERS = (
    *("browser", "certificates", "clocks", "demo_agent", "demo_node", "descriptors", "guarded", "many_agents", "needs"),
    *("parsing", "peers", "played", "prometheus_server", "promtool", "running", "test_agent", "test_docs"),
    *("test_prometheus", "test_uptime", "unhurried", "waiting"),
)
STATIC = ("chart", "delta", "format", "html", "lazy", "live", "owners", "page", "parts", "recent")

# Rooms that are clean. Each entry is a file, or a folder with everything below it.
CLEAN = (
    "bench",
    "dashboards",
    "deploy",
    "docs/benchmarks.md",
    "docs/deploy.md",
    "docs/monitoring.md",
    "scripts",
    "src/gpucommons/faces/dialects",
    "src/gpucommons/faces/exposition",
    "src/gpucommons/stack",
    "src/gpucommons/web/static/sections/history.js",
    *(f"src/gpucommons/web/static/{name}.js" for name in STATIC),
    "tests/deploy",
    "tests/faces/dialects",
    "tests/faces/exposition",
    "tests/stack",
    "tests/page",
    "tests/testbeds",
    *(f"tests/{name}.py" for name in TEST_HELPERS),
)
# Files of these rooms that are still being rewritten.
UNFINISHED = {f"src/gpucommons/faces/dialects/gpucommons/{name}.py" for name in ("gpus", "gpu_parts", "health")}
SUFFIXES = {".py", ".js", ".md", ".yml", ".yaml", ".toml", ".service", ".sh", ".c", ".json", ""}


def files_of(room: str) -> list[Path]:
    top = REPOSITORY / room
    found = [top] if top.is_file() else sorted(top.rglob("*"))
    return [
        path
        for path in found
        if path.is_file()
        and path.suffix in SUFFIXES
        and "vendor" not in path.parts
        and str(path.relative_to(REPOSITORY)) not in UNFINISHED
    ]


def faults(text: str) -> list[str]:
    """Each line with one of the words, with its number."""
    return [
        f"{number}: {line.strip()}"
        for number, line in enumerate(text.splitlines(), 1)
        if WORDS.search(ALLOWED.sub("", line))
    ]


@pytest.mark.parametrize("room", CLEAN)
def test_room_uses_plain_words(room: str) -> None:
    files = files_of(room)
    assert files, f"{room} does not exist"
    found = [f"{path.relative_to(REPOSITORY)}:{fault}" for path in files for fault in faults(path.read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "is_plain"),
    [
        ("def told() -> None:", False),
        ("The agent Tells Prometheus.", False),
        ("'xx' is no period", False),
        ("there is no limit", True),
        ("it is no longer used", True),
        ("content.tell()", True),
    ],
)
def test_words_are_recognised(text: str, is_plain: bool) -> None:
    assert (faults(text) == []) == is_plain
