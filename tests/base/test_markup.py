"""Text in markup is escaped as the standard library does it."""

import html

from hypothesis import given
from hypothesis import strategies as st

from gpucommons.base.text import escape


@given(st.text(st.sampled_from("&<>\"'a;é#x27")) | st.text())
def test_text_is_escaped_as_by_html_escape(text: str) -> None:
    assert escape(text) == html.escape(text)
