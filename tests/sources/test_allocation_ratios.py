"""gpu_allocation.txt: one number, or one for each GPU; anything else is an error of one line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.sources.mapping_files import RatioError, parse_allocation_ratios


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
