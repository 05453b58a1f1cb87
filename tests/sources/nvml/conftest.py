"""The fake driver, built once for the whole run."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.nvml.build import build
from fakes.nvml.rig import Rig, rig_in
from needs import needs_program


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs_program("cc")
    return build(tmp_path_factory.mktemp("libnvidia-ml"))


@pytest.fixture(scope="session")
def library_without(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The library of an older driver: without the named functions."""
    needs_program("cc")
    return lambda *names: build(tmp_path_factory.mktemp("libnvidia-ml"), names)


@pytest.fixture
def rig(library: Path, tmp_path: Path) -> Iterator[Rig]:
    with rig_in(tmp_path, library) as rig:
        yield rig
