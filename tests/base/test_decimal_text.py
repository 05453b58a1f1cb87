"""Numbers in text: what `int` would reject or misread is not a number."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.base.text import parse_decimal

SOURCES = Path(__file__).parents[2] / "src" / "gpucommons"
LOOKS_LIKE_A_NUMBER = {"isdigit", "isdecimal", "isnumeric"}


@pytest.mark.parametrize(
    "text", ["", "²", "1²", "١", "1_0", "+1", "-1", " 1", "1 ", "1.0", "0x1", "9" * 21, "9" * 5000]
)
def test_texts_that_are_not_numbers(text: str) -> None:
    assert parse_decimal(text) is None


@given(st.integers(0, 2**64 - 1))
def test_every_number_of_64_bits_is_read(number: int) -> None:
    assert parse_decimal(str(number)) == number
    assert parse_decimal(f"{number:020}") == number


@given(st.text())
def test_no_text_raises(text: str) -> None:
    number = parse_decimal(text)
    assert number is None or number == int(text)


def test_no_other_code_uses_isdigit() -> None:
    """`text.isdigit()` is true for texts that `int` rejects: only `parse_decimal` may use it."""
    uses = re.compile(rf"\.({'|'.join(LOOKS_LIKE_A_NUMBER)})\b")
    found = {str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.py") if uses.search(path.read_text())}
    assert found == {"base/text.py"}
