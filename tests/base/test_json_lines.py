"""Lines are returned whole however the stream was split, and their length is limited."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.base.text import LineSplitter, LineTooLong


@given(data=st.binary(max_size=60).map(lambda b: b.replace(b"b", b"\n")), cuts=st.lists(st.integers(0, 60)))
def test_any_split_gives_the_same_lines(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    splitter = LineSplitter(max_bytes=100)
    lines = [line for a, b in itertools.pairwise(edges) for line in splitter.feed(data[a:b])]
    assert lines == [line for line in data.split(b"\n")[:-1] if line.strip()]


def test_a_line_above_the_limit_is_rejected() -> None:
    splitter = LineSplitter(max_bytes=10)
    assert len(splitter.feed(b"123456789\n" * 1000)) == 1000
    splitter.feed(b"1234567890")
    with pytest.raises(LineTooLong):
        splitter.feed(b"1")
