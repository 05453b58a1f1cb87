"""README and docs/: every link leads somewhere, every command exists, and every claim has its test or measurement."""

import re
from pathlib import Path

import pytest

from gpucommons.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings, and those that the page has itself."""
    text = FENCED.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.findall(FENCED.sub("", page.read_text())):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = page if not name else (page.parent / name).resolve()
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_every_command_of_the_readme_exists() -> None:
    known = {name.replace("_", "-") for name in COMMANDS}
    named = set(re.findall(r"(?:^|`|\$ |\(|sudo )gpucommons ([a-z][a-z-]+)", README.read_text(), re.MULTILINE))
    assert {"up", "gpus", "free", "run", "scheduler"} <= named <= known
    listed = README.read_text().partition("## Commands")[2]
    assert {name for name in known if f"`gpucommons {name}" not in listed and f"`{name}" not in listed} == set()


def section(title: str) -> list[list[str]]:
    """The cells of the table below this heading, without its header."""
    text = README.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[1:]]


def test_each_claim_in_the_comparison_leads_to_a_test_or_a_measurement() -> None:
    rows = section("Next to other programs")
    assert [row[0] for row in rows] == [
        *("nvitop", "Glances", "dcgm-exporter", "nvshare", "HAMi", "Slurm's own tools"),
    ]
    for name, theirs, ours in rows:
        assert theirs, f"{name} does something that we do not"
        links = LINK.findall(ours)
        assert links, name
        assert all(link.startswith(("tests/", "docs/benchmarks.md#")) for link in links), name


def test_each_number_leads_to_its_benchmark() -> None:
    rows = section("Measured")
    assert len(rows) >= 5
    for row in rows:
        assert "(docs/benchmarks.md#" in row[1], row


# Words of this project: a newcomer does not know them.
UNEXPLAINED = (
    "dialect",
    "slot",
    "holder",
    "managed",
    "faces",
    "DS01",
    "drop-in",
    "lease",
    "attribut",
    "turns",
    "agent",
)


def test_the_first_screen_needs_no_glossary() -> None:
    """Until after the three commands of three people; the demo comes before everything else."""
    text = re.sub(r"\]\([^)]*\)", "]", README.read_text().partition("\n## Who holds what\n")[0])
    assert not [word for word in UNEXPLAINED if re.search(rf"\b{word}", text)]
    first = FENCED.findall(README.read_text())[0]
    assert "make demo" in first
    assert README.read_text().index("## Three people, three commands") < README.read_text().index("## Measured")


# The line with the first occurrence of a word explains it.
EXPLANATIONS = {
    "lease": "by `run` (a lease)",
    "dialect": "one set of them (a dialect",
    "DS01": "DS01, a management system",
    "parked": "parked (its GPU memory moves",
    "Held idle": '"Held idle" means',
}


def test_words_of_this_project_are_explained_where_they_come_first() -> None:
    text = re.sub(r"docs/\w+\.md|\]\([^)]*\)|^```.*?^```", "", README.read_text(), flags=re.MULTILINE | re.DOTALL)
    for word, explained in EXPLANATIONS.items():
        first = re.search(rf".*\b{word}.*", text.replace("--dialect", ""))
        assert first is not None, word
        assert explained in first[0], f"{word}: {first[0]}"
    assert not re.findall(r"\b(?:slots?|holders?|managed|faces)\b", text), "no word for what has an ordinary one"


def test_the_readme_has_what_a_newcomer_looks_for() -> None:
    text = README.read_text()
    for picture in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text):
        assert (ROOT / picture).stat().st_size > 10_000
    assert text.count("![") == 2, "the page and the terminal"
    for heading in ("Share a GPU in two commands", "Who holds what", "Drop-in for", "Install"):
        assert f"\n## {heading}\n" in text
    install = text.partition("\n## Install\n")[2].partition("\n## ")[0]
    for way in ("pip install", "pipx install", "make dist", "deploy/install.sh", "docker build", "helm install"):
        assert way in install, way
