"""A fake driver with programs for each test, built once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.cuda.build import build_driver, build_program
from fakes.cuda.control import FakeCuda
from needs import needs_program
from open_folder import open_folder


@pytest.fixture(scope="session")
def cuda_files() -> Iterator[tuple[Path, Path]]:
    needs_program("cc")
    with open_folder() as directory:
        yield build_driver(directory), build_program(directory)


@pytest.fixture
def cuda(cuda_files: tuple[Path, Path]) -> Iterator[FakeCuda]:
    with open_folder() as directory:
        fake = FakeCuda(directory / "cuda", *cuda_files)
        yield fake
        fake.close()


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "run" / "paused"
