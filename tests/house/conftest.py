"""The source tree is read once, and only by a process that runs these tests: each of them collects every test."""

import pytest

from scripts.house_numbers import SourceTree, read_tree


@pytest.fixture(scope="session")
def tree() -> SourceTree:
    return read_tree()
