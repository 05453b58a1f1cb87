"""The ratio file is read again when it changes; an invalid one is logged once, and the last valid value is kept."""

import logging
import os
from pathlib import Path

import pytest

from gpucommons.sources.mapping_files import AllocationRatioReader, parse_allocation_ratios


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gpu_allocation.txt"


def source_of(file: Path) -> AllocationRatioReader:
    return AllocationRatioReader(file, parse_allocation_ratios)


def ratio(source: AllocationRatioReader) -> float | None:
    ratios = source.read().ratios
    return ratios.of(0) if ratios else None


def test_it_is_read_again_when_it_changes(file: Path) -> None:
    file.write_text("2")
    source = source_of(file)
    assert ratio(source) == 2.0
    assert source.read() is source.read()
    file.write_text("0=4\n")
    assert ratio(source) == 4.0
    assert source.read().problem == ""


@pytest.mark.parametrize("bad", ["0", "-3", "two", "", None])
def test_an_invalid_file_keeps_the_last_value_and_is_logged_once(
    file: Path, bad: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_text("2")
    source = source_of(file)
    source.read()
    with caplog.at_level(logging.WARNING):
        if bad is None:
            file.unlink()
        else:
            file.write_text(bad)
        assert [ratio(source) for _ in range(3)] == [2.0, 2.0, 2.0]
    assert len(caplog.records) == 1
    assert str(file) in caplog.text
    assert "until then the last valid ratio applies" in caplog.text
    assert str(file) in source.read().problem


def test_a_file_that_was_never_valid(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = source_of(file)
    assert source.read().ratios is None
    assert "No such file" in source.read().problem
    assert len(caplog.records) == 1
    file.write_text("2")
    assert ratio(source) == 2.0
    assert source.read().problem == ""


def test_a_directory_and_a_missing_file(tmp_path: Path) -> None:
    assert "Is a directory" in source_of(tmp_path).read().problem


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "the file is empty" in source_of(tmp_path / "pipe").read().problem


def test_binary_content(file: Path) -> None:
    file.write_bytes(b"\xff\xfe2")
    assert "invalid ratio" in source_of(file).read().problem
