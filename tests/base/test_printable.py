"""Text from outside in a terminal."""

from hypothesis import given
from hypothesis import strategies as st

from gpucommons.base.printable import printable


def test_what_is_not_printable_is_escaped() -> None:
    assert printable("a\x1b[31m\nb\u202e") == "a\\x1b[31m\\nb\\u202e"
    assert printable("\x9b2J\x7f\u200b\u2066\ud800") == "\\x9b2J\\x7f\\u200b\\u2066\\ud800"
    assert printable("Zoë 研究") == "Zoë 研究"


def test_a_long_text_is_cut() -> None:
    assert printable("x" * 50, 10) == "x" * 9 + "…"


@given(st.text())
def test_every_text_becomes_printable(text: str) -> None:
    assert printable(text).isprintable()
