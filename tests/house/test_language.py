"""Words that plain technical English does not need. Names, comments, docstrings and texts are checked alike."""

import re
from pathlib import Path

import pytest

from scripts.house_numbers import REPOSITORY

WORDS = (
    *("tell", "tells", "told", "nobody", "somebody", "everybody", "anybody", "anew", "beside", "befalls", "whoever"),
    *("want", "wants", "wanted"),
)
NEGATION = "is no "
FAULT = re.compile(
    rf"(?:\b|_)({'|'.join(WORDS)})(?:\b|_)|(?<!there )\b{NEGATION}(?!longer\b|more\b)",
    re.IGNORECASE,
)
# The user of containers and NFS is called nobody; files have a method tell.
ALLOWED = re.compile(
    r"\.tell\(\)|\b(AS_)?NOBODY\b|_NOBODY\b|[\"\x27]nobody[\"\x27]|^nobody:"
    r"|\bas nobody if that user is root|\b(hello_)?as_nobody\b"
)
ROOMS = (
    *("bench", "dashboards", "deploy", "docs", "scripts", "src", "tests"),
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md"),
)
SUFFIXES = {".py", ".js", ".md", ".yml", ".yaml", ".toml", ".service", ".sh", ".c", ".json", ""}


def files_of(room: str) -> list[Path]:
    top = REPOSITORY / room
    found = [top] if top.is_file() else sorted(top.rglob("*"))
    return [
        path
        for path in found
        if path.is_file()
        and path.suffix in SUFFIXES
        and path != Path(__file__)
        and not {"vendor", "__pycache__"} & set(path.parts)
        and not any(part.endswith(".egg-info") for part in path.parts)
    ]


def faults(text: str) -> list[str]:
    """Each line with one of the words, with its number."""
    lower = text.lower()
    # Few files have any of them. To search for texts takes a hundredth of the time that the expression takes.
    if not any(part in lower for part in (*WORDS, NEGATION)):
        return []
    return [
        f"{number}: {line.strip()}"
        for number, line in enumerate(text.splitlines(), 1)
        if FAULT.search(ALLOWED.sub("", line))
    ]


@pytest.mark.parametrize("room", ROOMS)
def test_room_uses_plain_words(room: str) -> None:
    files = files_of(room)
    assert files, f"{room} does not exist"
    found = [
        f"{path.relative_to(REPOSITORY)}:{fault}"
        for path in files
        for fault in faults(path.read_text(errors="replace"))
    ]
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
