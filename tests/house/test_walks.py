"""The walks of docs/design.md: each step names a file that exists, and no walk visits a file twice.

tests/agent/test_walks.py traces that they are executed.
"""

import re

from scripts.house_numbers import REPOSITORY

DESIGN = (REPOSITORY / "docs" / "design.md").read_text()
SECTION = DESIGN.split("## Five walks through the code")[1].split("\n## ")[0]
WALKS = {
    title: re.findall(r"^\d+\. `([\w/.]+)`", steps, re.MULTILINE)
    for title, steps in re.findall(r"^([A-Z][^\n]*):\n\n(.*?)(?=\n\n[A-Z]|\Z)", SECTION, re.MULTILINE | re.DOTALL)
}


def walk(title: str) -> list[str]:
    """The files of its steps."""
    return WALKS[title]


def test_every_step_is_a_file_and_none_is_visited_twice() -> None:
    assert len(WALKS) == 5
    for files in WALKS.values():
        assert files
        assert len(files) == len(set(files)), files
        for file in files:
            assert (REPOSITORY / "src" / "gpucommons" / file).is_file(), file
