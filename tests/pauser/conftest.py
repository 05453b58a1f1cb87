"""A fake driver with programs for each test, built once."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fakes.cuda.build import build_driver, build_program
from fakes.cuda.control import FakeCuda
from needs import needs_program


@contextmanager
def open_to_all() -> Iterator[Path]:
    """A folder that programs of other users can enter, which pytest's are not."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture(scope="session")
def cuda_files() -> Iterator[tuple[Path, Path]]:
    needs_program("cc")
    with open_to_all() as directory:
        yield build_driver(directory), build_program(directory)


@pytest.fixture
def cuda(cuda_files: tuple[Path, Path]) -> Iterator[FakeCuda]:
    with open_to_all() as directory:
        fake = FakeCuda(directory / "cuda", *cuda_files)
        yield fake
        fake.close()


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "run" / "paused"
