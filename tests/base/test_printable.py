"""Text from outside in a terminal."""

import json

from hypothesis import given
from hypothesis import strategies as st

from gpucommons.base.text import Printable, printable, printable_json, printable_lines


def test_what_is_not_printable_is_escaped() -> None:
    assert printable("a\x1b[31m\nb\u202e") == "a\\x1b[31m\\nb\\u202e"
    assert printable("\x9b2J\x7f\u200b\u2066\ud800") == "\\x9b2J\\x7f\\u200b\\u2066\\ud800"
    assert printable("Zoë 研究") == "Zoë 研究"


def test_letters_that_cannot_be_seen_are_escaped() -> None:
    for code in (0x3164, 0x115F, 0x1160, 0xFFA0, 0x2800, 0x034F, 0xFE00, 0xFE0F, 0xE0100, 0xE01EF, 0x180B, 0x17B4):
        shown = printable(f"ali{chr(code)}ce")
        assert shown == f"ali{chr(code).encode('unicode_escape').decode()}ce"
        assert chr(code) not in printable_json(json.dumps(f"ali{chr(code)}ce", ensure_ascii=False))
    assert printable("한글 e\u0301 नमस्ते") == "한글 e\u0301 नमस्ते"


def test_a_long_text_is_cut() -> None:
    assert printable("x" * 50, 10) == "x" * 9 + "…"


@given(st.text())
def test_every_text_becomes_printable(text: str) -> None:
    assert printable(text).isprintable()


@given(st.lists(st.text()))
def test_a_text_has_as_many_lines_as_were_given(lines: list[str]) -> None:
    text = printable_lines(lines)
    assert text.count("\n") == len(lines)
    assert text.replace("\n", "").isprintable()
    assert [line.isprintable() for line in text.splitlines()] == [True] * len(lines)


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)), st.booleans())
def test_json_keeps_its_value(value: object, ascii: bool) -> None:
    text = printable_json(json.dumps(value, indent=1, ensure_ascii=ascii))
    assert text.replace("\n", "").isprintable()
    assert json.loads(text) == value


def test_text_that_is_joined_is_no_longer_printable_by_type() -> None:
    assert isinstance(printable("a"), Printable)
    assert not isinstance(printable("a") + "\x1b", Printable)
    assert not isinstance(f"{printable('a')}", Printable)
