"""The walks of docs/design.md: each step names a file that exists, and no walk visits a file twice."""

import re

from scripts.house_numbers import REPOSITORY

DESIGN = (REPOSITORY / "docs" / "design.md").read_text()
SECTION = DESIGN.split("## Five walks through the code")[1].split("\n## ")[0]
WALKS = [re.findall(r"^\d+\. `([\w/.]+)`", walk, re.MULTILINE) for walk in re.split(r"\n(?=\w[^\n]*:\n)", SECTION)]


def test_every_step_is_a_file_and_none_is_visited_twice() -> None:
    walks = [files for files in WALKS if files]
    assert len(walks) == 5
    for files in walks:
        assert len(files) == len(set(files)), files
        for file in files:
            assert (REPOSITORY / "src" / "gpucommons" / file).is_file(), file
