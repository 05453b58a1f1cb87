"""gpu_allocation.txt: one number, or one for each GPU. It is read again when it changes. While it is
invalid, that is logged once and the last valid value is kept."""

import logging
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.sources.mapping_files import AllocationRatioReader, RatioError, parse_allocation_ratios


@pytest.mark.parametrize(
    ("text", "ratios"),
    [
        ("2", [2.0, 2.0]),
        (" 2.5 \n", [2.5, 2.5]),
        ("0=2", [2.0, None]),
        ("0=2\n1 = 4\n", [2.0, 4.0]),
        ("3\n1=4\n", [3.0, 4.0]),
        ("# how we split\n2 # halves\n\n", [2.0, 2.0]),
    ],
)
def test_valid_files(text: str, ratios: list[float | None]) -> None:
    found = parse_allocation_ratios(text)
    assert [found.of(0), found.of(1)] == ratios


@pytest.mark.parametrize(
    "text",
    [
        *("", " \n", "# 2", "0", "-1", "two", "nan", "inf", "-inf", "1e999", "0=0", "0=", "=2", "a=2", "-1=2"),
        *("2 2", "2\n3", "0=1\n0=2", "0x2", "1_0", "٢", "2=3=4", "\x00", "9" * 5000 + "x"),
    ],
)
def test_invalid_files(text: str) -> None:
    with pytest.raises(RatioError) as caught:
        parse_allocation_ratios(text)
    line = str(caught.value)
    assert "expected a number above 0" in line
    assert "\n" not in line
    assert len(line) < 200


@given(st.text())
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    try:
        found = parse_allocation_ratios(text)
    except RatioError:
        return
    assert all(ratio > 0 for ratio in (found.everywhere or 1.0, *found.by_gpu_index.values()))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gpu_allocation.txt"


def source_of(file: Path) -> AllocationRatioReader:
    return AllocationRatioReader(file)


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
